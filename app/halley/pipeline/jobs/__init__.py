"""The jobs: each works in turns, reports its progress after each turn, and can be killed at any time.

    run.py         the progress of jobs, and concurrent jobs in one session, until a signal ends them or one fails
    ingest.py      the log into the table `events`, with compaction of small files during a live ingest
    rollup.py      totals by window of time and channel: into the table `rollups`, and to subscribers
    totals.py      the sums that Spark computes for the rollups
    alerts.py      channels that are busier than usual, or silent: the query that keeps their states
    anomaly.py     the usual rate of a channel, and the alerts about it
    sessions.py    sessions that have ended, from the server's own events
    publishing.py  results published to the server

Why rollups are a loop of their own, and alerts are Structured Streaming: a rollup's window becomes final by the wall
clock even if no channel has an event any more, while Spark's watermark moves only with events; and its open windows
follow from the log, so the table `rollups` alone says where to resume, and there is no checkpoint that could be lost or
disagree with it. What is usual for a channel does not follow from the part of the log that is still to be read: it is
a state of each channel, with timers, and Spark keeps and restores such states well.
"""
