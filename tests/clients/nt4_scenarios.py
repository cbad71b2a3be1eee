"""The scripts that are played to both Halley and ntcore, by the number of the NA code and a name."""

from __future__ import annotations

import json
from typing import Any

from clients.nt4_stage import Join, Leave, Script
from support.nt4 import (
    ARRAY,
    BOOLEAN,
    DOUBLE,
    FLOAT,
    INT,
    RAW,
    RTT,
    STRING,
    TIME_ID,
    V40,
    V41,
    packed,
    text,
)
from support.nt4_malformed import BAD_TEXTS, BAD_VALUES

T = 1_000_000
"""A time long ago, in microseconds."""


def _frame(method: str, **params: Any) -> str:
    return json.dumps([text(method, **params)])


def pub(name: str, uid: int = 1, kind: str = "double", **properties: Any) -> str:
    """The text that begins to publish a topic."""
    return _frame("publish", name=name, pubuid=uid, type=kind, properties=properties)


def unpub(uid: int = 1) -> str:
    """The text that ends a publisher."""
    return _frame("unpublish", pubuid=uid)


def sub(*names: str, uid: int = 1, **options: Any) -> str:
    """The text that subscribes to topics, with every value after the same short period as marks."""
    return _frame("subscribe", topics=names, subuid=uid, options={"periodic": 0.01, "all": True, **options})


def unsub(uid: int = 1) -> str:
    """The text that ends a subscription."""
    return _frame("unsubscribe", subuid=uid)


def props(name: str, **update: Any) -> str:
    """The text that changes properties of a topic."""
    return _frame("setproperties", name=name, update=update)


def val(uid: int, time_us: int, value: Any, number: int = DOUBLE) -> bytes:
    """The bytes of one value."""
    return packed(uid, time_us, number, value)


def values(uid: int, time_us: int, *of: float) -> bytes:
    """The bytes of several doubles in one frame, a microsecond apart."""
    return b"".join(val(uid, time_us + after, each) for after, each in enumerate(of))


KINDS: dict[str, tuple[int, list[Any]]] = {
    "boolean": (BOOLEAN, [True, False]),
    "double": (DOUBLE, [2.5, 5, -1, 1e300]),
    "int": (INT, [0, -1, 2**62, -(2**63), 2**63 - 1]),
    "float": (FLOAT, [2.5, 5]),
    "string": (STRING, ["", "hello", "\0é\U0001f916"]),
    "json": (STRING, ['{"a":1}', "no JSON"]),
    "raw": (RAW, [b"", b"hello"]),
    "rpc": (RAW, [b"x"]),
    "msgpack": (RAW, [b"\x93\x01\x02\x03"]),
    "protobuf": (RAW, [b"x"]),
    "struct:Pose2d": (RAW, [bytes(24)]),
    "boolean[]": (ARRAY + BOOLEAN, [[], [True, False, True]]),
    "double[]": (ARRAY + DOUBLE, [[], [1.5, 2, 3]]),
    "int[]": (ARRAY + INT, [[], [1, 2, -3]]),
    "float[]": (ARRAY + FLOAT, [[], [1.5, 2]]),
    "string[]": (ARRAY + STRING, [[], ["a", ""]]),
}

TOPICS = sub("", uid=99, prefix=True, topicsonly=True)
"""Sent by a client that publishes several topics: ntcore announces them reliably only to subscribers (NF1)."""

TWO = [("a", sub("/x")), ("b", pub("/x"))]
"""A subscriber and a publisher."""

