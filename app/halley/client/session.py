"""The client's session: begun by a handshake, kept by polling, and replaced when the server has lost it.

One task, `run`, does all polls, and all handshakes but the first, so there is never more than one connect (Bayeux 1.0,
4.2). With the acknowledge extension each connect has the number of the last batch that was received. The events of a
lost response are in the next one, and none of them is a duplicate: a response is used only once it is complete.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any

from halley.client.errors import ClientError, Dismissed, OutcomeUnknown, Refused, Unreachable
from halley.client.messages import (
    JSON,
    Advice,
    Event,
    Incoming,
    batch_of,
    encode,
    error_of,
    gaps_of,
    log_of,
    positions_of,
    text_of,
)
from halley.client.wire import Wire

ONLY_NEW, ALL = -1, -2
"""Positions to begin from: only events that are published from now on, or all events in the history."""

SESSION_UNKNOWN = "402:"
_REPLAY_REFUSED = "400::The replayId"

_POLLS = {"/meta/handshake", "/meta/connect"}
"""What `run` alone sends, one at a time: events come with the replies."""

_HANDSHAKE = {
    "channel": "/meta/handshake",
    "version": "1.0",
    "minimumVersion": "1.0",
    "ext": {"ack": True, "replay": {"in_data": False}},
}


class ConnectionEvent(Enum):
    """A change of the connection to the server."""

    LOST = "lost"  # the client tries to reconnect
    RESUMED = "resumed"  # connected again, and the server has kept the events published in the meantime
    RENEWED = "renewed"  # in a new session, subscribed as before: events published in the meantime may be missing
    MISSED = "missed"  # the connection is fine, but the history no longer has events that the client had yet to receive
    REVOKED = "revoked"  # the connection is fine, but the server has ended a subscription: rules no longer allow it


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long a client waits, in seconds; the defaults are those of cometd.js where it has any.

    answer_s        for the result of any request but a poll, including all tries
    network_s       for a poll's response, in addition to the hold that the server has announced
    backoff_s       before the first try after a failure; each further one waits this much longer
    most_backoff_s  before a try, at most
    nudge_s         between the requests that keep the session alive while the program does not read
    goodbye_s       for the reply to the disconnect
    """

    answer_s: float = 30.0
    network_s: float = 10.0
    backoff_s: float = 1.0
    most_backoff_s: float = 60.0
    nudge_s: float = 4.0
    goodbye_s: float = 5.0

    def backoff(self, failures: int) -> float:
        """The pause in seconds after N failures in a row; up to a quarter longer at random, to spread clients."""
        return min(self.backoff_s * failures, self.most_backoff_s) * random.uniform(1.0, 1.25)  # noqa: S311 - no secret


class Inbox:
    """The received events that the program has not read yet: `bound` of them, which `put_now` can exceed.

    It can be ended, as `asyncio.Queue` cannot before Python 3.13.
    """

    def __init__(self, bound: int) -> None:
        self._events: deque[Event] = deque()
        self._bound = bound
        self._has_events = asyncio.Event()
        self._has_room = asyncio.Event()
        self._end: BaseException | None = None

    async def put(self, event: Event) -> None:
        """Wait until there is room, and add an event. If this is cancelled, the event has not been added."""
        while len(self._events) >= self._bound:
            self._has_room.clear()
            await self._has_room.wait()
        self.put_now(event)

    def put_now(self, event: Event) -> None:
        """Add an event, whether there is room or not."""
        self._events.append(event)
        self._has_events.set()

    async def get(self) -> Event:
        """Return the oldest event. After `end` and the last event, raises its error or `StopAsyncIteration`."""
        await self._wait_for_events()
        self._has_room.set()
        return self._events.popleft()

    async def get_all(self) -> list[Event]:
        """Return all queued events, at least one. After `end` and the last event, raises the same as `get`."""
        await self._wait_for_events()
        self._has_room.set()
        events = [*self._events]
        self._events.clear()
        return events

    async def _wait_for_events(self) -> None:
        while not self._events:
            if self._end is not None:
                raise self._end
            self._has_events.clear()
            await self._has_events.wait()

    def end(self, error: BaseException | None) -> None:
        """End the queue: no more events will be added. `error` is the reason; None if the program closed the client."""
        self._end = error or StopAsyncIteration()
        self._has_events.set()


