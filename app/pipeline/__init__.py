"""The data pipeline: reads the log with Spark, keeps a lake of Delta tables, and publishes what it learns.

It runs beside the server, never in it, on one machine or many, and may be killed at any time. There is no state but the
tables': each says by its own version (the *offset* up to which it has read) where its job goes on.

    java.py session.py     the Java that Spark runs on; a session as the pipeline wants it
    doctor.py              what there is, whether it works, and how long each step takes
    source/                the log as a PySpark data source: `spark.read.format("halley")`
    lake/                  the tables: what is in them, how a commit is made, what keeps them small and true
    jobs/                  ingest, rollup, alerts, sessions: what is done over and over
    questions/             what people ask of the lake, and the report

Spark's workers import `source` too, so nothing there may need the driver.
"""
