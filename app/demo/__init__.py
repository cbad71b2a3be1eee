"""`halley demo`: a server, the pipeline, and people, a market and a robot that use it, so that there is much to see.

    demo.py         what is started, in which order it ends, and how the traffic reconnects
    chat.py         people over Bayeux, one of them on an old page with JSONP (`script_page.py`)
    market.py       a ticker and an analyst over WAMP, and a commuter who polls rarely
    robot.py        a robot and its driver station over NetworkTables

The traffic uses the server over sockets only.
"""
