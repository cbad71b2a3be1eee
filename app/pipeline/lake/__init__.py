"""The lake: a folder of Delta tables, one for each kind of rows. None of this needs Spark.

    tables.py      which tables there are and what is in them; opening one, and why one is refused
    days.py        the days by which some are partitioned
    lock.py        who must not be at work at the same time
    staging.py     where files are written that are not yet a part of a table
    statistics.py  what a table's log says of a file
    commit.py      files become a part of a table, in one step with how far its job has come
    upkeep.py compaction.py   few large sorted files instead of many small ones; what nobody names any more is deleted
    verify.py recount.py      whether the tables are what was read from the log, and the rollups what the events say
    forget.py      what a channel or a publisher has left is erased

What a table holds is what its Delta log says. Files that it does not name are left-overs of what was killed, so nobody
looks for files by pattern.
"""
