"""What a connection remembers of the latest POST that it has parsed, so that the next one need not be parsed.

A client sends the same head with each request, except for the digits of its Content-Length, and the same connect,
except for its id. What the guard and the endpoint make of a head depends only on its bytes and on facts that last as
long as the connection: its peer, and the server's settings. So a request needs neither parser nor guard if all of it
was received at once, and if it begins with the bytes of the remembered head and ends with a body of the length that its
own digits say. A connect that differs from the remembered one only in its id needs no JSON parser either. The engine
still looks at each request, since sessions, rights, tokens and draining can change between two requests.

An idle connection keeps what it remembers, and there is no bound on connections: so what a client pads is not
remembered, but parsed again. The connections of proxies share what they remember, with the sessions' ids instead of the
sessions: so none is kept there when it has ended.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import httptools

from halley.broker.remembered import Remembered, bytes_of
from halley.host.heads import head_at
from halley.protocols.bayeux.session import BayeuxSession
from halley.transports.head import Head, Header, fields_of
from halley.transports.routes import Admitted

REMEMBERED_BYTES = 1_536
"""The most that is remembered of a head and a connect: browsers' heads have 900 bytes, with a token 1,300."""

_CONNECT_BYTES = 256
"""The most that is remembered of a connect: usual ones have 150."""

PROXIED_BYTES = 4_000_000
"""The most that is remembered of clients behind proxies: some 1,800 of them, each with about a kilobyte of headers."""

_OBJECTS_BYTES = 600
"""Of the objects of a remembered request, apart from the texts that a client chooses."""

_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([1-9][0-9]*)\r\n", re.IGNORECASE)
_MOST_DIGITS = 9
_ID = re.compile(rb'"id"\s*:\s*"([A-Za-z0-9]{1,64})"')
_CONNECT = {"channel", "clientId", "connectionType", "id"}


class RememberedRequest:
    """A POST that was parsed.

    `prepared` is what its `endpoint` made of its head, `cors` are the guard's headers for its response, and `source`
    are its client's address and scheme. `session_id` is that of a connect of Bayeux that was remembered, else empty,
    and `cookies` what proves that its browser sends it.
    """

    __slots__ = (
        "_digits",
        "_end",
        "_head_bytes",
        "_id_end",
        "_nbytes",
        "_start",
        "cookies",
        "cors",
        "endpoint",
        "prepared",
        "session_id",
        "source",
    )

    def __init__(self, head: bytes, digits: tuple[int, int], admitted: Admitted, source: tuple[str, str]) -> None:
        self._start = head  # with a remembered connect, also its body before the id
        self._head_bytes = len(head)
        self._digits = digits  # where those of Content-Length begin and end
        self._nbytes = len(head) + int(head[digits[0] : digits[1]])  # of a request with these digits
        self._end = b""  # of a remembered connect, the body behind the id
        self._id_end = 0  # of a remembered connect, where its id ends
        self.endpoint = admitted.endpoint
        self.prepared = admitted.prepared
        self.cors = admitted.cors
        self.source = source
        self.session_id = ""
        self.cookies: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, piece: bytes, headers: int, most_bytes: int, admitted: Admitted, source: tuple[str, str]
    ) -> RememberedRequest | None:
        """Remember the head at the beginning of `piece`; `headers` is the number of them that the parser has found.

        Returns None if its end is not certain, or if it would be longer than `most_bytes` or `REMEMBERED_BYTES` with
        other digits. It has one Content-Length.
        """
        end = piece.find(b"\r\n\r\n") + 4
        if end + _MOST_DIGITS > min(most_bytes, REMEMBERED_BYTES):
            return None
        head = piece[:end]
        length = _LENGTH.search(head)
        lines = headers + 2
        if length is None or not head.count(b"\n") == lines == head.count(b"\r\n"):
            return None
        return cls(head, length.span(1), admitted, source)

    def remember_connect(self, body: bytes, messages: Sequence[dict[str, Any]], session: BayeuxSession) -> None:
        """Remember a request with this head, whose connect of this session was held.

        Nothing is remembered if it has other messages or fields than nearly all such requests have, or more bytes.
        """
        if len(body) > _CONNECT_BYTES or self._head_bytes + len(body) > REMEMBERED_BYTES:
            return
        found = _ID.search(body)
        if (
            found is None
            or len(messages) != 1
            or messages[0].keys() != _CONNECT
            or b"\\" in body
            or body.count(b'"id"') != 1
        ):
            return
        begin, end = self._digits
        digits, rest = b"%d" % len(body), self._start[end : self._head_bytes]
        self._start = b"".join((self._start[:begin], digits, rest, body[: found.start(1)]))
        self._end = body[found.end(1) :]
        self._digits = begin, begin + len(digits)
        self._head_bytes = begin + len(digits) + len(rest)
        self._nbytes = self._head_bytes + len(body)
        self._id_end = self._head_bytes + found.end(1)
        self.session_id = session.id
        # The very same object is recognized without comparing it.
        self.cookies = (session.cookie,) if session.cookie in self.prepared.cookies else self.prepared.cookies

    @property
    def head_bytes(self) -> int:
        """The length of the head."""
        return self._head_bytes

    def begins(self, data: bytes) -> bool:
        """Whether a request begins as this one did, up to the id of a remembered connect."""
        return data.startswith(self._start)

    def body_of(self, data: bytes) -> bytes | None:
        """Return the body of a request that is all of `data`, if it has the remembered head; else None."""
        head = self._start if not self.session_id else self._start[: self._head_bytes]
        if len(data) != self._nbytes:
            begin, end = self._digits
            found = data.find(b"\r", begin, begin + _MOST_DIGITS + 1)
            if found < 0:
                return None
            digits = data[begin:found]
            head = b"".join((head[:begin], digits, head[end:]))
            if digits != str(len(data) - len(head)).encode():
                return None
        return data[len(head) :] if data.startswith(head) else None

    def connect_id(self, data: bytes) -> str | None:
        """Return the id of a connect that is all of `data`, if all else in it is as remembered; else None."""
        start, id_end = self._start, self._id_end
        id_begin = len(start)
        if data[:id_begin] != start or data[id_end:] != self._end:
            return None
        message_id = data[id_begin:id_end]
        return message_id.decode() if message_id.isalnum() else None


