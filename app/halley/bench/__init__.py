"""The load generator: measures how a Bayeux server behaves under load, and what each unit of work costs it.

In a measurement (`measurement.py`), workers (`worker.py`, led by `coordinator.py`) put a load on a `Target`. The
`Result` can be printed and compared. What measures Halley itself (how its costs grow, a cluster, its other protocols,
its pipeline) is in `tests/bench` and uses the same parts.

The load generator uses servers only over their sockets, so that all servers are treated alike. It must not import the
rooms of the server, and must not decide which figures are good.
"""
