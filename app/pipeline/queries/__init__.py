"""Queries of the lake.

    conditions.py  conditions on single columns, and whether a file can hold rows that meet them
    plans.py       the conditions on each table in Spark's plan of a query
    skipping.py    the files of a table, and those that a query needs
    views.py       the tables as queries see them: with channel names and times
    sql.py         a query, from its text to its rows
    answers.py     the output of rows as a table, CSV, JSON or Parquet
    top.py         the busiest channels
    walk.py        events in the order of their offsets, in parts that fit into memory
    history.py     a channel's events, as `GET /history` writes them
    replay.py      republishing old events
    report.py      a page with plots; its parts are in report_data.py and plots.py

Only sql.py and views.py need Spark. Nothing here changes the lake.
"""
