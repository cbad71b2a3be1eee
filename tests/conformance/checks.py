"""A check is something that every server of a protocol must do, or may offer, and that a client sees on the wire.

A check is a coroutine function with a `Site` as argument; the first line of its docstring is what it claims of the
server. It ends if that holds, and raises if not. Each uses names of its own, so that none hears another one's events.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Any

Run = Callable[["Site"], Awaitable[None]]

MUST, MAY = "must", "may"
"""What a server that does not hold a check breaks its specification by, and what it only does not offer."""


@dataclass(frozen=True)
class Check:
    """A check of one protocol: its name, what it claims, the section of the specification, and `MUST` or `MAY`."""

    name: str
    claim: str
    source: str
    kind: str
    run: Run


@dataclass(frozen=True)
class Outcome:
    """What came of a check: `fault` is empty if it holds, else it says what was seen instead."""

    check: Check
    fault: str
    seconds: float


class Checks:
    """The checks of one protocol, in the order in which they are written."""

    def __init__(self) -> None:
        self._checks: list[Check] = []

    def __iter__(self) -> Iterator[Check]:
        return iter(self._checks)

    def must(self, source: str) -> Callable[[Run], Run]:
        """Add a function as a check of what `source` demands."""
        return self._adding(source, MUST)

    def may(self, source: str) -> Callable[[Run], Run]:
        """Add a function as a check of what `source` leaves to the server."""
        return self._adding(source, MAY)

    def _adding(self, source: str, kind: str) -> Callable[[Run], Run]:
        def add(run: Run) -> Run:
            name = run.__name__
            self._checks.append(Check(name.replace("_", "-"), (run.__doc__ or name).splitlines()[0], source, kind, run))
            return run

        return add


class Site:
    """A server that is tried, at `url`, and the connections that one check has opened, which are closed after it.

    `wait_s` is how long an answer may take, in seconds. `options` are those that the protocol's checks need, such as a
    realm.
    """

    def __init__(self, url: str, wait_s: float, **options: Any) -> None:
        self.url = url
        self.wait_s = wait_s
        self.options = options
        self._mark = secrets.token_hex(4)
        self._stack = AsyncExitStack()

    def name(self, last: str) -> str:
        """Return a name that no other check has, from a word of this one."""
        return f"c{self._mark}{last}"

    def closes(self, close: Callable[[], Awaitable[object]]) -> None:
        """Await this at the end of the check."""
        self._stack.push_async_callback(close)

    async def close(self) -> None:
        """Close what the check has opened; what cannot be closed in time is left."""
        async with asyncio.timeout(self.wait_s):
            await self._stack.aclose()


async def run_checks(
    checks: Iterable[Check], url: str, *, wait_s: float, shown: Callable[[Outcome], None], **options: Any
) -> Sequence[Outcome]:
    """Try each check in turn, show what came of it, and return all outcomes.

    A server that refuses a connection, closes it or does not answer within `wait_s` does not hold the check.
    """
    outcomes = []
    for check in checks:
        began = time.monotonic()
        outcome = Outcome(check, await _fault_of(check, Site(url, wait_s, **options)), time.monotonic() - began)
        shown(outcome)
        outcomes.append(outcome)
    return outcomes


async def _fault_of(check: Check, site: Site) -> str:
    fault = ""
    try:
        async with asyncio.timeout(6 * site.wait_s):
            await check.run(site)
    except AssertionError as error:
        fault = str(error).splitlines()[0] if str(error) else "another answer than it claims"
    except TimeoutError:
        fault = f"no answer within {site.wait_s:g} s"
    except Exception as error:  # noqa: BLE001 - a server may answer anything at all, and break any client by it
        fault = f"{type(error).__name__}: {error}".splitlines()[0]
    with suppress(Exception):  # the check has been decided; a server that does not let go changes nothing in that
        await site.close()
    return fault
