"""What a fuzzing client sends: valid messages of each protocol, and ways to spoil them."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

from support.frames import sent

if TYPE_CHECKING:
    from random import Random

ODD_NUMBERS = (
    0, -1, 1, 2**31, 2**32, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, -(2**63), 0.0, -0.0, 0.1, 1e308, 5e-324,
)  # fmt: skip
ODD_TEXTS = (
    "", " ", "/", "//", "/a", "/a/", "/**", "/*", "/a/**", "/meta/connect", "/meta/x", "/service/a", "/halley/rates",
    "a.b", "a..b", ".", "wamp.session.count", "\x00", "\r\n", "é", "🙂", "\ud800", "x" * 300, "a" * 5_000, "null",
    "NaN", "1", "long-polling", "double", "int[]", "$clients", "$pub$x", "__proto__", "}", "]", '"', "\\",
    "!ff", "a/!c3!28", "!", "!2", "!e9",
)  # fmt: skip
ODD_BYTES = (b"\0", b"\xff", b"\r\n", b"\r\n\r\n", b" ", b"\t", b"%", b"\xc3", b"{", b"[", b'"')
CHANNELS = ("/a", "/a/b", "/chat/1", "/**", "/a/*", "/service/x", "/meta/subscribe", "/nt/x", "/halley/rates")
TOPICS = ("a", "a.b", "chat.1", "", "a.", "wamp.session.on_join", "wamp.topic.history.last")


def odd(choose: Random, depth: int = 0) -> Any:
    """Return any value that JSON has."""
    value: Any
    match choose.randrange(12 if depth < 4 else 8):
        case 0 | 1:
            value = choose.choice((None, True, False))
        case 2 | 3 | 4:
            value = choose.choice(ODD_NUMBERS)
        case 5 | 6 | 7:
            value = choose.choice(ODD_TEXTS)
        case 8:
            value = nested(choose.choice((3, 63, 64, 65, 200)), is_list=choose.random() < 0.5)
        case 9:
            value = [odd(choose, depth + 1) for _ in range(choose.randrange(5))]
        case 10:
            value = {choose.choice(ODD_TEXTS): odd(choose, depth + 1) for _ in range(choose.randrange(5))}
        case _:
            value = [choose.randrange(100)] * choose.choice((10, 1_000))
    return value


def nested(levels: int, *, is_list: bool) -> Any:
    """Return lists or maps within each other."""
    value: Any = 0
    for _ in range(levels):
        value = [value] if is_list else {"a": value}
    return value


def spoiled(choose: Random, value: Any, times: int) -> Any:
    """Return a copy of a message with `times` of its parts replaced, removed, repeated or added."""
    for _ in range(times):
        value = _spoiled_once(choose, value)
    return value


def _spoiled_once(choose: Random, value: Any) -> Any:
    if not value or not isinstance(value, list | dict) or choose.random() < 0.15:
        return odd(choose)
    return _spoiled_list(choose, value) if isinstance(value, list) else _spoiled_map(choose, value)


def _spoiled_list(choose: Random, value: list[Any]) -> list[Any]:
    at = choose.randrange(len(value))
    before, there, behind = value[:at], value[at], value[at + 1 :]
    match choose.randrange(6):
        case 0:
            return before + behind
        case 1:
            return [*before, *[there] * choose.choice((2, 30)), *behind]
        case 2:
            return [*before, odd(choose), there, *behind]
        case _:
            return [*before, _spoiled_once(choose, there), *behind]


def _spoiled_map(choose: Random, value: dict[str, Any]) -> dict[str, Any]:
    key = choose.choice(sorted(value))
    match choose.randrange(6):
        case 0:
            return {name: each for name, each in value.items() if name != key}
        case 1:
            return value | {choose.choice(ODD_TEXTS): odd(choose)}
        case _:
            return value | {key: _spoiled_once(choose, value[key])}


def scrambled(choose: Random, data: bytes) -> bytes:
    """Return bytes of which some are changed, removed, repeated or inserted."""
    changed = bytearray(data)
    for _ in range(choose.choice((1, 1, 2, 8))):
        at = choose.randrange(len(changed) + 1)
        match choose.randrange(6):
            case 0:
                changed[at : at + 1] = bytes((choose.randrange(256),))
            case 1:
                del changed[at : at + choose.choice((1, 2, 20))]
            case 2:
                changed[at:at] = changed[at : at + 20] * choose.choice((1, 2, 50))
            case 3:
                changed[at:at] = choose.choice(
                    (b"\0", b"\xff", b"\r\n", b"\r\n\r\n", b" ", b"\t", b"%", b"\xc3", b"{", b"[")
                )
            case 4:
                del changed[at:]
            case _:
                changed[at : at + 1] = bytes((changed[at] ^ 1 << choose.randrange(8),)) if at < len(changed) else b"0"
    return bytes(changed)


def text_of(choose: Random, value: Any) -> bytes:
    """Return a value as JSON, now and then in a form that JSON does not have."""
    data = json.dumps(value, ensure_ascii=choose.random() < 0.9).encode("utf-8", "surrogatepass")
    return scrambled(choose, data) if choose.random() < 0.15 else data


def bayeux(choose: Random, client_id: str) -> list[Any]:
    """Return some valid Bayeux messages of one request."""
    channel = choose.choice(CHANNELS)
    session = {"clientId": client_id}
    forms = (
        {"channel": "/meta/handshake", "version": "1.0", "supportedConnectionTypes": ["long-polling"], "ext": {}},
        {"channel": "/meta/handshake", "version": "1.0", "supportedConnectionTypes": ["callback-polling"],
         "ext": {"ack": True, "replay": True}, "advice": {"interval": 0}, "id": "1"},
        {"channel": "/meta/connect", "connectionType": "long-polling", "advice": {"timeout": 0}, **session},
        {"channel": "/meta/connect", "connectionType": "long-polling", "ext": {"ack": 1},
         "advice": {"timeout": 0}, **session},
        {"channel": "/meta/subscribe", "subscription": channel, **session},
        {"channel": "/meta/subscribe", "subscription": [channel, "/a"], "ext": {"replay": {channel: -1}}, **session},
        {"channel": "/meta/subscribe", "subscription": channel, "ext": {"latest": True}, **session},
        {"channel": "/meta/unsubscribe", "subscription": channel, **session},
        {"channel": "/meta/disconnect", **session},
        {"channel": channel, "data": {"a": [1, 2.5, None, "x"]}, **session},
        {"channel": channel, "data": 1, "ext": {"key": "k1"}},
        {"channel": channel, "data": 1, "ext": {"eligible_authid": ["a"], "exclude": [1]}, "id": 7},
    )  # fmt: skip
    return [choose.choice(forms) for _ in range(choose.choice((1, 1, 2, 5)))]


def wamp(choose: Random) -> list[Any]:
    """Return a valid WAMP message."""
    topic, number = choose.choice(TOPICS), choose.choice((1, 2, 3, 2**53))
    forms: tuple[list[Any], ...] = (
        [1, "realm1", {"roles": {"publisher": {}, "subscriber": {}, "caller": {}}}],
        [6, {}, "wamp.close.normal"],
        [16, number, {"acknowledge": True}, topic, [1, "x", None, 2.5], {"k": [True]}],
        [16, number, {"exclude": [1], "eligible": [2], "exclude_me": False, "retain": True}, topic, [], {}],
        [16, number, {"eligible_authid": ["a"], "exclude_authrole": ["b"], "disclose_me": True}, topic],
        [32, number, {"match": choose.choice(("exact", "prefix", "wildcard")), "get_retained": True}, topic],
        [34, number, number],
        [48, number, {}, choose.choice(("wamp.session.count", "wamp.session.list", "wamp.session.get"))],
        [48, number, {}, "wamp.subscription.get_events", [number, 10], {"reverse": True}],
        [48, number, {"timeout": 1}, "wamp.subscription.lookup", [topic, {"match": "prefix"}]],
        [48, number, {}, "wamp.session.add_testament", [topic, [1], {}], {"publish_options": {}, "scope": "detached"}],
        [49, number, {"mode": "kill"}],
        [5, "signature", {}],
        [64, number, {}, topic],
        [70, number, {}, [1]],
    )
    return choose.choice(forms)


def nt4_text(choose: Random) -> list[Any]:
    """Return a valid NT4 text frame."""
    name, uid = choose.choice(("/a", "/b", "x", "", "$clients", "/a/" + "b" * 300)), choose.choice((0, 1, 2, 2**31 - 1))
    kind = choose.choice(("double", "int", "boolean", "string", "raw", "float", "double[]", "string[]", "json", "x"))
    properties = choose.choice(({}, {"persistent": True}, {"retained": True, "x": [1]}, {"cached": False}))
    options = {"periodic": 0.1, "all": True, "topicsonly": False, "prefix": True}
    forms = (
        {"method": "publish", "params": {"name": name, "pubuid": uid, "type": kind, "properties": properties}},
        {"method": "unpublish", "params": {"pubuid": uid}},
        {"method": "setproperties", "params": {"name": name, "update": {"persistent": None, "y": 1}}},
        {"method": "subscribe", "params": {"topics": [name, ""], "subuid": uid, "options": options}},
        {"method": "unsubscribe", "params": {"subuid": uid}},
    )
    return [choose.choice(forms) for _ in range(choose.choice((1, 2, 20)))]


def nt4_value(choose: Random) -> list[Any]:
    """Return an NT4 value: pubuid, time, type and value."""
    number = choose.choice((0, 1, 2, 3, 4, 5, 16, 17, 18, 20, 6, 31))
    return [
        choose.choice((-1, 0, 1, 2)),
        choose.choice((0, 1_000_000, -5)),
        number,
        choose.choice((1, 2.5, "x", [1], b"r")),
    ]


def target(choose: Random) -> str:
    """Return the target of a request to one of the HTTP interfaces."""
    path = choose.choice(
        ("/", "/history", "/history/a", "/log", "/log/consumers/c", "/rights", "/bayeux", "/wamp", "/nt/x", "/x/../y")
    )
    names = (
        "channel",
        "from",
        "until",
        "limit",
        "reverse",
        "after",
        "before",
        "realm",
        "match",
        "message",
        "jsonp",
        "offset",
    )
    texts = (
        "/a",
        "/**",
        "-1",
        "0",
        "1",
        "99999999999999999999",
        "2026-01-01T00:00:00Z",
        "true",
        "%00",
        "%ff",
        "",
        "cb",
    )
    query = "&".join(f"{choose.choice(names)}={choose.choice(texts)}" for _ in range(choose.randrange(4)))
    return f"{path}?{query}" if query else path


def head(choose: Random, method: str, path: str, body: bytes) -> bytes:
    """Return a request with headers that browsers, proxies and attackers send."""
    more = (
        b"origin: http://127.0.0.1", b"origin: http://evil.example", b"origin: null", b"expect: 100-continue",
        b"content-encoding: gzip", b"connection: close", b"connection: upgrade", b"upgrade: websocket", b"upgrade: h2c",
        b"authorization: Bearer x.y.z", b"cookie: BAYEUX_BROWSER=x", b"x-forwarded-for: 1.2.3.4", b"range: bytes=0-1",
        b"transfer-encoding: chunked", b"content-length: 5", b"accept: */*", b"sec-fetch-site: cross-site", b"a:",
    )  # fmt: skip
    fields = [b"host: 127.0.0.1", b"content-type: application/json;charset=UTF-8", b"content-length: %d" % len(body)]
    fields += [choose.choice(more) for _ in range(choose.choice((0, 0, 1, 3)))]
    return b"\r\n".join((f"{method} {path} HTTP/1.1".encode(), *fields, b"", body))


def frames(choose: Random, data: bytes, opcode: int) -> bytes:
    """Return a message as WebSocket frames, now and then invalid ones."""
    if choose.random() < 0.7:
        return sent(opcode, data)
    parts = [data[start : start + 7] for start in range(0, min(len(data), 200), 7)] or [b""]
    made = b""
    for number, part in enumerate(parts):
        flags = 0x80 if number == len(parts) - 1 else 0
        made += sent(0 if number else opcode, part, flags=flags)
        if choose.random() < 0.2:
            made += sent(choose.choice((9, 10)), b"p")
    match choose.randrange(5):
        case 0:
            return scrambled(choose, made)
        case 1:
            return made + sent(
                choose.randrange(16), b"x" * choose.choice((0, 1, 125, 126)), flags=choose.randrange(256) & 0xF0
            )
        case 2:
            return made + sent(8, choose.choice((b"", b"\x03", b"\x03\xe8", b"\x03\xed", b"\x03\xe8\xff")))
        case 3:
            return made + struct.pack(">BBQ", 0x82, 0xFF, choose.choice((0, 125, 2**31, 2**63)))
        case _:
            return made
