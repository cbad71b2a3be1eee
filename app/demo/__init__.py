"""`halley demo`: a server, the pipeline, and people, a market and a robot that use it, so that there is much to see.

    demo.py child.py       what is started, and in which order it ends (`beside.py`); a process of ours
    chat.py commuter.py    the traffic, a piece a file, which comes back by itself (`comeback.py`):
    ticker.py analyst.py   Bayeux and JSONP, WAMP, NetworkTables
    robot.py driver_station.py
    person.py market.py    what goes on there, without any clock or connection
    drive.py

It speaks to the server over sockets only.
"""
