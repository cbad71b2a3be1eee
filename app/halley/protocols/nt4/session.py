"""A client's session: the state of one connection, in addition to the broker's state of a session (NA49 to NA57)."""

from __future__ import annotations

import secrets
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from math import gcd

from halley.broker.broker import Broker
from halley.broker.limits import text_bytes
from halley.broker.names import Pattern
from halley.broker.sessions import Session, SessionHandler
from halley.protocols.contract import Context, Link, user_agent_of
from halley.protocols.nt4.messages import Subscribe
from halley.protocols.nt4.names import V40, is_reserved
from halley.protocols.nt4.pacing import Interest, Output
from halley.protocols.nt4.topics import Publisher, Topic
from halley.settings import Nt4

ROLE = "nt4"
"""The role of all NetworkTables clients in access rules."""

_ID_BYTES = 20

_STEP_MS = 10
LEAST_PERIOD_MS = 5

_OVERHEAD_BYTES = 400
"""What a subscription takes besides its names, and what each name takes besides its text.

Measured by `tests/bench/session_memory.py`.
"""


class Client(Session):
    """The session of one client, from the opening of its connection to the end.

    name           unique among clients (NA11), and its `authid`
    subscribed     its subscriptions, since those of `Session.subscriptions` are the broker's
    publishers     by the id that the client chose
    announced      the topics that were announced to it
    unexamined     the topics that are still to be examined for it (`subscribing.py`), each with the id of a
                   subscription that has replaced another, if that is the reason
    """

    __slots__ = (
        "announced",
        "connection",
        "context",
        "name",
        "output",
        "publishers",
        "subscribed",
        "unexamined",
        "version",
    )

    def __init__(
        self, name: str, owner: SessionHandler, link: Link, context: Context, broker: Broker, options: Nt4
    ) -> None:
        super().__init__(secrets.token_hex(_ID_BYTES), "nt4", owner, broker.outbox())
        self.name = self.authid = name
        self.role = ROLE
        self.context = context
        self.address = context.address
        self.account = broker.account_of(context.address)
        self.user_agent = user_agent_of(context)
        host = f"[{context.address}]" if ":" in context.address else context.address
        self.connection = f"{host}:{context.port}"
        self.version = 0x0400 if link.subprotocol == V40 else 0x0401
        self.output = Output(self, link, broker.mark_ready, options.queue_bytes)
        self.publishers: dict[int, Publisher] = {}
        self.subscribed = Subscriptions(options.max_period_s)
        self.announced: dict[Topic, None] = {}
        self.unexamined: OrderedDict[Topic, int | None] = OrderedDict()

    def forget(self) -> None:
        """Drop the names of its subscriptions; to be called once the end of its session has been noted."""
        self.subscribed = Subscriptions(0)
        self.unexamined.clear()

    def subscription_names(self) -> list[Pattern | str]:
        """The names of its subscriptions, each prefix with a star at its end."""
        return [name for each in self.subscribed for name in listed(each)]


def listed(subscription: Subscribe) -> list[Pattern | str]:
    """The names of one subscription, each prefix with a star at its end."""
    return [name + "*" * subscription.options.is_prefix for name in subscription.topics]


