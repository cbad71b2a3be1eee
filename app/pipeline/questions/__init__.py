"""What people ask of the lake.

    conditions.py  what a query asks of single columns, and whether a file can hold such rows
    plans.py       the conditions that Spark's plan of a query puts on each table
    skipping.py    the files of a table, and which of them a query needs
    views.py       the tables as queries see them: with channel names and times
    sql.py         a query, from its text to its rows
    answers.py     rows as a table, CSV, JSON or Parquet
    top.py         the busiest channels
    walk.py        events in the order of their offsets, a stretch at a time
    history.py     a channel's events, as `GET /history` writes them
    replay.py      old events, published again
    report.py      a page with plots; its parts are in findings.py and plots.py

Only sql.py and views.py need Spark. Nothing here changes the lake.
"""
