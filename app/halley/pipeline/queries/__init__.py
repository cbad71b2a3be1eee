"""Queries of the lake.

    sql.py          a query, from its text to its rows; the busiest channels
    statements.py   what a text in SQL asks for, and which statements are refused
    views.py        the tables as queries see them: with channels, names and times
    names.py        channels and names as expressions of Spark's SQL
    plans.py        the conditions on each table in Spark's plan of a query
    conditions.py   conditions on rows as SQL, and the files of a table that can hold such rows
    output.py       rows as a table, CSV, JSON or Parquet
    events.py       events in the order of their offsets, in parts that fit into memory
    replay.py       republishing old events
    report.py       a page with plots
    report_data.py  the figures of that page

Only sql.py, statements.py, views.py and output.py need Spark. Nothing here changes the lake.
"""