SCRIPTS: dict[str, Script] = {
    "1 no name": [("a", Join(path="/nt/"))],
    "1 another path": [("a", Join(path="/other"))],
    "1 a name with escapes and a query": [("a", Join(path="/nt/a%20b%2Fc?x=1", name="a b/c")), ("b", sub("$clients"))],
    "2 the newer protocol": [("a", Join(subprotocols=(V40, V41)))],
    "2 the older protocol": [
        ("a", Join(subprotocols=(V40,))), ("b", sub("/x")), ("a", pub("/x")), ("a", val(1, T, 1.0)),
    ],
    "3 unknown protocol": [("a", Join(subprotocols=("chat",)))],
    "6 round trips": [
        ("a", Join(subprotocols=(RTT,), is_bare=True)),
        ("a", packed(TIME_ID, 0, INT, 42)),
        ("a", sub("$clients")),
        ("a", pub("/x")),
        ("a", val(1, T, 1.0)),
        ("b", sub("$clients")),
    ],
    "11 two of one name": [
        ("a", Join(name="dup")),
        ("b", Join(name="dup")),
        ("c", sub("$clients")),
        ("a", Leave),
        ("d", Join(name="dup")),
    ],
    "13 strange names": [
        ("a", sub("", prefix=True)), ("b", TOPICS),
        *[("b", pub(name, uid)) for uid, name in enumerate(["", "a b", "\0", "\U0001f916", "x/", "//"])],
    ],
    "13 a reserved name": [("a", sub("$mine", "$clients")), ("b", pub("$mine")), ("b", pub("$clients", 2))],
    "15 the rest of an array": [
        ("a", sub("/x")), ("b", TOPICS),
        ("b", f'[7,{{"method":"shout","params":{{}}}},{pub("/x")[1:-1]},null,{pub("/x", 2)[1:-1]}]'),
        ("b", '[{"method":"publish","params":{"name":"/y","pubuid":3,"type":"int","more":1},"other":2}]'),
    ],
    "19 ids": [
        ("a", sub("/x", uid=-(2**31) + 1)),
        ("b", pub("/x", 2**31 - 2)),
        ("b", val(2**31 - 2, T, 1.0)),
        ("a", sub("/y", uid=2**31 - 1)), ("b", TOPICS),
        ("b", pub("/y", -(2**31) + 1)),
        ("b", val(-(2**31) + 1, T, 2.0)),
    ],
    "21 several values": [*TWO, ("b", values(1, T, 1.0, 2.0, 3.0))],
    "21 other ints": [
        *TWO, ("b", b"\x94\xd2\x00\x00\x00\x01\xcf\x00\x00\x00\x00\x00\x0f\x42\x40\xcc\x01\xcb\x40\x04" + bytes(6)),
    ],
    "21 an empty frame": [*TWO, ("b", b""), ("b", val(1, T, 1.0))],
    "24 an unknown publisher": [*TWO, ("b", val(7, T, 1.0) + val(-2, T, 1.0) + val(1, T, 2.0))],
    "25 a negative time": [*TWO, ("b", val(1, -5, 1.0)), ("c", sub("/x"))],
    "26 times": [
        ("a", packed(TIME_ID, 0, INT, 7) + packed(TIME_ID, 5, DOUBLE, 1.5)),
        ("a", packed(TIME_ID, 0, STRING, "now") + packed(TIME_ID, 0, RAW, b"now")),
    ],
    "29 the first publisher": [*TWO, ("b", val(1, T, 2.5)), ("c", sub("/x"))],
    "29 a publisher who subscribes": [("a", sub("/x")), ("a", pub("/x"))],
    "30 a second publisher": [*TWO, ("c", pub("/x", 2))],
    "30 a publisher once more": [*TWO, ("b", pub("/x", 2))],
    "30 who only publishes": [("a", Join(is_bare=True)), ("a", pub("/x"))],
    "31 another type": [*TWO, ("c", pub("/x", 1, "string", mine=True))],
    "32 a value of another type": [
        *TWO, ("c", pub("/x", 1, "string")), ("c", val(1, T, "no", STRING)), ("d", sub("/x")),
    ],
    "33 a pubuid twice": [*TWO, ("b", TOPICS), ("b", pub("/y", 1)), ("c", sub("/y")), ("b", val(1, T, 1.0))],
    "34 the last publisher": [
        *TWO, ("c", pub("/x", 5)), ("b", unpub()), ("c", val(5, T, 1.0)), ("c", unpub(5)), ("d", sub("/x")),
    ],
    "34 publishers are told": [
        ("a", pub("/x")), ("b", pub("/x")), ("a", unpub()), ("b", unpub()),
    ],
    "34 retained": [("a", pub("/x", retained=True)), ("a", val(1, T, 1.0)), ("a", unpub()), ("b", sub("/x"))],
    "34 persistent": [("a", pub("/x", persistent=True)), ("a", val(1, T, 1.0)), ("a", Leave), ("b", sub("/x"))],
    "35 a publisher leaves": [*TWO, ("b", Leave)],
    "36 again, of another type": [
        ("b", TOPICS), *TWO, ("b", unpub()), ("b", pub("/x", 1, "string")), ("b", val(1, T, "s", STRING)),
    ],
    "38 no echo": [("a", sub("/x")), ("a", pub("/x")), ("a", val(1, T, 1.0)), ("a", sub("/x", uid=2))],
    "38 its own last value": [("a", pub("/x")), ("a", val(1, T, 1.0)), ("a", sub("/x"))],
    "39 an older value of another": [
        ("a", pub("/x")), ("b", pub("/x")), ("a", val(1, T, 1.0)), ("b", val(1, T - 1, 2.0)), ("c", sub("/x")),
    ],
    "39 an older value of the same": [
        ("a", pub("/x")), ("a", val(1, T, 1.0)), ("a", val(1, T - 1, 2.0)), ("c", sub("/x")),
    ],
    "39 at the same time": [
        ("a", pub("/x")), ("b", pub("/x")), ("a", val(1, T, 1.0)), ("b", val(1, T, 2.0)), ("c", sub("/x")),
    ],
    "40 older values, live": [*TWO, ("c", pub("/x")), ("b", val(1, T, 1.0)), ("c", val(1, T - 1, 2.0))],
    "41 a default": [
        *TWO, ("b", val(1, 0, 1.0)), ("c", sub("/x")), ("b", val(1, T, 2.0)), ("d", pub("/x")), ("d", val(1, 0, 3.0)),
        ("e", sub("/x")),
    ],
    "41 a negative time beats a default": [
        ("a", pub("/x")), ("b", pub("/x")), ("a", val(1, 0, 1.0)), ("b", val(1, -10, 2.0)), ("c", sub("/x")),
    ],
    "42 not cached": [
        ("a", pub("/x", cached=False)), ("a", val(1, T, 1.0)), ("b", sub("/x")), ("a", val(1, T + 1, 2.0)),
    ],
    "42 no longer cached": [
        ("a", TOPICS), ("a", pub("/x")), ("b", TOPICS), ("a", val(1, T, 1.0)), ("b", props("/x", cached=False)),
        ("c", sub("/x")),
        ("b", props("/x", cached=True)), ("d", sub("/x")), ("a", val(1, T + 1, 2.0)), ("e", sub("/x")),
    ],
    "44 any properties": [*TWO[:1], ("b", pub("/x", deep={"a": [1, None, {"b": "ü"}]}, n=1.5, persistent="yes"))],
    "45 a property deleted": [
        ("a", TOPICS), ("a", pub("/x", one=1, two=2)), ("b", props("/x", one=None, three=3)), ("c", sub("/x")),
    ],
    "45 of no topic": [("a", props("/x", one=1)), ("a", pub("/x")), ("a", props("/x")), ("b", sub("/x"))],
    "45 of a meta topic": [("a", sub("$clients")), ("a", props("$clients", one=1))],
    "46 told to all": [*TWO, ("c", Join(is_bare=True)), ("c", pub("/x")), ("a", props("/x", one=1))],
    "46 by who knows nothing": [*TWO, ("b", TOPICS), ("c", props("/x", one=1))],
    "47 no longer retained": [
        *TWO[:1], ("b", TOPICS), ("b", pub("/x", retained=True)), ("b", unpub()), ("c", props("/x", retained=None)),
    ],
    "49 prefixes": [
        ("a", sub("/a", prefix=True)), ("b", sub("/a")), ("c", sub("", prefix=True)), ("d", sub("")), ("e", TOPICS),
        ("e", pub("/a")), ("e", pub("/ab", 2)), ("e", pub("/b/a", 3)), ("e", pub("", 4)),
    ],
    "50 first the topics": [
        ("b", TOPICS), ("b", pub("/x/1", 1)), ("b", pub("/x/2", 2)), ("b", val(1, T, 1.0) + val(2, T, 2.0)),
        ("a", sub("/x/", prefix=True)),
        ("b", pub("/x/3", 3)), ("b", val(3, T, 3.0)),
    ],
    "51 subscribed twice": [
        ("a", sub("/x")), ("a", sub("/", uid=2, prefix=True)), ("b", pub("/x")), ("b", val(1, T, 1.0)),
    ],
    "51 the strongest options": [
        ("a", sub("/x", all=False)), ("a", sub("/x", uid=2, topicsonly=True)), ("b", pub("/x")), ("b", val(1, T, 1.0)),
        ("a", sub("/x", uid=2)), ("b", values(1, T + 1, 1.0, 2.0, 3.0)),
    ],
    "52 subscribed once more": [*TWO, ("a", sub("/x", uid=2)), ("a", unsub()), ("a", unsub(2)), ("a", sub("/x"))],
    "53 a subuid again": [
        *TWO, ("b", val(1, T, 1.0)), ("a", sub("/x")), ("a", sub("/", uid=2, prefix=True)), ("a", sub("/x")),
    ],
    "53 another topic": [("b", TOPICS), ("b", pub("/y", 2)), ("b", val(2, T, 2.0)), *TWO, ("a", sub("/y"))],
    "54 unsubscribed": [*TWO, ("a", unsub()), ("b", val(1, T, 1.0)), ("a", sub("/x"))],
    "54 replaced": [*TWO, ("a", sub("/y")), ("b", val(1, T, 1.0))],
    "54 topics only from now on": [*TWO, ("a", sub("/x", topicsonly=True)), ("b", val(1, T, 1.0))],
    "55 topics only": [
        ("b", pub("/x")), ("b", val(1, T, 1.0)), ("a", sub("/x", topicsonly=True)), ("b", val(1, T + 1, 2.0)),
        ("a", sub("/x", uid=2)),
    ],
    "56 the newest": [
        ("a", sub("/x", all=False)), ("b", pub("/x")), ("b", val(1, T, 0.0)), ("b", values(1, T + 1, 1.0, 2.0, 3.0)),
    ],
    "56 all": [*TWO, ("b", values(1, T, *map(float, range(30))))],
    "58 clients": [("a", sub("$clients")), ("b", sub("/x")), ("b", Leave)],
    "58 what a client publishes": [
        ("b", pub("/x")), ("a", sub("$clientpub$b", prefix=True)), ("b", TOPICS), ("b", pub("/y", 2, "int")),
        ("b", unpub()),
    ],
    "58 what a client hears": [
        ("a", sub("$clientsub$b", prefix=True)), ("b", sub("/x")),
        ("b", sub("/y", uid=2, topicsonly=True, prefix=True)), ("b", unsub()),
    ],
    "58 who publishes": [("a", sub("$pub$/x")), ("b", pub("/x", 7)), ("c", pub("/x", 8)), ("b", unpub(7))],
    "59 nobody publishes": [("b", TOPICS), ("a", sub("$pub$/x")), ("b", pub("/x", 7)), ("b", unpub(7))],
    "58 who hears": [
        ("b", TOPICS), ("c", TOPICS), ("a", sub("$sub$/x")), ("b", pub("/x")), ("c", sub("/x", uid=3)),
        ("c", unsub(3)), ("b", unpub()),
    ],
    "58 the server itself": [("a", sub("$server", prefix=True))],
    "58 none of meta topics": [("a", sub("$sub$$", "$pub$$", prefix=True)), ("b", sub("$clients"))],
    "20 unknown options": [("a", sub("$clientsub$b", prefix=True)), ("b", sub("/x", colour="red"))],
    **{f"14 {name}": [*TWO, ("b", bad), ("b", val(1, T, 1.0))] for name, bad in BAD_TEXTS.items()},
    **{f"24 {name}": [
        *TWO, ("c", sub("/x")), ("b", val(1, T, 1.0) + bad + val(1, T, 2.0)),
    ] for name, bad in BAD_VALUES.items()},
    **{
        f"22 {kind}": [
            ("a", sub("/x")), ("b", pub("/x", 1, kind)), *[("b", val(1, T, each, number)) for each in of],
            ("c", sub("/x")),
        ]
        for kind, (number, of) in KINDS.items()
    },
}  # fmt: skip
