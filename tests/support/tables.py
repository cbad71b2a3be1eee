"""Tables that know no NetworkTables: engines that echo text and binary, and do what some messages say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

from app.protocols.links import GOING_AWAY, POLICY_VIOLATION, Close

if TYPE_CHECKING:
    from collections.abc import Iterator

    from app.embed import Halley
    from app.networktables import NetworkTables
    from app.protocols.links import Context, Link

NEW, OLD, RTT = (f"{name}networktables.first.wpi.edu" for name in ("v4.1.", "", "rtt."))
"""The subprotocols, as clients write them."""

CLOSE, PARTS, SILENT = b"close", b"parts", b"silent"
REASON = "told to"


class Heard(NamedTuple):
    """A message, or one of the parts that one was split into."""

    data: bytes
    is_binary: bool


class Echo:
    """One connection's engine. What happened to it is there to be looked at."""

    def __init__(self, tables: EchoTables, link: Link, context: Context) -> None:
        self.tables = tables
        self.link = link
        self.context = context
        self.received: list[Heard] = []
        self.steps: list[str] = []  # of splitting a message into parts, and of taking these
        self.lost_times = 0

    def split(self, data: bytes, now: float, *, is_binary: bool) -> Iterator[Heard]:
        """Lazily; the message that asks for it becomes three."""
        for part in (b"0", b"1", b"2") if data == PARTS else (data,):
            self.steps.append("split")
            yield Heard(part, is_binary)

    def receive(self, heard: Heard, now: float) -> None:
        """Do as told, or say the same."""
        self.steps.append("take")
        self.received.append(heard)
        if heard.data == CLOSE:
            self.tables.say(self.link, Close([self.link.text(b"bye")], POLICY_VIOLATION, REASON))
        elif heard.data != SILENT:
            self.tables.say(self.link, [(self.link.binary if heard.is_binary else self.link.text)(heard.data)])

    def paused(self) -> None:
        """See `Speaker`."""

    def resumed(self, now: float) -> None:
        """See `Speaker`."""

    def lost(self, now: float) -> None:
        """Note it."""
        self.lost_times += 1


class EchoTables:
    """They stand where NetworkTables' own would; `engines` are all that they made."""

    def __init__(self, halley: Halley) -> None:
        self.engines: list[Echo] = []
        self.swept = 0
        assert halley.house.tables is not None
        self.server = halley.house.tables.server  # for /metrics
        self._broker = halley.house.broker
        self._outcomes: list[tuple[Link, list[bytes] | Close]] = []

    @property
    def last(self) -> Echo:
        """The engine of the latest connection."""
        return self.engines[-1]

    def connect(self, link: Link, context: Context, now: float) -> Echo:
        """See `Switchboard`."""
        self.engines.append(Echo(self, link, context))
        return self.last

    def say(self, link: Link, outcome: list[bytes] | Close) -> None:
        """Engines' answers are asked for a turn later."""
        self._outcomes.append((link, outcome))
        self._broker.wake()

    def work(self) -> bool:
        """Nothing takes long."""
        return False

    def answers(self, now: float) -> list[tuple[Link, list[bytes] | Close]]:
        """What is to be written."""
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def open(self) -> None:
        """There is nothing to bring back."""

    async def close(self) -> None:
        """There is nothing to save."""

    def sweep(self, now: float) -> None:
        """Count it."""
        self.swept += 1

    def drain(self) -> list[Echo]:
        """Those to release."""
        return [engine for engine in self.engines if not engine.lost_times]

    def release(self, engine: Any, now: float) -> None:
        """Send one away."""
        self.say(engine.link, Close([], GOING_AWAY, "the server is shutting down"))


def setup(halley: Halley) -> None:
    """For `--load support.tables:setup`."""
    halley.house.speak_nt4(cast("NetworkTables", EchoTables(halley)))
