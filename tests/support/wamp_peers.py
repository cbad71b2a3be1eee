"""WAMP peers without sockets: the router's links keep what is written, and time is moved by argument.

What a peer receives is read with its own serializer, and, where autobahn is installed, by autobahn's parser, which must
accept everything that Halley sends (WD16).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from halley import __version__
from halley.broker.broker import Broker
from halley.broker.policy import DefaultRules
from halley.protocols.contract import Close
from halley.protocols.wamp.authentication import Authentication
from halley.protocols.wamp.names import DEFAULT_REALM
from halley.protocols.wamp.protocol import Router
from halley.protocols.wamp.serializers import Format
from halley.protocols.wamp.state import Environment, Nodes
from halley.settings import Limits, Settings, Wamp
from support.broker import waiting_bytes
from support.wamp import check

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from halley.access.rules import AccessRules
    from halley.protocols.wamp.engine import WampEngine
    from halley.settings import Realm

ROLES: dict[str, Any] = {role: {"features": {}} for role in ("publisher", "subscriber", "caller")}
CAPABLE: dict[str, Any] = {
    "publisher": {"features": {"payload_passthru_mode": True}},
    "subscriber": {"features": {"subscription_revocation": True}},
    "caller": {},
}


class Context:
    """The context of a request that was never made."""

    scheme, path, port = "http", "/wamp", 4_711

    def __init__(self, address: str = "127.0.0.1") -> None:
        self.headers = {"user-agent": "a test"}
        self.address = address


class Waiting:
    """Keeps what an engine waits for. It is never awaited: a test ends each wait with `end`."""

    def __init__(self) -> None:
        self.awaited: deque[tuple[Any, float, Callable[[Any, Exception | None, float], None]]] = deque()

    def __call__(
        self, awaitable: Awaitable[Any], limit_s: float, resume: Callable[[Any, Exception | None, float], None]
    ) -> None:
        self.awaited.append((awaitable, limit_s, resume))

    def end(self, value: Any = None, error: Exception | None = None, now: float = 0.0) -> Any:
        """End the wait that began first; return its awaitable."""
        awaitable, _, resume = self.awaited.popleft()
        resume(value, error, now)
        return awaitable


class FakePolicy:
    """A program's policy (`contract.ProgramDecisions`) that allows everything until a test replaces what decides.

    `listen` is asked about events where `listeners`, or `value_listeners`, is not empty.
    """

    def __init__(self) -> None:
        self.listeners: Sequence[object] = ()
        self.value_listeners: Sequence[object] = ()
        self.listen: Callable[..., None] = lambda *_: None
        self.permit: Callable[..., Any] = lambda *_: True
        self.permit_each: Callable[..., Any] = lambda _verb, patterns, *_: [True] * len(patterns)

    def has_policy(self) -> bool:
        """There is one."""
        return True

    def listens_to(self, topic: str) -> bool:
        """Whether there are any listeners of values."""
        return bool(self.value_listeners)


class World:
    """A broker and a router, on loopback by default."""

    def __init__(
        self,
        *realms: Realm,
        limits: Limits | None = None,
        options: Wamp | None = None,
        rights: DefaultRules | AccessRules | None = None,
        authentication: Authentication | None = None,
        nodes: Nodes | None = None,
    ) -> None:
        self.now = 0.0
        self.broker = Broker(limits or Settings().limits)
        self.broker.clock_offset_s = 1_700_000_000.0
        self.waiting = Waiting()
        self.policy = FakePolicy()
        self.reserved = 1
        options = options or Wamp()
        self.router = Router(
            self.broker,
            options,
            realms or (DEFAULT_REALM,),
            rights or DefaultRules(loopback=True, anonymous_publish=True),
            authentication or Authentication(),
            Environment(
                self._reserve,
                self.waiting,
                self.policy,
                10.0,
                nodes=nodes,
                agent=f"Halley-{__version__}",
            ),
        )

    def _reserve(self) -> int:
        first, self.reserved = self.reserved, self.reserved + 1_000
        return first

    def peer(self, subprotocol: str = "wamp.2.json", address: str = "127.0.0.1") -> Peer:
        """Return a client that has connected."""
        return Peer(self, subprotocol, address)

    def joined(self, realm: str = "realm1", subprotocol: str = "wamp.2.json", **details: Any) -> Peer:
        """Return a client that has a session."""
        peer = self.peer(subprotocol)
        peer.say([1, realm, {"roles": ROLES, **details}])
        welcome = peer.hear()
        assert welcome[0] == 2, welcome
        peer.number, peer.welcome = welcome[1], welcome[2]
        return peer

    def turn(self) -> None:
        """End a turn of the loop: write all that waits."""
        while self.broker.ready or self.broker.ready_later:
            self.broker.flush(self.now)
        assert self.broker.waiting.value == waiting_bytes(self.broker)

    def pass_time(self, seconds: float) -> None:
        """Move the time by `seconds`, then check the deadlines once."""
        self.now += seconds
        self.broker.due(self.now)
        self.router.sweep(self.now)
        self.turn()


class Peer:
    """A client, and its link (`contract.Link`)."""

    kind = "test"

    def __init__(self, world: World, subprotocol: str, address: str) -> None:
        self.world = world
        self.subprotocol = subprotocol
        self.format = Format(subprotocol, lambda message: message, "test")
        self._reader = Format(subprotocol, lambda message: message, "test")
        self.heard: deque[Any] = deque()
        self.closed: tuple[int, str] | None = None
        self.backlog_bytes = 0
        self.writes = 0
        self.number = 0
        self.welcome: dict[str, Any] = {}
        self._requests = 0
        self.engine: WampEngine = world.router.connect(self, Context(address), world.now)

    def text(self, message: bytes) -> bytes:
        """See `Link`."""
        assert not self.format.serializer.is_binary, "text in the place of bytes"
        return message

    def binary(self, message: bytes) -> bytes:
        """See `Link`."""
        assert self.format.serializer.is_binary, "bytes in the place of text"
        return message

    def write(self, outcome: list[bytes] | Close) -> None:
        """See `Link`."""
        assert self.closed is None, "something was said after the end"
        self.writes += 1
        frames = outcome.frames if isinstance(outcome, Close) else outcome
        limits = self.world.broker.limits
        for frame in frames:
            for part in self._reader.split(frame, 1_000):
                message = self.format.serializer.unpack(part, limits)
                check(message)
                self.heard.append(message)
        if isinstance(outcome, Close):
            self.closed = outcome.code, outcome.reason

    def say(self, message: Any, *, turn: bool = True) -> None:
        """Send one message, which may be anything."""
        self.send(self.format.frame(self.format.serializer.pack(message)), turn=turn)

    def send(self, data: bytes, *, turn: bool = True) -> None:
        """Send any bytes."""
        for message in self.engine.split(data, self.world.now, is_binary=self.format.serializer.is_binary):
            self.engine.receive(message, self.world.now)
        if turn:
            self.world.turn()

    def request(self) -> int:
        """Return the next request id."""
        self._requests += 1
        return self._requests

    def hear(self) -> Any:
        """Return the next received message."""
        assert self.heard, "nothing was said"
        return self.heard.popleft()

    def hears_nothing(self) -> bool:
        """Whether no received message is left."""
        return not self.heard

    def subscribe(self, topic: str, **options: Any) -> int:
        """Subscribe; return the subscription's id. Retained events can still be received."""
        request = self.request()
        self.say([32, request, options, topic])
        answer = self.hear()
        assert answer[:2] == [33, request], answer
        number: int = answer[2]
        return number

    def publish(self, topic: str, *payload: Any, **options: Any) -> int:
        """Publish with acknowledgement; return the publication id."""
        request = self.request()
        self.say([16, request, {"acknowledge": True, **options}, topic, *payload])
        number: int = self._answer([17, request])[2]
        return number

    def call(self, procedure: str, *args: Any, **kwargs: Any) -> Any:
        """Call a procedure; return the result's arguments."""
        request = self.request()
        self.say([48, request, {}, procedure, list(args), kwargs])
        answer = self._answer([50, request])
        return answer[3] if len(answer) > 3 else []

    def is_refused(self, message: list[Any]) -> str:
        """Send a request that gets an ERROR; return its URI."""
        self.say(message)
        answer = self._answer([8, message[0], message[1]])
        assert answer[3] == {}
        uri: str = answer[4]
        return uri

    def is_refused_call(self, procedure: str, *args: Any, **kwargs: Any) -> str:
        """Make a call that gets an ERROR; return its URI."""
        return self.is_refused([48, self.request(), {}, procedure, list(args), kwargs])

    def events(self) -> list[Any]:
        """Return the received messages, which must all be events."""
        events = list(self.heard)
        self.heard.clear()
        assert all(event[0] == 36 for event in events), events
        return events

    def _answer(self, beginning: list[Any]) -> Any:
        """Take the one received message that begins so; there may be events before it."""
        answers = [each for each in self.heard if each[: len(beginning)] == beginning]
        assert len(answers) == 1, self.heard
        self.heard.remove(answers[0])
        return answers[0]
