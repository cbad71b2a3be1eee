"""The data pipeline: reads the log with Spark, keeps a lake of Delta tables, and publishes what it learns.

The pipeline runs next to the server, never in its process, on one machine or many, and may be killed at any time. The
tables hold all of its state: a version in each table (the *offset* up to which its job has read) says where the job
resumes.

    java.py session.py     the Java that Spark runs on, and the archive of its classes; a Spark session with the
                           pipeline's settings
    doctor.py              which requirements are met, and how long each check takes
    portions.py            rows in portions that fit into memory, however large their payloads are
    source/                the log as a PySpark data source: `spark.read.format("halley")`
    sink/                  the way back: `df.writeStream.format("halley")`
    lake/                  the tables: their contents, commits, compaction and verification
    jobs/                  ingest, rollup, alerts, sessions: the work that is repeated
    queries/             queries of the lake, and the report
    project/               a project for `spark-pipelines`, as `halley pipeline init` writes it

Spark's workers import `source` and `sink` too, so nothing in it may need the driver.
"""
