"""The requests of sessions as bytes, which are made once and sent repeatedly, and the mark that each event carries.

The mark says when the event was due, for which group it is, and its number. All marks have the same length, so that a
request's Content-Length is known in advance. They are found in a response by `bytes.find` alone, regardless of how the
server formats the JSON around them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

MARK_TEMPLATE = b"@%019d:%06d:%012d"
"""The due time in ns by the monotonic clock, which all processes of a machine share; group; number within the group."""

MARK = b'"@'
"""How a mark begins, with the quote before it; the slices count from that quote."""

_FILLED = MARK_TEMPLATE % (0, 0, 0)

MARK_BYTES = 41
DUE, GROUP, NUMBER = slice(2, 21), slice(22, 28), slice(29, 41)

ROUND = 1_000_000_000
"""The numbers of each round begin at a multiple of this, so that late events of earlier rounds are recognized."""

HANDSHAKE = b'[{"channel":"/meta/handshake","version":"1.0","supportedConnectionTypes":["long-polling"],"id":"1"}]'

BROWSER_HEADERS = (
    b"Connection: keep-alive\r\n"
    b'sec-ch-ua: "Chromium";v="130", "Not?A_Brand";v="99"\r\n'
    b"sec-ch-ua-mobile: ?0\r\n"
    b'sec-ch-ua-platform: "Linux"\r\n'
    b"User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/130.0.0.0 "
    b"Safari/537.36\r\n"
    b"Accept: */*\r\n"
    b"Origin: http://%(host)b\r\n"
    b"Sec-Fetch-Site: same-origin\r\n"
    b"Sec-Fetch-Mode: cors\r\n"
    b"Sec-Fetch-Dest: empty\r\n"
    b"Referer: http://%(host)b/app/index.html\r\n"
    b"Accept-Encoding: gzip, deflate, br, zstd\r\n"
    b"Accept-Language: en-GB,en;q=0.9\r\n"
)
"""The headers that Chromium sends with a request from a page of the same origin."""


def channel_name(number: int) -> str:
    """Return the name of a channel of the bench; all names have the same length."""
    return f"/bench/{number:06d}"


def event_data(data_bytes: int) -> dict[str, object]:
    """Return the data of an event, with a mark that `template` will find."""
    return {"mark": _FILLED.decode(), "pad": "x" * data_bytes}


def template(request: bytes) -> bytes:
    """Return a request for formatting with `%`, which replaces channel 0 and the mark of each event in it."""
    escaped = request.replace(b"%", b"%%")
    return escaped.replace(channel_name(0).encode(), b"/bench/%06d").replace(_FILLED, MARK_TEMPLATE)


class Requests:
    """Makes requests to a server's `path`, with `host` as Host header, and optionally a token and browser headers.

    All names of channels end with `ending`, such as "/x", so that patterns can match a single one.
    """

    def __init__(self, host: str, path: str, *, token: str | None, browser_headers: bool, ending: str = "") -> None:
        self.headers = f"Host: {host}\r\nContent-Type: application/json\r\n".encode()
        self.headers += BROWSER_HEADERS % {b"host": host.encode()} if browser_headers else b""
        if token is not None:
            self.headers += f"Authorization: Bearer {token}\r\n".encode()
        self._head = f"POST {path} HTTP/1.1\r\n".encode() + self.headers
        self._ending = ending

    def handshake(self) -> bytes:
        """Return a handshake, the only request without a session."""
        return self._request(HANDSHAKE, b"")

    def subscribe(self, client_id: str, cookie: bytes, channels: Sequence[int], patterns: int = 0) -> bytes:
        """Return a subscription to some channels and a number of patterns: two match the first channel, others none."""
        names = [channel_name(number) + self._ending for number in channels]
        endings = ("*", "**", *(f"{number:06d}/**" for number in range(2, patterns)))
        names += [f"{channel_name(channels[0])}/{each}" for each in endings[:patterns]]
        wanted: object = names[0] if len(names) == 1 else names
        message = {"channel": "/meta/subscribe", "clientId": client_id, "subscription": wanted, "id": "2"}
        return self._request(_body(message), cookie)

    def connect(self, client_id: str, cookie: bytes, *, is_held: bool) -> bytes:
        """Return a poll; one that is not held only keeps the session alive."""
        message: dict[str, object] = {
            "channel": "/meta/connect",
            "clientId": client_id,
            "connectionType": "long-polling",
            "id": "3",
        }
        return self._request(_body(message if is_held else message | {"advice": {"timeout": 0}}), cookie)

    def publish_template(self, client_id: str, cookie: bytes, data_bytes: int, batch: int) -> bytes:
        """Return a request of `batch` publishes, to be filled for each with a channel number and `MARK_TEMPLATE`'s."""
        channel, data = channel_name(0) + self._ending, event_data(data_bytes)
        message: dict[str, object] = {"channel": channel, "clientId": client_id, "data": data, "id": "4"}
        body = _body(*[message] * batch)
        return template(self._request(body, cookie))

    def _request(self, body: bytes, cookie: bytes) -> bytes:
        cookies = b"Cookie: %b\r\n" % cookie if cookie else b""
        return b"%b%bContent-Length: %d\r\n\r\n%b" % (self._head, cookies, len(body), body)


def _body(*messages: dict[str, object]) -> bytes:
    return json.dumps(messages, separators=(",", ":")).encode()
