"""The durable event history: what was acknowledged is never lost, and anyone can replay it.

A log is a folder of segments, a segment an SQLite database of consecutive events. One thread writes; readers have
threads of their own; none of this knows the event loop, and nothing here is awaited.

    history.py    History, the port: opens a data folder, appends, reads, says what was committed or refused
    folder.py     the folder: its lock, the log's identity and holes, the list of its segments
    documents.py  a small file with a checksum, replaced as a whole
    mark.py       the last committed offset, outside of the segments
    stored.py     a stored event: the one file that names its columns, and its checksum
    segment.py    one segment's file: schema, writing a group, opening it for reading
    rows.py       a segment's rows, without the damaged ones
    seals.py      what makes a full segment final: its digests, block by block
    sealer.py     the thread that does that
    writer.py     the thread that writes: groups, one fsync each, failures, rolling over to the next segment
    recovery.py   opening after a crash: what is sound, what is not and where
    rules.py      the [[record]] rules: which topics are kept, and for how long
    retention.py  what is too old, or too much: hidden, then deleted, oldest first
    consumers.py  who reads the log from outside, and is waited for before something is deleted
    ranges.py     ranges of offsets; bounds in time and by publication
    reader.py     a query's page, from segment after segment
    wanted.py     the filters of a query that look at one event
    walks.py      the ways through one segment: along its index, over all offsets, or row by row where it is damaged
    opened.py     a segment open for reading: the questions that can be put to it
    connections.py  those that are open, and which segments are to be believed
    verify.py backup.py purge.py   what operators do with a log
"""
