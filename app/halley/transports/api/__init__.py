"""The HTTP APIs besides Bayeux, the pages, and the listener for operations.

| Path | Methods | File |
|---|---|---|
| `/history/CHANNEL` | GET, HEAD | `history.py` |
| `/log`, `/log/head` | GET, HEAD | `log.py` |
| `/log/purge` | POST | `log.py` |
| `/log/consumers/NAME` | POST, DELETE | `log.py` |
| `/rights` | GET, HEAD | `application.py` |
| the files of `static/` | GET, HEAD | `pages.py` |
| `/health/live`, `/health/ready`, `/metrics`, `/cluster`, on a port of their own | GET, HEAD | `operations.py` |

`application.py` has the routes of the APIs, and the endpoint that runs one: it finds the log (`archive.py`) and the
caller's identity (`identity.py`). What an API uses is in `parameters.py` and `responses.py`.
"""
