"""The tables of what is remembered of texts that peers choose, each with the entries that make it largest.

`tests/test_growth.py` fills them, and compares what they take with `tests/tables.txt`.
"""

from __future__ import annotations

import json
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from halley.access.rules import AccessRules, Rule
from halley.broker.names import Match, Pattern, component, shape_of
from halley.broker.outbox import Outbox
from halley.broker.policy import Proof
from halley.broker.remembered import Remembered
from halley.cluster import bounds as cluster_bounds
from halley.embed.local_session import LocalSession
from halley.history import query
from halley.history.rules import Rules
from halley.host import relay
from halley.host.repeated import ProxiedHeads, RememberedRequest
from halley.protocols.bayeux.lazy import Laziness
from halley.protocols.bayeux.messages import revocation_frame
from halley.protocols.bayeux.names import NameLimits, patterns, to_channel, topics
from halley.protocols.bayeux.session import BayeuxSession
from halley.protocols.wamp.names import to_uri
from halley.protocols.wamp.state import RESERVED_AT_ONCE, SubscriptionIds
from halley.settings import Lazy, Limits, Settings
from halley.transports.addresses import Proxies, accounts
from halley.transports.bayeux import PostHead
from halley.transports.bodies import charset_of
from halley.transports.exchange import Endpoint
from halley.transports.guard import Guard
from halley.transports.routes import Admitted
from support.bayeux import House
from support.wamp_peers import World

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WIDEST = "\U0001f600"
"""A character of four bytes, in Python's texts and in UTF-8."""

ESCAPED = "!f0!9f!98!80"
"""The same in a canonical topic."""

BOUNDS = NameLimits(Limits().topic_chars, Limits().topic_segments)


class Filling(NamedTuple):
    """A table, how its entries come into it, and the key for an entry with so many wide characters and a number.

    `others` are further tables with the same entries.
    """

    table: Remembered[Any, Any]
    look_up: Callable[[Any], object]
    key_of: Callable[[int, int], Any]
    others: Sequence[object] = ()


def results(function: Callable[[Any], Any], key_of: Callable[[int, int], Any]) -> Filling:
    """Return how the table of a function is filled."""
    return Filling(function.__self__, function, key_of)  # type: ignore[attr-defined]


def topic_of(chars: int, number: int) -> str:
    """Return a canonical topic."""
    return f"{ESCAPED * chars}/{number}"


def name_of(chars: int, number: int) -> str:
    """Return a text as a peer writes it."""
    return f"{WIDEST * chars}{number}"


def channel_of(chars: int, number: int) -> str:
    """Return a channel whose characters are escaped in its topic."""
    return f"/{'~' * chars}{number}"


def pattern_of(chars: int, number: int) -> Pattern:
    """Return a pattern of four segments."""
    return Pattern(Match.WILDCARD, f"{ESCAPED * chars}/a//{number}")


def decisions() -> Filling:
    """Those of rules that depend on who asks, about patterns."""
    rules = AccessRules([Rule("*", "*", Pattern(Match.DESCENDANTS, "{authid}"), allow=True)])
    proof = Proof(WIDEST * 9, "a-role")
    return Filling(rules._decisions, lambda what: rules.may(None, "subscribe", what, proof), pattern_of)


def callbacks() -> Filling:
    """Those of a program that subscribes to all topics."""
    session = LocalSession(House().engine, "all")
    session.subscribe("/**", lambda _channel, _data: None)
    return Filling(session._found, session._found.__getitem__, topic_of)


def laziness() -> Filling:
    """Those of one rule."""
    lazy = Laziness(House().broker, [Lazy("/**", 60)], 1.0, BOUNDS)
    return results(lazy._rule_s, topic_of)


def ids() -> Filling:
    """Those of WAMP's subscriptions."""
    numbers = count(1, RESERVED_AT_ONCE)
    ids = SubscriptionIds(lambda: next(numbers))
    return Filling(ids._patterns, ids.of, pattern_of, [ids._ids])


def proxied() -> Filling:
    """Those of clients behind a proxy, with cookies and tokens."""
    heads = ProxiedHeads()

    def look_up(head: bytes) -> None:
        token = head.split(b"token: ")[1].partition(b"\r")[0].decode()
        post = PostHead(b"application/json; charset=utf-8", (token[:40],), token)
        admitted = Admitted(Endpoint(), post, ((b"x" * 27, token[:40].encode()),))
        repeated = RememberedRequest.of(head, head.count(b"\n") - 2, 10_000, admitted, (token[:20], "https"))
        if repeated is not None:
            session = BayeuxSession("0" * 40, House().engine.sessions, Outbox(1, 1), Settings().bayeux)
            body = b'[{"channel": "/meta/connect", "clientId": "%s", "connectionType": "x", "id": "1"}]' % (b"0" * 40)
            repeated.remember_connect(body, json.loads(body), session)
            heads.remember("192.0.2.1", head, repeated)

    def head_of(chars: int, number: int) -> bytes:
        return b"POST / HTTP/1.1\r\ntoken: %b\r\nContent-Length: 2\r\n\r\n" % (b"x" * chars + b"%d" % number)

    return Filling(heads.known, look_up, head_of)


def guard() -> Guard:
    """Return the guard of a server that others reach by some name."""
    return Guard(Settings(host="0.0.0.0", hosts=("example.com",)))


PEERS_CACHES: dict[str, Callable[[], Filling]] = {
    "access AccessRules._decisions": decisions,
    "bayeux Laziness._rule_s": laziness,
    "bayeux patterns": lambda: results(patterns(BOUNDS), channel_of),
    "bayeux revocation_frame": lambda: results(revocation_frame, name_of),
    "bayeux to_channel": lambda: results(to_channel, topic_of),
    "bayeux topics": lambda: results(topics(BOUNDS), channel_of),
    "broker component": lambda: results(component, lambda chars, number: f"{ESCAPED * chars}{number}"),
    "broker shape_of": lambda: results(shape_of, pattern_of),
    "cluster _is_spelled": lambda: results(cluster_bounds._is_spelled, topic_of),
    "embed LocalSession._found": callbacks,
    "history Rules.of": lambda: results(Rules().of, topic_of),
    "history _audience_of": lambda: results(
        query._audience_of, lambda chars, number: f'[["{name_of(chars, number)}"],null,[],[]]'
    ),
    "host ProxiedHeads.known": proxied,
    "host _usual_head": lambda: results(
        relay._usual_head,
        lambda chars, number: b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n%b\r\n" % (number, b"x: y\r\n" * chars),
    ),
    "transports Guard._cors_of": lambda: results(
        guard()._cors_of, lambda chars, number: (b"http://%d" % number, b"x" * chars, "https")
    ),
    "transports Guard.serves": lambda: results(guard().serves, lambda chars, number: b"%b%d" % (b"x" * chars, number)),
    "transports Proxies._knows": lambda: results(Proxies(["10.0.0.0/8"])._knows, name_of),
    "transports account_of": lambda: results(accounts(["127.0.0.0/8"]), name_of),
    "transports charset_of": lambda: results(
        charset_of, lambda chars, number: b"text/plain; x=%b%d" % (b"x" * chars, number)
    ),
    "wamp Realm.topic": lambda: results(World().router.realms["realm1"].topic, name_of),
    "wamp SubscriptionIds._patterns": ids,
    "wamp to_uri": lambda: results(to_uri, topic_of),
}
"""By the table's name: how it is filled."""
