"""The jobs: each works in turns, reports its progress after each turn, and can be killed at any time.

run.py         concurrent jobs in one session, until a signal ends them or one fails
progress.py    the progress of a job
ingest.py      the log into the table `events`
tidying.py     compaction of small files during a live ingest
rollup.py      totals by window of time and channel: into the table `rollups`, and to subscribers
windows.py     which windows there are, and when they are final
totals.py      the sums that Spark computes for the rollups
alerts.py      channels that are busier than usual, or silent: the query that keeps their states
usual.py       the usual rate of a channel, and the alerts about it
writing.py     the part of ingest that Spark's workers do
sessions.py    sessions that have ended, from the server's own events
publishing.py  results published to the server
"""
