"""The durable event history: what was acknowledged is never lost, and anyone can replay it.

A log is a folder of segments; a segment is an SQLite database of consecutive events. One thread writes, readers have
their own threads. Nothing here uses the event loop, and nothing is awaited.

    history.py           `History`, the public class: an open data folder, and all that can be done with it
    folder.py            the folder: its lock, the log's identity and holes, the high-water mark, the list of segments
    checksummed_json.py  small JSON files, replaced as a whole
    stored.py            a stored event: its columns (named in this file only) and its checksum
    damage.py            the words for damage, and what they mean; ranges of offsets

    rules.py             the [[record]] rules: which topics are kept, and for how long
    segment.py           one segment's file: schema, writing a group, opening it
    seals.py             the seal of a full segment: digests of its blocks; the thread that seals
    writer.py            the writer's thread: groups, one fsync each, failures, rolling over to the next segment
    key_digests.py       what was sent with idempotency keys, as digests next to the rows
    state.py             what is saved with the rows, in the newest segment: in a cluster, how far its stream is applied

    segment_reader.py    what a segment can be asked for; the pool of open ones: which has an offset, which are verified
    query.py             a query's filters, and the ways to read one segment by them
    row_filter.py        the rows that programs want which read the whole log: by topic, protocol and time
    reader.py            a query's page, or all rows, from one segment after another
    recent_keys.py       the idempotency keys that a server remembers when it starts

    retention.py         hides and then deletes events that are too old or too many, oldest first
    consumers.py         programs that read the log from outside; retention waits for them before it deletes

    examination.py       looks at every row of a segment, or of all: what is intact, and what is damaged or missing
    recovery.py          opens a log after a crash: where to continue
    rewriting.py         rewrites segments: to erase events, and to save what is intact of damaged ones
    backup.py            copies a log
"""
