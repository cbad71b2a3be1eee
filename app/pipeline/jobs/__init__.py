"""What is done over and over: each job takes a turn, says how far it has come, and can be killed at any time.

run.py         jobs side by side in one session, until they are told to end or one fails
progress.py    how far a job has come
ingest.py      the log into the table `events`
tidying.py     few large files of many small ones, beside a live ingest
rollup.py      windows of time added up, by channel: into the table `rollups`, and to subscribers
windows.py     which windows there are, and when they are final
totals.py      what Spark adds up for that
alerts.py      channels that are busier than usual, or silent: the query that remembers them
usual.py       what is usual for a channel, and what is told of it
sessions.py    sessions that have ended, from the server's own events
publishing.py  results on their way to the server
"""
