"""A list or a dictionary in the place of any value of any message: a documented answer, never an internal error (S17).

Neither can be hashed, so a look-up with one that is not checked first would fail.
"""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

import pytest
from support.wamp_peers import ROLES, Peer, World

from halley.protocols.wamp.serializers import SERIALIZERS

if TYPE_CHECKING:
    from collections.abc import Iterator

WRONG: list[Any] = [{}, [], {"a": []}, [[]], [{}], ["a", {}], [1, []]]
HELLO = [1, "realm1", {"roles": ROLES, "authmethods": ["anonymous"], "authid": "a", "authextra": {}}]
LISTS = {f"{verb}{of}": ["a"] for verb in ("eligible", "exclude") for of in ("_authid", "_authrole")}
PASSTHRU = {f"ppt_{name}": "x" for name in ("scheme", "serializer", "cipher", "keyid")}
FLAGS = dict.fromkeys(("exclude_me", "disclose_me", "retain"), True)
SESSION_LISTS = {"eligible": [1], "exclude": [2]}
PUBLISH = {**FLAGS, **LISTS, **PASSTHRU, **SESSION_LISTS, "acknowledge": True, "_idempotency_key": "k"}
FILTERS = {
    f"{bound}_{kind}": value
    for bound in ("from", "after", "before", "until")
    for kind, value in (("time", "2026-01-01T00:00:00Z"), ("publication", 1))
}
KEYWORDS = {
    "get_events": {**FILTERS, "limit": 1, "reverse": True, "topic": "a"},
    "add_testament": {"publish_options": PUBLISH, "scope": "detached"},
    "flush_testaments": {"scope": "detached"},
}
ARGUMENTS: dict[str, list[Any]] = {
    "lookup": ["a", {"match": "exact"}],
    "add_testament": ["a", [1], {"k": 1}],
    "flush_testaments": [],
    "get_events": [1],
}
MESSAGES: dict[str, list[Any]] = {
    "abort": [3, {"message": "x"}, "a.b", [1], {"k": 1}],
    "authenticate": [5, "x", {}],
    "goodbye": [6, {"message": "x"}, "a.b"],
    "error": [8, 68, 1, {}, "a.b", [1], {"k": 1}],
    "publish": [16, 1, PUBLISH, "a.b", [1], {"k": 1}],
    "subscribe": [32, 1, {"match": "exact", "get_retained": True}, "a.b"],
    "unsubscribe": [34, 1, 1],
    "cancel": [49, 1, {"mode": "kill"}],
    "register": [64, 1, {"match": "exact", "invoke": "single"}, "a.b"],
    "unregister": [66, 1, 1],
    "yield": [70, 1, {}, [1], {"k": 1}],
    **{
        name: [48, 1, {"timeout": 1}, name, ARGUMENTS.get(last, [1, 1]), {"reason": "a.b", **KEYWORDS.get(last, {})}]
        for name in World().router.handlers.procedures.by_uri
        if (last := name.rpartition(".")[2])
    },
}
ANSWERED = {16, 32, 34, 48, 64, 66}
ANSWERS = {3, 6, 8, 17, 33, 35, 50}


def places(value: Any, *above: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each value within a message."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield (*above, key)
        yield from places(value[key], *above, key)


def with_wrong(message: list[Any]) -> Iterator[list[Any]]:
    """Yield copies of a message, each with a wrong value in one place."""
    for *above, last in places(message):
        for wrong in WRONG:
            changed = part = deepcopy(message)
            for key in above:
                part = part[key]
            part[last] = wrong
            yield changed


def is_answered(peer: Peer, message: list[Any]) -> bool:
    """Send a message; return whether it got one answer, or none if it needs none."""
    peer.say(message)
    answers = [each[0] for each in peer.heard if each[0] != 36]
    peer.heard.clear()
    if not answers:
        return message[0] not in ANSWERED or (message[0] == 16 and message[2].get("acknowledge") is not True)
    return len(answers) == 1 and answers[0] in ANSWERS


@pytest.mark.parametrize("serializer", SERIALIZERS)
@pytest.mark.parametrize("name", MESSAGES)
def test_in_a_session(name: str, serializer: str) -> None:
    """S17, W50: a message with a value of the wrong type has one answer, an error of its own or ABORT."""
    world = World()
    peer = None
    for message in with_wrong(MESSAGES[name]):
        if peer is None or peer.closed is not None or peer.engine.session is None:
            peer = world.joined(subprotocol=f"wamp.2.{serializer}")
        assert is_answered(peer, message), message


@pytest.mark.parametrize("serializer", SERIALIZERS)
def test_before_a_session(serializer: str) -> None:
    """S17, W50: a HELLO with a value of the wrong type is answered with ABORT, or WELCOME where it does not matter."""
    world = World()
    for message in with_wrong(HELLO):
        peer = world.peer(f"wamp.2.{serializer}")
        peer.say(message)
        assert peer.hear()[0] in (2, 3), message
        assert peer.hears_nothing()
