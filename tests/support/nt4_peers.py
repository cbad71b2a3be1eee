"""NetworkTables clients without sockets: the server's links keep what is written, and time is moved by argument.

What a client receives is checked for what every real one relies on (NA37): a topic is announced before its first value
and has none after its unannounce.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

import msgpack
import orjson

from halley.broker.broker import Broker
from halley.broker.policy import DefaultRules
from halley.protocols.contract import Close
from halley.protocols.nt4.names import V41
from halley.protocols.nt4.protocol import NetworkTables
from halley.settings import Limits, Nt4
from support.wamp_peers import FakePolicy, Waiting

if TYPE_CHECKING:
    from collections.abc import Callable

    from halley.broker.policy import Rights

NOW_S = 100.0
WALL_S = 1_700_000_000.0
NOW_US = int((NOW_S + WALL_S) * 1_000_000)
PERIOD_S = 0.1
"""The period of a subscription that does not set one."""


class Frame(NamedTuple):
    """A frame that a link was given to write."""

    is_binary: bool
    message: bytes


class Framed(bytes):
    """A message as this link writes it.

    Links of foreign servers recognize it by its class, so several must not be joined.
    """


_TEXT, _BINARY = b"\0T", b"\0B"


class FakeLink:
    """A link that keeps what is written. It is also the request that began the connection."""

    kind = "fake"
    scheme, port = "http", 4_711

    def __init__(self, path: str, subprotocol: str, address: str) -> None:
        self.path = path
        self.subprotocol = subprotocol
        self.address = address
        self.headers = {"user-agent": "a test"}
        self.backlog_bytes = 0
        self.frames: list[Frame] = []
        self.writes = 0  # the number of calls that wrote to it
        self.close: Close | None = None

    def text(self, message: bytes) -> bytes:
        """See `Link`."""
        return Framed(b"%b%d:%b" % (_TEXT, len(message), message))

    def binary(self, message: bytes) -> bytes:
        """See `Link`."""
        return Framed(b"%b%d:%b" % (_BINARY, len(message), message))

    def write(self, outcome: list[bytes] | Close) -> None:
        """See `Link`."""
        assert self.close is None, "written to behind a close"
        if isinstance(outcome, Close):
            self.close = outcome
            outcome = outcome.frames
        else:
            self.writes += 1
        assert all(isinstance(each, Framed) for each in outcome), "not as the link made it"
        data = b"".join(outcome)
        while data:
            kind, (size, _, rest) = data[:2], data[2:].partition(b":")
            self.frames.append(Frame(kind == _BINARY, rest[: int(size)]))
            data = rest[int(size) :]


class World:
    """A broker and a NetworkTables server, on loopback by default. `waiting` has what engines wait for."""

    def __init__(
        self,
        *,
        limits: Limits | None = None,
        rights: Rights | None = None,
        permission: Callable[..., Any] | None = None,
        **options: Any,
    ) -> None:
        self.now = NOW_S
        self.broker = Broker(limits or Limits())
        self.broker.clock_offset_s = WALL_S
        self.waiting = Waiting()
        policy = FakePolicy()
        if permission is not None:
            policy.permit_each = permission
        self.server = NetworkTables(
            self.broker,
            Nt4(enabled=True, **options),
            rights or DefaultRules(loopback=True, anonymous_publish=True),
            policy,
            self.waiting,
            10.0,
        )
        self.broker.values.keep_in(self.server.bridge)
        self.tables = self.server.tables
        self.broker.account_of = lambda address: None if address.startswith("127.") else address

    def peer(self, name: str = "c", *, subprotocol: str = V41, address: str = "127.0.0.1") -> Peer:
        """Return a client that has connected."""
        return Peer(self, f"/nt/{name}", subprotocol, address)

    def flush(self) -> None:
        """End a turn of the loop."""
        while self.server.due <= self.now:
            self.server.turn(self.now)
        self.broker.flush(self.now)

    def after(self, seconds: float) -> None:
        """Move the time by `seconds`, and do what is due in between."""
        until = self.now + seconds
        self.flush()
        while self.server.due <= until:
            self.now = max(self.now, self.server.due)
            self.flush()
        self.now = until
        self.flush()


class Peer:
    """A client of NetworkTables."""

    def __init__(self, world: World, path: str, subprotocol: str, address: str) -> None:
        self.world = world
        self.link = FakeLink(path, subprotocol, address)
        self.engine = world.server.connect(self.link, self.link, world.now)
        self.names: dict[int, str] = {}  # of topics, by their announced ids
        self._subuids = count(1_000)

    @property
    def close(self) -> Close | None:
        """The close that the server has sent, if it has."""
        self.world.flush()
        return self.link.close

    # Sending

    def send(self, data: bytes | list[Any] | str) -> None:
        """Send one message: bytes as binary, anything else as text."""
        raw = data if isinstance(data, bytes) else data.encode() if isinstance(data, str) else orjson.dumps(data)
        for message in self.engine.split(raw, self.world.now, is_binary=isinstance(data, bytes)):
            self.engine.receive(message, self.world.now)

    def say(self, method: str, **params: Any) -> None:
        """Send one text message."""
        self.send([{"method": method, "params": params}])

    def publish(self, name: str, pubuid: int, type_name: str = "double", **properties: Any) -> None:
        """Begin to publish a topic."""
        self.say("publish", name=name, pubuid=pubuid, type=type_name, properties=properties)

    def subscribe(self, *topics: str, subuid: int | None = None, **options: Any) -> None:
        """Subscribe to topics, by their exact names unless `prefix` is set."""
        subuid = next(self._subuids) if subuid is None else subuid
        self.say("subscribe", topics=topics, subuid=subuid, options=options)

    def put(self, *values: tuple[int, int, int, Any]) -> None:
        """Send values in one message: each is pubuid, time, type, value."""
        self.send(b"".join(msgpack.packb(value) for value in values))

    # Receiving

    def take(self) -> list[Any]:
        """Return the received messages: texts as (method, params), values as (name, time, type, value)."""
        self.world.flush()
        frames, self.link.frames = self.link.frames, []
        heard: list[Any] = []
        for is_binary, message in frames:
            heard += self._values(message) if is_binary else self._texts(message)
        return heard

    def values(self) -> list[tuple[str, int, int, Any]]:
        """Return the received values."""
        return [each for each in self.take() if len(each) == 4]

    def texts(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the received texts."""
        return [each for each in self.take() if len(each) == 2]

    def plain(self) -> list[Any]:
        """Return the received values, without name, time and type."""
        return [value[3] for value in self.values()]

    def _texts(self, message: bytes) -> list[Any]:
        heard = []
        for each in orjson.loads(message):
            method, params = each["method"], each["params"]
            if method == "announce":
                assert self.names.get(params["id"], params["name"]) == params["name"]
                self.names[params["id"]] = params["name"]
            elif method == "unannounce":
                assert self.names.pop(params["id"]) == params["name"], "unannounced twice, or never announced"
            heard.append((method, params))
        return heard

    def _values(self, message: bytes) -> list[Any]:
        unpacker = msgpack.Unpacker()
        unpacker.feed(message)
        heard = []
        for ident, time_us, number, value in unpacker:
            assert ident == -1 or ident in self.names, "a value of a topic that it was not told of"
            heard.append((self.names.get(ident, ""), time_us, number, value))
        assert unpacker.tell() == len(message)
        return heard
