"""Which node is the home of NetworkTables: a lease, and the persistent topics that the next home needs.

Both are messages of a stream of their own, SPACE-nt4, which keeps the last ones of each subject. It is a bucket of keys
and values as NATS has them, except for its name, so that nodes need no rights but those to `REALM_MARK.>`.

    SPACE.v.home      {"node", "run", "number", "lease_s"} of the home, sent again and again as long as it is one;
                      `node` is null when it has given the lease back
    SPACE.v.topics    the persistent topics, in the form of the file networktables.json

**Two nodes are never the home at the same time.** Each message names the sequence of the last one of its subject that
its sender knows, and the stream takes it only if that still is the last one: of several nodes that want the lease one
gets it. The home serves until `_SERVES` of `lease_s` after it has *sent* the last message that the stream has taken
(`cluster.nt4_lease_s` of the home). Another node takes the lease when it has seen the same message as the last one for
the whole of its `lease_s`. It cannot have seen the message before that was sent, so it waits until the home's time is
over, and for a quarter of it longer. Each measures by its own monotonic clock. So no times of day are compared, clocks
need to be equally fast within a fifth and no more, and it does not matter how long messages are under way, which NATS
server leads, or for how long a process stands still. A home that stood still finds its time over when it goes on, since
`NetworkTables` looks at the time before it takes a message or hands out values, and then ends all connections. (If the
machine was suspended, its monotonic clock stood still too: then the next renewal fails, within a second, and it ends.)

What such a home has under way to the stream does not matter either: the next home stores the topics once more before it
serves, so a message of an earlier one has the wrong predecessor. Other nodes pass over the news of an earlier home
(`values.py`).

The lease is taken at once where it was given back, and where there never was one. So only somebody who deletes the
stream while nodes run can have two homes, until the first one renews its lease.

A version of the topics that was replaced is overwritten in the files of NATS, as what is erased must be.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from contextlib import suppress
from math import inf
from time import monotonic
from typing import NamedTuple, Protocol

import orjson

from halley import telemetry
from halley.cluster.stream import CannotJoin
from halley.cluster.tasks import Tasks
from halley.nats.client import AwayErrors
from halley.nats.jetstream import STREAM_NOT_FOUND, WRONG_LAST, ApiError, Connection
from halley.nats.wire import json_object
from halley.settings import Settings

_SERVES = 0.8
_RENEWALS, _CHECKS = 5, 10
"""How often in the time of a lease its holder renews it, and how often every node looks at it."""

_GOODBYE_S = 2.0
_VERSIONS = 16
"""Messages that are kept of a subject: the last one, and those before that several nodes are about to overwrite.

