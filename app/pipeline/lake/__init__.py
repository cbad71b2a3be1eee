"""The lake: a folder of Delta tables, one for each kind of rows. Nothing here needs Spark.

    tables.py      the tables and their columns; opening one, and the reasons to refuse one
    days.py        the days by which some tables are partitioned
    lock.py        locks between processes that must not work at the same time
    staging.py     folders for files that are not yet a part of a table
    statistics.py  the statistics of a file in a table's log
    commit.py      adding files to a table, in one step with the position of its job
    soundness.py   whether a table's files are still what was committed
    upkeep.py compaction.py   few large sorted files instead of many small ones, and vacuum
    verify.py recount.py      whether the tables agree with the log, and the rollups with the events
    forget.py      erasing the events of a channel or a publisher

A table's content is what its Delta log says. Files that the log does not name are left over from killed processes, so
files are never found by a name pattern.
"""
