"""`halley demo`: a server, the pipeline, and people, a market and a robot that use it, so that there is much to see.

    demo.py child.py       what is started, and in which order it ends (`beside.py`); one of its processes
    chat.py commuter.py    the traffic, one part in each file, which reconnects by itself (`comeback.py`):
    ticker.py analyst.py   over Bayeux and JSONP, WAMP, NetworkTables
    robot.py driver_station.py
    person.py market.py    what people, market and robot do, without any clock or connection
    drive.py

The traffic uses the server over sockets only.
"""