What the stream itself removes, since there are more, stays in the files.
"""

_TRIES = 10
_LONGEST_S = 3_600.0
"""What a message may say at most about the time of a lease."""


async def check_bucket(nats: Connection, settings: Settings) -> None:
    """Check, where NetworkTables is served, that its stream is not that of another cluster whose space has its name.

    Raises `CannotJoin`.
    """
    space = settings.cluster.space
    bucket = f"{space}-nt4"
    try:
        info = await nats.ask(f"STREAM.INFO.{bucket}") if settings.nt4.enabled else None
    except (ApiError, *AwayErrors):  # there is none yet; or it is not known now, and the home makes it
        return
    if info is not None and {*info["config"]["subjects"]} != {*_subjects(space)}:
        raise CannotJoin(f"NetworkTables needs the stream {bucket}, which another cluster has: choose cluster.space")


def _subjects(space: str) -> tuple[str, str]:
    return f"{space}.v.home", f"{space}.v.topics"


class Leaseholder(Protocol):
    """What the home serves. Its methods are called on the event loop and never block."""

    def activate(self, topics: bytes | None, term: int, until: float) -> None:
        """Begin to serve until a monotonic time, with the stored topics; None where none were ever stored.

        `term` is greater than that of all homes before.
        """

    def renew(self, until: float) -> None:
        """Go on serving until a later monotonic time, since the lease was renewed."""

    def deactivate(self) -> bytes | None:
        """Stop serving, and return the topics for the next home; None if it does not serve."""

    def serves(self, now: float) -> bool:
        """Whether clients are served at `now`; False once the time `until` has passed."""


class _Lease(NamedTuple):
    """The last message about the home: its sequence, what it says, and when this node saw it first."""

    sequence: int = 0
    node: str | None = None
    run: str = ""
    number: int = 0
    lease_s: float = 0.0
    seen_at: float = -inf

    def is_over(self, now: float) -> bool:
        """Whether another node may take it: it was given back, or not renewed in its time."""
        return self.node is None or now - self.seen_at >= self.lease_s


class Nt4Lease:
    """The lease, as one node sees it. Its methods are for the event loop."""

    def __init__(self, nats: Connection, holder: Leaseholder) -> None:
        """`nats` need not be connected yet."""
        self._options = options = nats.options
        self._nats = nats
        self._holder = holder
        self._bucket = f"{options.space}-nt4"
        self._home_subject, self._topics_subject = _subjects(options.space)
        self._run = secrets.token_hex(8)
        self._number = 0  # messages that this node has sent about itself
        self._sent_at = -inf
        self._lease = _Lease()
        self._stored_at = 0  # the sequence of the stored topics
        self._logged: tuple[bool, str | None] = False, None
        self._is_closing = False
        self._tasks = Tasks("nt4_home")

    def begin(self) -> None:
        """Look at the lease from now on, as soon as the connection is open."""
        self._tasks.repeat(self._watch, self._options.nt4_lease_s / _CHECKS)

    async def close(self) -> None:
        """Store the topics, and give the lease back; may be repeated."""
        self._is_closing = True
        await self._tasks.cancel()
        topics = self._holder.deactivate()
        if topics is None:
            return
        with suppress(ApiError, *AwayErrors):
            async with asyncio.timeout(_GOODBYE_S):
                try:
                    await self.store(topics)
                finally:
                    await self._release()

    @property
    def node(self) -> str | None:
        """The node that is the home; None if none is known to be it."""
        now = monotonic()
        if self._holder.serves(now):
            return self._options.node
        lease = self._lease
        return None if lease.run == self._run or lease.is_over(now) else lease.node

    async def _watch(self) -> None:
        await self._nats.opened.wait()
        try:
            await self._check()
        except ApiError as error:
            if error.code == STREAM_NOT_FOUND:
                await self._make()
            else:
                telemetry.log.debug("nt4_lease", error=str(error))
        except AwayErrors:
            pass
        finally:
            self._report()

    async def _make(self) -> None:
        config = {
            "name": self._bucket,
            "subjects": [self._home_subject, self._topics_subject],
            "storage": "file",
            "num_replicas": 3 if self._options.settled_by == "stream" else 1,
            "max_msgs_per_subject": _VERSIONS,
        }
        with suppress(ApiError, *AwayErrors):
            await self._nats.ask(f"STREAM.CREATE.{self._bucket}", config)

    async def _check(self) -> None:
        sequence, data = await self._nats.last_of(self._bucket, self._home_subject)
        now = monotonic()
        if sequence != self._lease.sequence:
            self._lease = _lease_of(sequence, data, now)
        lease = self._lease
        if lease.run == self._run:
            if lease.number == self._number:  # also where only the reply was lost
                await self._hold(self._sent_at)
            is_due = now - self._sent_at >= self._options.nt4_lease_s / _RENEWALS
        else:
            is_due = lease.is_over(now)
        if is_due and not self._is_closing:
            sent_at = await self._send(self._options.node)
            await self._hold(sent_at)

    async def _send(self, node: str | None) -> float:
        """Store who is the home, behind the last message that is known; returns when it was sent.

        Raises `ApiError`, `AwayErrors`.
        """
        self._number += 1
        self._sent_at = sent_at = monotonic()
        lease_s = self._options.nt4_lease_s
        fields = {"node": node, "run": self._run, "number": self._number, "lease_s": lease_s}
        sequence = await self._nats.put(self._home_subject, orjson.dumps(fields), self._lease.sequence)
        self._lease = _Lease(sequence, node, self._run, self._number, lease_s, sent_at)
        return sent_at

    async def _release(self) -> None:
        """Let another node take the lease at once. Raises `ApiError`, `AwayErrors`."""
        sequence, data = await self._nats.last_of(self._bucket, self._home_subject)
        lease = _lease_of(sequence, data, monotonic())
        if lease.run == self._run:
            self._lease = lease
            await self._send(None)

    async def _hold(self, sent_at: float) -> None:
        """Serve, since the stream has taken the message that was sent then. Raises `ApiError`, `AwayErrors`."""
        until = sent_at + _SERVES * self._options.nt4_lease_s
        now = monotonic()
        if now >= until:
            return
        if self._holder.serves(now):
            self._holder.renew(until)
            return
        term = self._lease.sequence
        self._stored_at, topics = await self._nats.last_of(self._bucket, self._topics_subject)
        were_stored = self._stored_at > 0
        if were_stored:  # once more, so that what an earlier home has under way comes too late
            await self._replace(topics)
        if monotonic() < until:
            self._holder.activate(topics if were_stored else None, term, until)

    async def store(self, topics: bytes) -> None:
        """Store the topics, as the home; what was stored before is overwritten. Raises `ApiError`, `AwayErrors`.

        If it was not this node that stored the last ones, they are erased ones of which another node was faster.
        """
        try:
            await self._replace(topics)
        except ApiError as error:
            if error.code == WRONG_LAST and self._holder.serves(monotonic()):
                self._stored_at, _ = await self._nats.last_of(self._bucket, self._topics_subject)
            raise

    async def clean(self, cleaned: Callable[[bytes], bytes | None]) -> None:
        """Replace the stored topics by what `cleaned` makes of them, unless that is None. Raises `OSError`."""
        for _ in range(_TRIES):  # another node may store some in between
            try:
                stored_at, topics = await self._nats.last_of(self._bucket, self._topics_subject)
                rest = cleaned(topics) if stored_at else None
                if rest is not None:
                    self._stored_at = stored_at
                    await self._replace(rest)
            except ApiError as error:
                if error.code == STREAM_NOT_FOUND:
                    return
                if error.code != WRONG_LAST:
                    raise OSError(str(error)) from error
            except AwayErrors as error:
                raise OSError("NATS does not answer") from error
            else:
                return
        raise OSError("other nodes store topics all the time")

    async def _replace(self, topics: bytes) -> None:
        before = self._stored_at
        self._stored_at = await self._nats.put(self._topics_subject, topics, before)
        if before:
            with suppress(ApiError):  # it is gone
                await self._nats.ask(f"STREAM.MSG.DELETE.{self._bucket}", {"seq": before})

    def _report(self) -> None:
        """Log who is the home, when that has changed."""
        node = self.node
        is_here = self._holder.serves(monotonic())
        if self._logged == (is_here, node):
            return
        self._logged = (is_here, node)
        if is_here:
            telemetry.log.info("nt4_home")
        else:
            telemetry.log.info("nt4_standby", home=node or "")


def _lease_of(sequence: int, data: bytes, now: float) -> _Lease:
    """The lease that a message is about, if there is one; of another form it has no time."""
    match json_object(data):
        case {
            "node": str() | None as node,
            "run": str(run),
            "number": int(number),
            "lease_s": int() | float() as lease_s,
        } if sequence and lease_s >= 0:
            return _Lease(sequence, node, run, number, min(lease_s, _LONGEST_S), now)
    return _Lease(sequence, seen_at=now) if sequence else _Lease()
