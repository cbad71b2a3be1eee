"""Halley's own host: what it adds to uvicorn, as a protocol for HTTP and as a process.

| File | What it does |
|---|---|
| `http.py` | an HTTP connection as it is read: bounds, deadlines, requests one after the other |
| `peer.py` | the same as it is written to: whether responses have left, refusals, ways to end it |
| `bayeux.py` | Bayeux's frequent requests, served where they are parsed |
| `websocket.py`, `tls.py` | connections that have become WebSockets; TLS below either |
| `relay.py`, `relayed.py` | requests of sessions of other nodes of a cluster: sent to them, and received from them |
| `listener.py` | listening sockets, and the servers that accept on them |
| `timeouts.py` | deadlines, counts and turns that all connections of a server share |
| `process.py` | the process: loop, signals, drain, resources, supervisor, what is printed at the start |

Of uvicorn only what turns parsed requests into ASGI calls is used: `HttpToolsProtocol`, with the `Config` and
`ServerState` that it takes. It was not made to be derived from, so its version is bounded in `pyproject.toml`:

| Used beyond its interface | Why |
|---|---|
| `cycle`, `pipeline`, `_start_asgi_task` | requests served without ASGI take turns with those served by it |
| `disconnected` and others of `RequestResponseCycle` | applications learn at once that their peer is gone or refused |
| `_unset_keepalive_if_required`, `timeout_keep_alive_task` | a connection with new bytes is no longer idle |
| `flow`, `parser`, `headers`, `url`, `scope` | a head is checked before its request exists |
| `ServerState`'s sets, replaced by sets that report that they are empty | a server ends with its last connection |
"""