class ReplayPositions:
    """The positions reached in the server's history, by pattern, from which the next session resumes.

    Each connect reply of a server with replay has them ("Replay" in `halley/protocols/bayeux/README.md`). Positions
    belong to one log. If the server has another log by now, or has deleted the next events, the client continues with
    the events that are left and reports that some are missing. Without replay there are no positions.
    """

    def __init__(self) -> None:
        self._log: str | None = None
        self._positions: dict[str, int] = {}
        self.is_whole = False  # whether no event was missed between the previous session and this one

    def greet(self, handshake_reply: JSON) -> None:
        """Begin a new session. Positions in another log are replaced by `ONLY_NEW`."""
        log = log_of(handshake_reply)
        self.is_whole = log is not None and log == self._log
        if log is None:
            self._positions.clear()
        elif log != self._log:
            self._positions = dict.fromkeys(self._positions, ONLY_NEW)
        self._log = log

    def note(self, reply: JSON) -> None:
        """Store the positions in a reply, if it has any."""
        for pattern, position in positions_of(reply, "replay").items():
            self._positions[pattern] = max(position, self._positions.get(pattern, ONLY_NEW))

    def forget(self, pattern: str) -> None:
        """Drop the position of a pattern that is subscribed to again, or unsubscribed from."""
        self._positions.pop(pattern, None)

    def ext(self, patterns: dict[str, None]) -> dict[str, Any]:
        """Return the fields for a subscribe that renews all `patterns`: `{"ext": ...}`, or an empty dictionary."""
        known = {pattern: self._positions[pattern] for pattern in patterns if pattern in self._positions}
        self.is_whole = self.is_whole and len(known) == len(patterns)
        return {"ext": {"replay": known, "replay_log": self._log}} if known else {}

    def fall_back(self, refusal: JSON) -> bool:
        """Handle the refusal of a renewed subscribe; True if it should be tried again.

        Patterns whose next events the history has deleted then begin with all events that are left.
        """
        starts = positions_of(refusal, "replay_start")
        removed = {
            pattern for pattern, position in self._positions.items() if 0 <= position < starts.get(pattern, 0) - 1
        }
        self._positions.update(dict.fromkeys(removed, ALL))
        self.is_whole = False
        return bool(removed)


