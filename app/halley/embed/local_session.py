"""A session of the program itself: it publishes and subscribes in process, on the same path as remote sessions."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from time import monotonic
from typing import Any

from halley.broker.broker import Broker
from halley.broker.events import Event
from halley.broker.names import Pattern, patterns_over
from halley.broker.policy import LOCAL, SERVER
from halley.broker.remembered import Results
from halley.broker.sessions import Session
from halley.embed.server_session import pattern_of
from halley.protocols.bayeux.engine import BayeuxEngine
from halley.protocols.bayeux.messages import decode_data
from halley.protocols.bayeux.names import to_channel, to_subscription
from halley.protocols.bayeux.outcomes import AbortConnection, AwaitHook, Outcome, Request, Transport
from halley.protocols.bayeux.session import BayeuxSession, Reply
from halley.protocols.contract import Part
from halley.transports.waits import after_hooks, close_unawaited

Callback = Callable[[str, Any], None]

_DEADLINE_S = 3600.0
"""A local session does not expire; since every session has a deadline, its deadline is moved on each time."""


class LocalSession:
    """A session that publishes and subscribes for the program.

    Its messages pass through extensions and listeners like any client's, but no policy is asked: they are the program's
    own. What is begun while the server runs ends with that run: `is_running` says whether it does.
    """

    def __init__(self, engine: BayeuxEngine, name: str, is_running: Callable[[], bool] = lambda: False) -> None:
        self._engine = engine
        self._is_running = is_running
        self._is_of_run = is_running()
        self._lasting: dict[Pattern, list[Callback]] = {}  # the callbacks that no run has begun
        self._callbacks: dict[Pattern, list[Callback]] = {}
        self._found: Results[str, list[list[Callback]]] = Results(self._find_callbacks)  # by topic
        self._tasks: set[asyncio.Task[None]] = set()
        self._session = BayeuxSession(
            f"local-{name}-{engine.sessions.new_id()}", self, engine.broker.outbox(), engine.options
        )
        self._session.protocol = LOCAL
        self._session.role = SERVER
        engine.sessions.open(self._session, monotonic())

    def publish(self, channel: str, data: Any, ext: Mapping[str, Any] | None = None) -> asyncio.Future[dict[str, Any]]:
        """Publish `data`, with a client's `ext` where wanted; the future's result is the reply that a client would get.

        The reply has `successful` and, if that is false, `error`. As for any client, data is refused if it is not a
        value of the type of a NetworkTables topic. The message is handled immediately unless something on its path
        (an asynchronous service) takes time; the future need not be awaited.
        """
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        connection = _Publish(self._engine, answer, self._tasks)
        message = {"channel": channel, "data": data}
        if ext is not None:
            message["ext"] = dict(ext)
        request = Request([message], Transport.LOCAL, connection)
        request.session = self._session
        connection.write(self._engine.receive(request, monotonic()))
        return answer

    def subscribe(self, channel: str, callback: Callback) -> None:
        """Call `callback(channel, data)` for each event of a channel or pattern from now on, in order.

        Raises `ValueError` for an invalid channel, and `TypeError` for a coroutine function.
        """
        if inspect.iscoroutinefunction(callback):
            raise TypeError("the callback must not be a coroutine function; put events into a queue instead")
        pattern = pattern_of(channel, self._engine)
        self._callbacks.setdefault(pattern, []).append(callback)
        if not self._is_running():
            self._lasting.setdefault(pattern, []).append(callback)
        self._found.clear()
        self._engine.subscribe(self._session, channel, pattern, monotonic())

    def unsubscribe(self, channel: str) -> None:
        """Remove all callbacks for this channel or pattern. Raises `ValueError` for an invalid one."""
        pattern = pattern_of(channel, self._engine)
        self._lasting.pop(pattern, None)
        callbacks = self._callbacks.pop(pattern, None)
        if callbacks is not None:
            callbacks.clear()  # also for an event that is being delivered
            self._found.clear()
            self._engine.unsubscribe(self._session, channel, pattern)

    def close(self) -> None:
        """End the session and all its subscriptions."""
        self._engine.sessions.leave(self._session, monotonic(), by_client=False)

    def end_run(self) -> None:
        """End what was begun while the server ran: this session, or its callbacks of that time."""
        if self._is_of_run:
            self.close()
        for pattern, callbacks in tuple(self._callbacks.items()):
            callbacks[:] = self._lasting.get(pattern, ())
            if not callbacks:
                self.unsubscribe(to_subscription(pattern))

    # broker.sessions.SessionHandler

    def due(self, session: Session, now: float) -> None:
        """Extend the session's life."""
        self._engine.broker.touch(session, now + _DEADLINE_S)

    def flush_session(self, session: Session, now: float) -> tuple[()]:  # noqa: ARG002 - SessionHandler's form
        """Call the callbacks for the waiting events, unless a batch holds them back; there is nothing to write."""
        if not self._session.open_batches:
            self._deliver()
        return ()

    def _deliver(self) -> None:
        outbox = self._session.outbox
        events = outbox.take()
        self._engine.broker.waiting.release(events)
        for event in events:
            self._call(event)
        if outbox.has_more:
            self._engine.broker.mark_ready(self._session)

    def overflow(self, session: Session, event: Event, now: float) -> None:  # noqa: ARG002 - SessionHandler's form
        """Deliver the events of the full outbox now, and take `event`."""
        self._deliver()
        session.outbox.put(event)
        self._engine.broker.mark_ready(session)

    def too_slow(self, session: Session, now: float) -> None:
        """Do nothing: the program's own sessions do not end because of others."""

    def rights_changed(self, session: Session, now: float) -> int:  # noqa: ARG002 - SessionHandler's form
        """Take nothing away: the program's own sessions may do everything."""
        return 0

    def fail(self, session: Session, now: float) -> None:
        """Do nothing: no connection ends with the session."""

    def _call(self, event: Event) -> None:
        channel = to_channel(event.topic)
        for callbacks in self._found[event.topic]:
            for callback in tuple(callbacks):
                try:
                    callback(channel, decode_data(event.payload))
                except Exception as error:  # noqa: BLE001 - a program's hook may raise anything
                    self._engine.hooks.report("local_session", error)

    def _find_callbacks(self, topic: str) -> list[list[Callback]]:
        """The callbacks for events of a topic: the lists of `_callbacks`, which may change."""
        return [self._callbacks[pattern] for pattern in patterns_over(topic) if pattern in self._callbacks]


