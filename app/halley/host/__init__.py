"""Halley's own host: connections of its own under uvicorn's configuration, and a process.

A connection is a maker of exchanges (`transports/exchange.py`), as `transports/asgi.py` is one for other servers.

| File | What it does |
|---|---|
| `http.py` | an HTTP connection as it is read: bounds, deadlines, and the parser's callbacks |
| `requests.py` | its requests, which are served one after the other; what all connections of a listener serve |
| `peer.py` | the HTTP connection as it is written to: responses, whether they have left, and ways to end it |
| `heads.py` | what the parser accepts of a request's head, and is refused or understood otherwise |
| `repeated.py` | heads that come again, which are not parsed again |
| `websocket.py`, `frames.py`, `deflate.py` | connections that have become WebSockets, and compressed messages |
| `streams.py` | connections whose response stays open: streams of events |
| `tls.py` | TLS below any of them |
| `relay.py`, `relayed.py` | requests of sessions of other nodes of a cluster: sent to them, and received from them |
| `listener.py` | listening sockets, and the servers that accept on them |
| `timeouts.py` | deadlines, counts and turns that all connections of a server share |
| `kernel.py`, `responses.py` | what the kernel has of a connection's bytes; responses as bytes |
| `process.py` | the process: loop, signals, drain, resources, supervisor, what is printed at the start |

Of uvicorn, the host has `Config` and the name of its log. Its connections derive from nothing of uvicorn's; they keep
to the contract by which uvicorn's server makes and closes its own, so that it can serve by them too. The contract is
not documented, so tests/host/test_uvicorn.py tries the oldest and the newest version that `pyproject.toml` allows:

| Of the contract | What it is for |
|---|---|
| `Config.http_protocol_class(config=, server_state=, app_state=)`, maybe `_loop=` | makes a connection |
| `ServerState.connections` | the open connections, which enter and leave by themselves |
| `ServerState.tasks` | the running requests, which a server that shuts down waits for, and then cancels |
| `shutdown()` of a connection | close it: now, or after the response to a running request |

What `Config` says of the access log, of headers for every response and of limits has no effect: the guards of `http.py`
and the log of the server are in their place.
"""
