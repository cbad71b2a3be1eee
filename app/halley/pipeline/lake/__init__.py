"""The lake: a folder, or a place in an object store, with Delta tables, one for each kind of rows. Nothing needs Spark.

    place.py   where a lake is, and what is done with files in a store
    shapes.py  the columns and the layout of each table; windows and days
    tables.py  opening and making a table, and the reasons to refuse one; its files,
               and whether they are still what was committed
    sources.py the logs of a lake, their names, and from which of them rows are
    dictionary.py  what tables and columns mean
    locks.py   locks between processes that must not work at the same time
    files.py   writing files with their statistics, apart from the tables
    commit.py  adding files to a table, in one step with the position of its job
    upkeep.py  few large sorted files instead of many small ones, and vacuum
    verify.py  whether the tables agree with the log, and the rollups with the events
    forget.py  erasing the events of a channel or a publisher

A table's content is what its Delta log says. Files that the log does not name are left over from killed processes, so
files are never found by a name pattern.
"""