class Session:
    """One client's session at a server, and those that replace it. `patterns` are the subscriptions of all of them."""

    def __init__(
        self, wire: Wire, inbox: Inbox, timeouts: Timeouts, on_link: Callable[[ConnectionEvent, str], None] | None
    ) -> None:
        self.client_id: str | None = None
        self.patterns: dict[str, None] = {}  # a set that keeps the order of subscribing
        self.positions = ReplayPositions()
        self.ids = map(str, itertools.count(1))
        self._wire = wire
        self._inbox = inbox
        self._timeouts = timeouts
        self._on_link = on_link
        self._advice = Advice()
        self._batch: int | None = None  # the last batch received; None without the acknowledge extension
        self._is_first_connect = True  # of the session, or after a failure: the server should reply immediately
        self._lost_id: str | None = None  # the session that was lost, until the connection is restored
        self._error: Exception | None = None
        self._is_known = asyncio.Event()  # set if there is a session, or there will not be another
        self._is_needed = asyncio.Event()  # set to interrupt the pause before the next try

    # Used by the client

    async def begin(self) -> None:
        """Handshake, and subscribe to all patterns again. Raises `ClientError`.

        Where the server acknowledges no events, they could be lost over a WebSocket, or come faster than they are read.
        """
        await self._wire.open(self._timeouts.answer_s)
        handshake = {**_HANDSHAKE, "supportedConnectionTypes": self._wire.connection_types}
        reply, incoming = await self._request(handshake, self._timeouts.answer_s)
        advice = Advice.read(reply)
        self._advice = advice or self._advice
        error = error_of(reply)
        if error is not None:
            raise Refused(error, is_final=advice is None or advice.reconnect not in ("retry", "handshake"))
        client_id = text_of(reply.get("clientId"))
        if not client_id:
            raise OutcomeUnknown(f"no clientId in the handshake reply of {self._wire.name}")
        self._batch = batch_of(reply)
        if self._batch is None and await self._wire.avoid_socket():
            await self.begin()
            return
        self.positions.greet(reply)
        if self.patterns:
            await self._subscribe_again(client_id)
        self._is_first_connect = True
        self.client_id = client_id
        self._is_known.set()
        for event in incoming.events:  # without waiting for room: the program may not have begun to read
            self._inbox.put_now(event)

    async def _subscribe_again(self, client_id: str) -> None:
        again = {"channel": "/meta/subscribe", "clientId": client_id, "subscription": [*self.patterns]}
        while True:
            reply, _ = await self._request({**again, **self.positions.ext(self.patterns)}, self._timeouts.answer_s)
            error = error_of(reply)
            if error is None:
                self.positions.note(reply)
                return
            if not error.startswith(_REPLAY_REFUSED) or not self.positions.fall_back(reply):
                raise Refused(error, is_final=not error.startswith(SESSION_UNKNOWN))

    async def run(self) -> None:
        """Poll, and reconnect after every failure, until the task is cancelled or another try cannot succeed.

        The error is then raised by all calls that wait for an event or for the session.
        """
        try:
            await self._poll_forever()
        except Exception as error:  # noqa: BLE001 - an error in this code must also reach the program that waits
            self.client_id = None
            self._finish(error)

    def _finish(self, error: Exception | None) -> None:
        self._error = error or Unreachable("the client has been closed")
        self._inbox.end(error)
        self._is_known.set()

    async def current(self) -> str:
        """Wait for a session and return its clientId. Raises the error that has ended the client."""
        while self._error is None:
            if self.client_id is not None:
                return self.client_id
            await self._is_known.wait()
        raise self._error

    def lose(self, client_id: str, reason: str) -> None:
        """Record that the server replied that it does not know a session; another one is begun."""
        if client_id == self.client_id:
            self._report_loss(reason)
            self.client_id = None
            self._is_known.clear()
            self._is_needed.set()

    async def end(self) -> None:
        """End all waiting calls, and disconnect, if there is a session and its server can be reached."""
        if self._error is None:
            self._finish(None)
        if self.client_id is not None:
            with suppress(ClientError):
                goodbye = {"channel": "/meta/disconnect", "clientId": self.client_id}
                await self._request(goodbye, self._timeouts.goodbye_s)

    # Polling

    async def _poll_forever(self) -> None:
        failures = 0
        while True:
            try:
                if self.client_id is None:
                    await self.begin()
                await self._poll()
            except Dismissed:
                raise
            except ClientError as error:
                failures += 1
                pause_s = self._pause_after(error, failures)
                self._report_loss(str(error))
                self._is_first_connect = True
            else:
                failures = 0
                pause_s = self._advice.interval_s
                self._report_return()
            await self._rest(pause_s)

    def _pause_after(self, error: ClientError, failures: int) -> float:
        """Return how many seconds to wait before the next try. Raises `error` if another try cannot succeed."""
        if isinstance(error, Refused):
            if error.is_final:
                raise error
            if self.client_id is None:  # the server replied, so the first handshake need not wait
                return self._timeouts.backoff(failures - 1)
        asked_s = error.retry_after_s if isinstance(error, Unreachable) else self._advice.interval_s
        return max(self._timeouts.backoff(failures), min(asked_s, self._timeouts.most_backoff_s))

    async def _poll(self) -> None:
        """Send one connect and handle its response. Raises `ClientError` unless it was successful."""
        client_id = await self.current()
        if await self._wire.open(self._timeouts.network_s):
            self._is_first_connect = True
        kind = self._wire.connection_type
        connect: JSON = {"channel": "/meta/connect", "clientId": client_id, "connectionType": kind}
        if self._is_first_connect:
            connect["advice"] = {"timeout": 0}
        if self._batch is not None:
            connect["ext"] = {"ack": self._batch}
        reply, incoming = await self._request(connect, self._advice.timeout_s + self._timeouts.network_s)
        await self._queue(incoming)
        self.positions.note(reply)
        for gap in gaps_of(reply):
            self._notify(ConnectionEvent.MISSED, gap)
        for pattern in incoming.revoked:
            self._drop(pattern)
        if self._batch is not None:
            self._batch = batch_of(reply) or self._batch
        advice = Advice.read(reply)
        self._advice = advice or self._advice
        reconnect = advice.reconnect if advice is not None else ""
        error = error_of(reply)
        if incoming.is_goodbye or reconnect == "none":
            raise Dismissed(error or "the server has ended the session")
        if reconnect == "handshake" or (error and error.startswith(SESSION_UNKNOWN) and not reconnect):
            self.lose(client_id, error or "the server requires a new handshake")
        if error is not None or self.client_id is None:
            raise Refused(error or "the server requires a new handshake", is_final=False)
        self._is_first_connect = False

    def _drop(self, pattern: str) -> None:
        """Drop a subscription that the server has ended: to renew it with the others would be refused for all."""
        if pattern in self.patterns:
            del self.patterns[pattern]
            self.positions.forget(pattern)
            self._notify(ConnectionEvent.REVOKED, pattern)

    async def _request(self, fields: dict[str, Any], within_s: float) -> tuple[dict[str, Any], Incoming]:
        """Send one message; returns its reply and the whole response."""
        message_id = next(self.ids)
        send = self._wire.poll if fields["channel"] in _POLLS else self._wire.post
        incoming = Incoming.read(await send({message_id: encode({"id": message_id, **fields})}, within_s))
        reply = incoming.replies.get(message_id)
        if reply is None:
            raise OutcomeUnknown(f"no reply to {fields['channel']} from {self._wire.name}")
        return reply, incoming

    async def _queue(self, incoming: Incoming) -> None:
        """Queue events for the program. While it does not read, the client does not poll, but keeps the session."""
        for event in incoming.events:
            while True:
                try:
                    async with asyncio.timeout(self._timeouts.nudge_s):
                        await self._inbox.put(event)
                    break
                except TimeoutError:
                    await self._keep_alive()

    async def _keep_alive(self) -> None:
        """Keep the session alive without a connect, by a subscribe that repeats an existing subscription.

        This is not done without the acknowledge extension: the response could have events, for which there is no room.
        """
        if self._batch is not None and self.client_id is not None and self.patterns:
            pattern = next(iter(self.patterns))
            same = {"channel": "/meta/subscribe", "clientId": self.client_id, "subscription": pattern}
            with suppress(ClientError):
                await self._request(same, self._timeouts.network_s)

    async def _rest(self, pause_s: float) -> None:
        self._is_needed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._is_needed.wait()

    # Notifying the program

    def _report_loss(self, reason: str) -> None:
        if self._lost_id is None:
            self._lost_id = self.client_id or ""
            self._notify(ConnectionEvent.LOST, reason)

    def _report_return(self) -> None:
        if self._lost_id is not None:
            is_whole = self._lost_id == self.client_id or self.positions.is_whole
            self._lost_id = None
            self._notify(ConnectionEvent.RESUMED if is_whole else ConnectionEvent.RENEWED, self._wire.name)

    def _notify(self, link: ConnectionEvent, text: str) -> None:
        if self._on_link is not None:
            self._on_link(link, text)
