"""WAMP in a server: adapters of the router to the program's policy, the history, the disk and the event loop."""

from __future__ import annotations

import asyncio
import inspect
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import monotonic
from typing import Any

from app import telemetry
from app.broker.log import Page, Query
from app.broker.names import SPACE
from app.broker.timestamps import SECONDS_TO_2026
from app.broker.topics import UNHEARD_UNNAMED, WIDE_IN_WAMP, Match, Pattern, shape_of
from app.history.documents import sync_folder
from app.protocols.bayeux.hooks import Hooks, Refused
from app.protocols.bayeux.messages import Message
from app.protocols.bayeux.names import to_subscription
from app.protocols.contract import Context
from app.protocols.wamp.subscription_ids import RESERVED_AT_ONCE
from app.server.history import Recorder
from app.settings import Verb

_IDS_FILE = "wamp-subscription-ids"


class Waits:
    """The awaitables that engines wait for, each awaited by a task with a deadline; `stop` cancels them all."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def wait(
        self, awaitable: Awaitable[Any], limit_s: float, resume: Callable[[Any, Exception | None, float], None]
    ) -> None:
        """Await something for `limit_s` seconds at most, then call `resume`; returns immediately.

        `resume` gets the value or None, the error (`TimeoutError` at the deadline) or None, and the monotonic time.
        """
        task = asyncio.get_running_loop().create_task(self._wait(awaitable, limit_s, resume))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _wait(
        self, awaitable: Awaitable[Any], limit_s: float, resume: Callable[[Any, Exception | None, float], None]
    ) -> None:
        value, error = None, None
        try:
            async with asyncio.timeout(limit_s):
                value = await awaitable
        except Exception as raised:  # noqa: BLE001 - `resume` gets it
            error = raised
        try:
            resume(value, error, monotonic())
        except Exception as fault:  # noqa: BLE001 - a fault of ours, and no caller could handle it
            telemetry.fault("wamp", fault)

    async def stop(self) -> None:
        """Cancel all that is awaited, and wait until that is done."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class Permissions:
    """Asks a program's policy and authorizers about publications and subscriptions in WAMP.

    The session argument is None; a policy that uses the session raises then, and an exception counts as a denial.
    Policies see Bayeux channels, so they decide on the first realm only. A WAMP pattern is given as the narrowest
    Bayeux pattern that covers it.
    """

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks

    def __call__(self, verb: Verb, what: str | Pattern, context: Context) -> bool | Awaitable[bool]:
        """Return whether the policy and the authorizers allow it, or an awaitable of that result.

        `what` is a topic or a pattern to publish or subscribe to.
        """
        hooks = self._hooks
        asked = what if isinstance(what, Pattern) else Pattern(Match.EXACT, what)
        if not self.are_asked() or asked.topic.startswith(SPACE):
            return True
        pattern = in_bayeux(asked)
        if pattern is None:
            return False
        channel = to_subscription(pattern)
        fields = {"channel": channel} if verb == "publish" else {"channel": "/meta/subscribe", "subscription": channel}
        message = Message(fields, context)  # type: ignore[arg-type]  # a context has what a WebSocket's request has
        ask = getattr(hooks.policy, f"can_{verb}", None)
        if ask is not None:
            try:
                answer = ask(None, channel, message)
            except Exception as error:  # noqa: BLE001 - a program's hook may raise anything
                self._report("policy", error)
                return False
            if inspect.isawaitable(answer):
                return self._when(answer, verb, pattern, message)
            if answer is not True:
                return False
        return self._is_granted(verb, pattern, message)

    def are_asked(self) -> bool:
        """Return whether the program has a policy or authorizers."""
        return self._hooks.policy is not None or bool(self._hooks.authorizers)

    async def _when(self, answer: Awaitable[Any], verb: Verb, pattern: Pattern, message: Message) -> bool:
        try:
            is_allowed = await answer
        except Exception as error:  # noqa: BLE001 - a program's hook may raise anything
            self._report("policy", error)
            return False
        return is_allowed is True and self._is_granted(verb, pattern, message)

    def _is_granted(self, verb: Verb, pattern: Pattern, message: Message) -> bool:
        verdicts = []
        for authorize in self._hooks.authorizers_over(pattern):
            try:
                verdicts.append(authorize(None, verb, to_subscription(pattern), message))
            except Exception as error:  # noqa: BLE001 - a program's hook may raise anything
                self._report("authorizer", error)
                return False
        return not verdicts or (False not in verdicts and True in verdicts)

    def _report(self, what: str, error: Exception) -> None:
        if not isinstance(error, Refused):
            self._hooks.report(what, error)


def in_bayeux(pattern: Pattern) -> Pattern | None:
    """Return the narrowest Bayeux pattern that covers everything that a pattern matches.

    Returns None where there is none: a prefix such as `halley` covers the server's own topics, which `/**` leaves out,
    and other topics as well.
    """
    if pattern.match not in WIDE_IN_WAMP:
        return pattern
    shape = shape_of(pattern)
    parts, named = shape.parts, shape.named
    above = "/".join(part.text for part in parts[:named])
    if named == len(parts):
        return Pattern(Match.EXACT, above)
    if not named and parts[0].text in UNHEARD_UNNAMED:
        return None
    return Pattern(Match.DESCENDANTS, above)


class SettledArchive:
    """The history, as WAMP reads it (`router.Archive`)."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    async def page(self, query_of: Callable[[int], Query | None]) -> Page | None:
        """Read a page after all earlier publications have been settled (`Archive.page`)."""
        await self._recorder.settle()
        query = query_of(self._recorder.head)
        return None if query is None else await self._recorder.read(query)


class ReservedIds:
    """Reserves subscription ids in a file next to the history, so that none is assigned twice.

    `folder` is the folder of the history, if there is one. Without it, or if the file is damaged, ids begin with the
    number of seconds since 2026: earlier runs have not assigned so large ones. In a new folder ids begin with 1.
    """

    def __init__(self, folder: Path | None) -> None:
        self._path = None if folder is None else folder / _IDS_FILE
        self._next = 1

    def __call__(self) -> int:
        """Reserve the next `RESERVED_AT_ONCE` ids, and return the first of them."""
        first = max(self._next, self._read())
        self._next = first + RESERVED_AT_ONCE
        self._write()
        return first

    def _read(self) -> int:
        if self._path is not None:
            try:
                return int(self._path.read_text("ascii"))
            except FileNotFoundError:
                return 1
            except (OSError, ValueError) as error:
                telemetry.fault("subscription_ids", error)
        return int(time.time()) - SECONDS_TO_2026

    def _write(self) -> None:
        if self._path is not None:
            replacement = self._path.with_suffix(".new")
            try:
                with replacement.open("w", encoding="ascii") as file:
                    file.write(f"{self._next}\n")
                    file.flush()
                    os.fsync(file.fileno())  # after a power cut none of them may be assigned again
                replacement.replace(self._path)
                sync_folder(self._path.parent)
            except OSError as error:
                telemetry.fault("subscription_ids", error)
