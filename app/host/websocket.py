"""One WebSocket (RFC 6455) on Halley's own host: what comes is parsed by `websockets`, what goes is written by us.

The transport's protocol is this object from the 101 on; engines know it as their `Link`. A frame that goes to a hundred
peers is made once, so writing it is one call of the transport for each of them, and nothing else. There are no
extensions: what could be won by compressing small messages is paid for in memory and time, for each peer again.

It ends in one of four ways: the peer says so and is echoed; the engine does, and the peer has `kill_s` to echo; the
peer breaks the protocol and is told by which code; or the connection is lost. The engine hears of it once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

from websockets.frames import Opcode
from websockets.protocol import State
from websockets.server import ServerProtocol

from app import telemetry
from app.broker.meters import Meter
from app.host.frames import PING, binary_frame, close_frame, frame, text_frame
from app.host.keep_alive import probe
from app.host.peer import unread_bytes
from app.protocols.links import GOING_AWAY, INTERNAL_ERROR, POLICY_VIOLATION, Close
from app.transports.upgrade import TURN_S

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from websockets.frames import Frame

    from app.host.sockets import Sockets
    from app.protocols.links import Speaker
    from app.transports.head import Head
    from app.transports.upgrade import Pings

_PIECE_BYTES = 16_384
"""Parsed at once: parsed frames are larger than their bytes, and a piece may have very many."""

_FRAGMENT_BYTES = 6
"""Of the smallest fragment's header."""

_INVALID_DATA, _TOO_BIG = 1007, 1009
_log = logging.getLogger("websockets.server")
_log.setLevel(logging.WARNING)  # at debug it writes out all that peers send


