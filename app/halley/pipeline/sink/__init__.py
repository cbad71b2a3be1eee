"""The way back: rows of a query become events, `df.writeStream.format("halley")` and `df.write.format("halley")`.

    rows.py    a DataFrame's rows as events: which columns there are, and their values as JSON
    writer.py  the writers of the data source: options, keys, what is published, and what is done about refused rows

Tasks only prepare events; the driver publishes them when all tasks of a batch have succeeded. So a task that is
repeated publishes nothing twice, a batch's events are published in one order by one session, only the driver uses the
token, and how far a batch has come is one number.
"""
