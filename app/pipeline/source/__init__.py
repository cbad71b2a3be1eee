"""The log as a PySpark data source: `spark.read.format("halley").load("halley-data")`, batch and streaming.

    source.py      the data source: options, partitions, what is pushed down, offsets of a stream
    columns.py     the columns, for Spark and for Arrow, and those that are lifted from payloads
    log.py         the interface of a log: its head, its rows, and the offsets without a row
    folder_log.py  the log in a data folder on this machine, also while a server writes it
    http_log.py    a server's log, over `GET /log`

Ranges of offsets are half-open here: [first, until). Spark's workers import all of these modules.
"""