class Subscriptions:
    """The subscriptions of one client, by `subuid`; a longer period than `max_period_s` is shortened to it."""

    def __init__(self, max_period_s: float) -> None:
        self._max_period_s = max_period_s
        self._by_id: dict[int, Subscribe] = {}
        self._exact: dict[str, _Named] = {}  # the subscriptions with each name
        self._prefixes: dict[str, _Named] = {}
        self._lengths: Counter[int] = Counter()  # the number of prefixes of each length
        self._reserved = 0  # the number of names that begin with `$`
        self.names = 0  # the number of names in all subscriptions; one without names counts as one
        self.nbytes = 0  # the memory that all subscriptions take

    def __iter__(self) -> Iterator[Subscribe]:
        """Iterate over the subscriptions in the order in which they began."""
        return iter(self._by_id.values())

    def put(self, subscription: Subscribe) -> None:
        """Add a subscription whose `subuid` is not in use."""
        subuid = subscription.subuid
        self._by_id[subuid] = subscription
        self.names += len(subscription.topics) or 1
        self.nbytes += bytes_of(subscription)
        own = merged([subscription], self._max_period_s)
        kept = self._prefixes if subscription.options.is_prefix else self._exact
        for name in subscription.topics:
            if subscription.options.is_prefix and name not in kept:
                self._lengths[len(name)] += 1
            self._reserved += is_reserved(name)
            named = kept.setdefault(name, _Named())
            named.by_id[subuid] = subscription
            named.interest = own if named.interest is None else _together([named.interest, own])

    def remove(self, subuid: int) -> Subscribe | None:
        """Remove and return the subscription with an id; None if there is none."""
        subscription = self._by_id.pop(subuid, None)
        if subscription is None:
            return None
        self.names -= len(subscription.topics) or 1
        self.nbytes -= bytes_of(subscription)
        kept = self._prefixes if subscription.options.is_prefix else self._exact
        self._reserved -= sum(map(is_reserved, subscription.topics))
        for name in set(subscription.topics):
            named = kept[name]
            del named.by_id[subuid]
            if named.by_id:
                named.interest = merged([*named.by_id.values()], self._max_period_s)
            else:
                del kept[name]
                if subscription.options.is_prefix:
                    self._lengths[len(name)] -= 1
                    if not self._lengths[len(name)]:
                        del self._lengths[len(name)]
        return subscription

    def matching(self, name: str) -> list[Subscribe]:
        """Return the subscriptions that match a topic name; the prefix "" does not match meta topics (NA49)."""
        found: dict[int, Subscribe] = {}
        for named in self._named(name):
            found |= named.by_id
        return [*found.values()]

    def matches(self, name: str) -> bool:
        """Return whether any subscription matches a topic name."""
        return any(True for _ in self._named(name))

    def interest(self, name: str) -> Interest | None:
        """Return the combined options of the subscriptions that match a topic name; None if they want no values."""
        return _together([named.interest for named in self._named(name)])

    def _named(self, name: str) -> Iterator[_Named]:
        if is_reserved(name) and not self._reserved:
            return
        if name in self._exact:
            yield self._exact[name]
        for length in self._lengths:
            if length <= len(name) and (length or not is_reserved(name)) and name[:length] in self._prefixes:
                yield self._prefixes[name[:length]]


def bytes_of(subscription: Subscribe) -> int:
    """Return the memory that a subscription takes, in bytes."""
    names = subscription.topics
    return _OVERHEAD_BYTES * (1 + len(names)) + sum(map(text_bytes, names)) + len(subscription.options.others)


class _Named:
    """The subscriptions of one client that have one name, and their combined options."""

    __slots__ = ("by_id", "interest")

    def __init__(self) -> None:
        self.by_id: dict[int, Subscribe] = {}
        self.interest: Interest | None = None


def _together(interests: Sequence[Interest | None]) -> Interest | None:
    wanted = [each for each in interests if each is not None]
    if not wanted:
        return None
    return Interest(any(each.is_all for each in wanted), gcd(*(each.period_ms for each in wanted)))


def merged(subscriptions: Sequence[Subscribe], max_period_s: float) -> Interest | None:
    """Return the combined options of subscriptions for one topic; None if they want no values, only topics (NA51)."""
    wanted = [each.options for each in subscriptions if not each.options.is_topics_only]
    if not wanted:
        return None
    period_ms = gcd(*(period_of(options.periodic_s, max_period_s) for options in wanted))
    return Interest(any(options.is_all for options in wanted), max(period_ms, LEAST_PERIOD_MS))


def period_of(periodic_s: float, max_period_s: float) -> int:
    """Return a period in milliseconds, rounded to tens as in ntcore, and at least 5 (NA56)."""
    ms = min(periodic_s, max_period_s) * 1000
    return max(int(ms + _STEP_MS / 2) // _STEP_MS * _STEP_MS, LEAST_PERIOD_MS)