class ProxiedHeads:
    """The heads of clients behind proxies. A proxy sends each request on any of its connections that is free.

    So what one connection remembers of the request before would seldom be of the same client.
    """

    def __init__(self, most_bytes: int = PROXIED_BYTES) -> None:
        self.known: Remembered[tuple[str, int], tuple[RememberedRequest, int]] = Remembered(
            most_bytes, most_bytes, lambda key, entry: bytes_of(key) + entry[1]
        )

    def remember(self, proxy: str, request: bytes, repeated: RememberedRequest) -> None:
        """Remember the head of a request that came from this address."""
        texts = (*repeated.prepared, repeated.source, repeated.cors)
        nbytes = repeated.head_bytes + _CONNECT_BYTES + _OBJECTS_BYTES + bytes_of(texts)
        self.known.remember(_key_of(proxy, request), (repeated, nbytes))

    def recall(self, proxy: str, request: bytes) -> RememberedRequest | None:
        """Return what may be known of a request that comes from this address; its methods decide whether it is."""
        entry = self.known.get(_key_of(proxy, request))
        return None if entry is None else entry[0]


def _key_of(proxy: str, request: bytes) -> tuple[str, int]:
    """Return a proxy's address, and the hash of a head but for the digits of what is probably its Content-Length."""
    begin = request.find(b"ength: ")
    end = request.find(b"\r", begin)
    return proxy, hash((request[:begin], request[end : request.find(b"\r\n\r\n", end)]))


def head_of(request: bytes, source: tuple[str, str], port: int) -> Head:
    """Parse the head of a request, for hooks and the log; `source` are the client's address and scheme."""
    reader = _Reader()
    parser: Any = httptools.HttpRequestParser(reader)
    parser.feed_data(request)
    return head_at(parser.get_method().decode("ascii"), reader.url, fields_of(reader.headers), source, port)


class _Reader:
    """Receives what the parser finds in a head."""

    def __init__(self) -> None:
        self.url = b""
        self.headers: list[Header] = []

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))
