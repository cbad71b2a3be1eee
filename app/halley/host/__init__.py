"""Halley's own host: connections of its own under uvicorn's configuration, and a process.

| File | What it does |
|---|---|
| `http.py` | an HTTP connection as it is read: bounds, deadlines, requests one after the other |
| `peer.py` | the same as it is written to: whether responses have left, refusals, ways to end it |
| `asgi.py` | a request that an ASGI application answers |
| `bayeux.py`, `repeated.py` | Bayeux's frequent requests, served where they are parsed, or without parsing |
| `websocket.py`, `frames.py` | connections that have become WebSockets |
| `tls.py` | TLS below either |
| `relay.py`, `relayed.py` | requests of sessions of other nodes of a cluster: sent to them, and received from them |
| `listener.py` | listening sockets, and the servers that accept on them |
| `timeouts.py` | deadlines, counts and turns that all connections of a server share |
| `kernel.py`, `responses.py` | what the kernel has of a connection's bytes; responses as bytes |
| `process.py` | the process: loop, signals, drain, resources, supervisor, what is printed at the start |

Of uvicorn, `Config` and `ServerState` are used, and the way in which its server makes connections and closes them
(`http.py`): nothing that is private to it, and no class to derive from.
"""
