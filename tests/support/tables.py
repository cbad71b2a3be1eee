"""A stand-in for NetworkTables: engines that echo text and binary messages, and obey some of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from halley.broker.sessions import Outputs
from halley.protocols.contract import GOING_AWAY, POLICY_VIOLATION, Close, WireProtocol
from halley.server.protocols import PROTOCOLS, nt4
from halley.transports.nt4 import nt4_route
from halley.transports.routes import WebSocketEndpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from halley.broker.broker import Broker
    from halley.embed import Halley
    from halley.protocols.contract import Context, Link, Part
    from halley.server.protocols import Common

NEW, OLD, RTT = (f"{name}networktables.first.wpi.edu" for name in ("v4.1.", "", "rtt."))
"""The subprotocols, as clients write them."""

CLOSE, PARTS, SILENT = b"close", b"parts", b"silent"
REASON = "told to"


class Heard(NamedTuple):
    """A message, or one of the parts that a message was split into."""

    data: bytes
    is_binary: bool


class Echo:
    """The engine of one connection, which notes what happens to it."""

    def __init__(self, tables: EchoTables, link: Link, context: Context) -> None:
        self.tables = tables
        self.link = link
        self.context = context
        self.received: list[Heard] = []
        self.steps: list[str] = []  # of splitting a message into parts, and of taking these
        self.lost_times = 0
        self.is_ready = False
        self._outputs: list[list[bytes] | Close] = []

    def say(self, output: list[bytes] | Close) -> None:
        """Have something written at the end of the turn."""
        self._outputs.append(output)
        self.tables.broker.mark_ready(self)

    def flush(self, now: float) -> Outputs:
        """Return what is to be written."""
        outputs, self._outputs = self._outputs, []
        return tuple((self.link, output) for output in outputs)

    def drain(self, now: float) -> None:
        """Close the connection because the server is draining."""
        self.say(Close([], GOING_AWAY, "the server is shutting down"))

    def split(self, data: bytes, now: float, *, is_binary: bool) -> Iterator[Heard]:
        """Yield the message, lazily; `PARTS` becomes three."""
        for part in (b"0", b"1", b"2") if data == PARTS else (data,):
            self.steps.append("split")
            yield Heard(part, is_binary)

    def receive(self, heard: Heard, now: float) -> None:
        """Obey the message, or echo it."""
        self.steps.append("take")
        self.received.append(heard)
        if heard.data == CLOSE:
            self.say(Close([self.link.text(b"bye")], POLICY_VIOLATION, REASON))
        elif heard.data != SILENT:
            self.say([(self.link.binary if heard.is_binary else self.link.text)(heard.data)])

    def paused(self) -> None:
        """See `Engine`."""

    def resumed(self, now: float) -> None:
        """See `Engine`."""

    def lost(self, now: float) -> None:
        """Count the call."""
        self.lost_times += 1


class EchoTables(WireProtocol):
    """A stand-in for `NetworkTables`; `engines` are all that it has made."""

    name = "nt4"

    def __init__(self, broker: Broker) -> None:
        self.engines: list[Echo] = []
        self.swept = 0
        self.broker = broker

    @property
    def last(self) -> Echo:
        """The engine of the latest connection."""
        return self.engines[-1]

    def connect(self, link: Link, context: Context, now: float) -> Echo:
        """See `WireProtocol`."""
        self.engines.append(Echo(self, link, context))
        return self.last

    def sweep(self, now: float) -> None:
        """Count the call."""
        self.swept += 1

    def drain(self, spread_s: float) -> list[Callable[[float], None]]:
        """Return what releases each client."""
        return [engine.drain for engine in self.engines if not engine.lost_times]


def echoes(common: Common) -> Sequence[Part]:
    """Compose `EchoTables` (`halley.server.protocols.Compose`)."""
    tables = EchoTables(common.broker)
    route = nt4_route(tables, common.settings, common.settings.host)
    return tables, WebSocketEndpoint(route, common.guard)


ECHOING = [echoes if each is nt4 else each for each in PROTOCOLS]
"""All protocols, of which NetworkTables only echoes."""


def setup(halley: Halley) -> None:
    """Have a server's NetworkTables only echo; for `--load support.tables:setup`."""
    tables = EchoTables(halley.server.broker)
    protocol = halley.server.protocol("nt4")
    for name in ("connect", "drain"):
        setattr(protocol, name, getattr(tables, name))