class _Publish:
    """The engine's `connection` for one message."""

    def __init__(
        self, engine: BayeuxEngine, answer: asyncio.Future[dict[str, Any]], tasks: set[asyncio.Task[None]]
    ) -> None:
        self._engine = engine
        self._answer = answer
        self._tasks = tasks  # the event loop keeps only weak references to tasks

    def write(self, outcome: Outcome | AbortConnection) -> None:
        """Set the future's result to the message's reply, or begin to wait for what it needs first."""
        if isinstance(outcome, AwaitHook):
            task = asyncio.get_running_loop().create_task(self._wait(outcome))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            task.add_done_callback(partial(close_unawaited, outcome.awaitable))
        elif isinstance(outcome, Reply) and outcome.parts and not self._answer.done():
            self._answer.set_result(decode_data(outcome.parts[0]))

    async def _wait(self, wait: AwaitHook) -> None:
        self.write(await after_hooks(self._engine, wait))


class LocalSessions(Part):
    """The program's own sessions, as a part of the server: what belongs to one run of it ends before the next."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def begin(self, now: float) -> None:  # noqa: ARG002 - Part's form
        """End what sessions of the program have begun in an earlier run of the server."""
        for owner in [session.owner for session in self._broker.sessions.values()]:
            if isinstance(owner, LocalSession):
                owner.end_run()