class WebSocket(asyncio.Protocol):
    """A peer. `sockets` are what it shares with the others of its family."""

    __slots__ = (
        "_asked_at",
        "_came",
        "_fragments",
        "_has_ended",
        "_has_lost",
        "_head",
        "_heard_at",
        "_meter",
        "_opcode",
        "_parser",
        "_parts",
        "_pinged_at",
        "_pings",
        "_sockets",
        "_speaker",
        "_transport",
        "_unread_bytes",
        "_work",
        "subprotocol",
    )

    kind = "websocket"
    text, binary = staticmethod(text_frame), staticmethod(binary_frame)

    def __init__(self, head: Head, subprotocol: str, sockets: Sockets) -> None:
        family = sockets.family
        self.subprotocol = subprotocol
        self._head = head
        self._sockets = sockets
        self._parser = ServerProtocol(state=State.OPEN, max_size=family.message_bytes, logger=_log)
        self._pings = family.subprotocols[subprotocol]
        self._meter = Meter(family.pings_per_s, max(1, round(family.pings_per_s)))
        self._transport: asyncio.Transport
        self._speaker: Speaker
        self._came: deque[bytes] = deque()  # and is yet to be parsed; b"" stands for the end
        self._work: Iterator[None] | None = None  # what has come is being taken
        self._parts = bytearray()  # of a message in fragments
        self._fragments = 0
        self._opcode = Opcode.TEXT  # of that message
        self._heard_at = monotonic()
        self._asked_at = 0.0  # by the first ping that nothing has come after
        self._pinged_at = 0.0  # where pings are steady
        self._unread_bytes = 0  # when the writes' deadline last came up
        self._has_ended = False  # a close frame, or nothing, is the last that we write
        self._has_lost = False  # the engine knows

    def begin(self, transport: asyncio.Transport, accepted: bytes, rest: bytes) -> None:
        """Take a connection over: say that it is `accepted`, then read on with what has come behind the head."""
        self._transport = transport
        self._speaker = self._sockets.family.switchboard.connect(self, self._head, self._heard_at)
        self._sockets.add(self, self._heard_at)
        transport.set_protocol(self)
        transport.write(accepted)
        if self._pings is None:
            probe(transport)
        if rest:
            self.data_received(rest)

    # Link

    @property
    def backlog_bytes(self) -> int:
        """What has been written and has not left."""
        return self._transport.get_write_buffer_size()

    def answer(self, outcome: list[bytes] | Close) -> None:
        """See `Link`."""
        if self._has_ended:
            return
        if isinstance(outcome, Close):
            self._end(outcome.code, outcome.reason, outcome.frames)
        else:
            self._transport.write(b"".join(outcome))

    # asyncio.Protocol

    def data_received(self, data: bytes) -> None:
        """Frames came, or parts of such."""
        self._came.append(data)
        if self._work is None:
            self._work = self._take_all()
            self._go_on()

    def eof_received(self) -> bool:
        """The peer sends no more, without a farewell: it counts as gone, once all that came before has been taken."""
        self.data_received(b"")
        return True

    def pause_writing(self) -> None:
        """The peer does not keep up with reading."""
        self._unread_bytes = unread_bytes(self._transport)
        self._sockets.watch.writes.watch(self, monotonic())
        if not self._has_ended:
            self._speaker.paused()

    def resume_writing(self) -> None:
        """All that was written has left."""
        self._sockets.watch.writes.forget(self)
        if not self._has_ended:
            self._speaker.resumed(monotonic())

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's form
        """The connection is over."""
        self._came.clear()
        self._sockets.remove(self)
        self._lose()

    # What the sweeper and the server call

    def is_read_from(self) -> bool:
        """Whether the peer has taken anything of what waits for it since this was last asked."""
        before, self._unread_bytes = self._unread_bytes, unread_bytes(self._transport)
        return self._unread_bytes < before

    def cut(self, reason: str) -> None:
        """End the connection without a further byte."""
        self._sockets.watch.cut += 1
        telemetry.log.info("connection_cut", reason=reason, address=self._head.address)
        self._transport.abort()

    def look(self, now: float) -> None:
        """Ask a silent peer whether it is there; end the connection of one that has not answered."""
        pings = self._pings
        if self._has_ended or pings is None:
            return
        if pings.is_steady:
            self._ask_steadily(pings, now)
            return
        if self._heard_at > self._asked_at:
            self._asked_at = 0.0
        if self._asked_at:
            if now - self._asked_at >= pings.pong_s:
                self._fail(INTERNAL_ERROR, "no answer to a ping", "pong_s")
        elif now - self._heard_at >= pings.ping_s:
            self._asked_at = now
            self._transport.write(frame(PING, b""))

    def _ask_steadily(self, pings: Pings, now: float) -> None:
        if self._heard_at > self._asked_at:
            self._asked_at = 0.0
        # A peer that nobody asked is not to blame for its silence: it may be us who stood still.
        was_asked = self._asked_at and now - self._asked_at >= pings.pong_s - pings.ping_s
        if was_asked and now - self._heard_at >= pings.pong_s:
            self._fail(GOING_AWAY, "connection timed out", "pong_s")
        elif now - self._pinged_at >= pings.ping_s:
            self._asked_at = self._asked_at or now
            self._pinged_at = now
            self._transport.write(frame(PING, b""))

    def shutdown(self) -> None:
        """The server leaves; engines have said so to everybody who has a session."""
        self._fail(GOING_AWAY, "the server is leaving")

    # What has come

    def _go_on(self) -> None:
        """Take what has come for the length of a turn; what is left then is taken behind the others' turns."""
        self._heard_at = monotonic()
        try:
            for _ in self._work or ():
                if monotonic() - self._heard_at > TURN_S and not self._transport.is_closing():
                    self._transport.pause_reading()
                    asyncio.get_running_loop().call_soon(self._go_on)
                    return
        except Exception as error:  # noqa: BLE001 - a fault of ours must not end the others' turn
            telemetry.fault("websocket", error)
            self._fail(INTERNAL_ERROR, "internal error")
        self._work = None
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def _take_all(self) -> Iterator[None]:
        """Take what has come, message by message."""
        while self._came:
            data = self._came.popleft()
            if not data:
                self._lose()
                self._transport.close()
            for start in range(0, len(data), _PIECE_BYTES):
                if self._parser.eof_sent:
                    break  # nothing counts that comes behind a farewell
                yield from self._parse(data[start : start + _PIECE_BYTES])

    def _parse(self, data: bytes) -> Iterator[None]:
        parser = self._parser
        parser.receive_data(data)
        for each in cast("list[Frame]", parser.events_received()):  # requests are read elsewhere
            if self._has_ended:
                break
            if each.opcode < Opcode.CLOSE:
                for message in self._messages(each, self._heard_at):
                    self._speaker.receive(message, self._heard_at)
                    yield
            elif each.opcode is not Opcode.CLOSE:
                self._take_control(each, self._heard_at)
        self._answer_frames()

    def _answer_frames(self) -> None:
        """Write what the parser has to say."""
        parser = self._parser
        writes = parser.data_to_send()  # pongs; and a close frame, then b"", once the connection is to end
        if not writes:
            return
        if not self._has_ended:
            self._transport.write(b"".join(writes))
            if parser.close_sent is not None and parser.close_sent.code == _TOO_BIG:
                self._sockets.watch.hits["message_bytes"] += 1
        if parser.eof_sent:
            self._lose()
            if parser.parser_exc is None:
                self._transport.close()
            else:
                self._linger()

    def _messages(self, part: Frame, now: float) -> Iterable[Any]:
        """What the message has that a frame brings to its end; a fragment may bring none."""
        data, opcode = cast(bytes, part.data), part.opcode
        if opcode is Opcode.CONT or not part.fin:
            if opcode is not Opcode.CONT:
                self._opcode = opcode
            self._parts += data
            self._fragments += 1
            if self._fragments * _FRAGMENT_BYTES > self._sockets.family.message_bytes:
                self._fail(_TOO_BIG, "too many fragments", "message_bytes")
            if not part.fin or self._has_ended:
                return ()
            data, opcode = bytes(self._parts), self._opcode
            self._parts, self._fragments = bytearray(), 0
        if opcode is Opcode.TEXT and not data.isascii() and not _is_utf8(data):
            self._fail(_INVALID_DATA, "not UTF-8")
            return ()
        return self._speaker.split(data, now, is_binary=opcode is Opcode.BINARY)

    def _take_control(self, each: Frame, now: float) -> None:
        """A ping, which the parser has answered, or a pong; each costs a token, but for the pong that we wait for."""
        if each.opcode is Opcode.PONG and self._asked_at:
            self._asked_at = 0.0
        elif not self._meter.admits(now):
            self._fail(POLICY_VIOLATION, "too many pings", "pings_per_s")

    # The end

    def _fail(self, code: int, reason: str, limit: str = "") -> None:
        """The peer has done what no engine need hear of, or nothing for too long."""
        if self._has_ended:
            return
        if limit:
            self._sockets.watch.hits[limit] += 1
        self._end(code, reason)
        self._lose()

    def _end(self, code: int, reason: str, frames: list[bytes] | None = None) -> None:
        """Say farewell; the peer has a while to read it and to say the same."""
        self._has_ended = True
        self._parts = bytearray()
        self._transport.write(b"".join((*(frames or ()), close_frame(code, reason))))
        self._sockets.leaving.watch(self, monotonic())

    def _linger(self) -> None:
        """Close to writing, and soon to reading: at once, unread bytes would reset it before the peer has read why."""
        self._sockets.leaving.watch(self, monotonic())
        if self._transport.can_write_eof():
            try:
                self._transport.write_eof()
            except OSError:  # the peer may have reset the connection, and we not heard of it yet
                self._transport.abort()

    def _lose(self) -> None:
        if not self._has_lost:
            self._has_lost = self._has_ended = True
            self._speaker.lost(monotonic())


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
