"""The durable event history: what was acknowledged is never lost, and anyone can replay it.

A log is a folder of segments; a segment is an SQLite database of consecutive events. One thread writes, readers have
their own threads. Nothing here uses the event loop, and nothing is awaited.

    history.py    `History`, the public class: opens a data folder, appends, reads, reports commits and refusals
    folder.py     the folder: its lock, the log's identity and holes, the list of its segments
    documents.py  a small JSON file with a checksum, replaced as a whole
    mark.py       the last committed offset, kept outside of the segments
    stored.py     a stored event: its columns (named in this file only) and its checksum
    segment.py    one segment's file: schema, writing a group, opening it for reading
    rows.py       a segment's rows, without the damaged ones
    seals.py      the seal of a full segment: digests of its blocks
    sealer.py     the thread that seals full segments
    writer.py     the writer's thread: groups, one fsync each, failures, rolling over to the next segment
    recovery.py   opening after a crash: which segments and rows are intact, and which are damaged
    rules.py      the [[record]] rules: which topics are kept, and for how long
    retention.py  hides and then deletes events that are too old or too many, oldest first
    consumers.py  programs that read the log from outside; retention waits for them before it deletes
    ranges.py     ranges of offsets; bounds in time and by publication
    reader.py     a query's page, read from one segment after another
    wanted.py     the filters of a query that look at one event
    walks.py      the ways to read one segment: along its index, over all offsets, or row by row where it is damaged
    opened.py     a segment open for reading, and the queries it answers
    connections.py  open connections to segments, and which segments are verified
    verify.py backup.py purge.py   what operators do with a log
"""
