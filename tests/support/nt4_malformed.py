"""Invalid NT4 messages: NA14 to NA24 state what a server must do with each (ND8)."""

from __future__ import annotations

import json
from typing import Any

from support.nt4 import ARRAY, BOOLEAN, DOUBLE, INT, RAW, STRING, packed, text

_T = 1_000_000


def _frame(method: str, **params: Any) -> str:
    return json.dumps([text(method, **params)])


def _val(uid: int, time_us: int, value: Any, number: int = DOUBLE) -> bytes:
    return packed(uid, time_us, number, value)


BAD_TEXTS = {
    "empty": "",
    "no JSON": "{[",
    "no array": '{"method":"publish","params":{"name":"/n","pubuid":9,"type":"double","properties":{}}}',
    "a number": "[7]",
    "no method": '[{"params":{"name":"/n","pubuid":9,"type":"double","properties":{}}}]',
    "method no string": '[{"method":7,"params":{"name":"/n","pubuid":9,"type":"double","properties":{}}}]',
    "no params": '[{"method":"publish"}]',
    "params no object": '[{"method":"publish","params":[]}]',
    "unknown method": _frame("shout", name="/n", pubuid=9),
    "a server's method": _frame("announce", name="/n", id=9, type="double", properties={}),
    "no name": _frame("publish", pubuid=9, type="double", properties={}),
    "no type": _frame("publish", name="/n", pubuid=9, properties={}),
    "name no string": _frame("publish", name=7, pubuid=9, type="double", properties={}),
    "properties null": _frame("publish", name="/n", pubuid=9, type="double", properties=None),
    "properties an array": _frame("publish", name="/n", pubuid=9, type="double", properties=[]),
    "pubuid a float": '[{"method":"publish","params":{"name":"/n","pubuid":8.0,"type":"double","properties":{}}}]',
    "pubuid a string": _frame("publish", name="/n", pubuid="7", type="double", properties={}),
    "pubuid too large": _frame("publish", name="/n", pubuid=2**31 - 1, type="double", properties={}),
    "topics no array": _frame("subscribe", topics="/x", subuid=9, options={}),
    "a topic no string": _frame("subscribe", topics=["/x", 7], subuid=9, options={}),
    "periodic a string": _frame("subscribe", topics=["/x"], subuid=9, options={"periodic": "0.1"}),
    "periodic negative": _frame("subscribe", topics=["/x"], subuid=9, options={"periodic": -1}),
    "all a number": _frame("subscribe", topics=["/x"], subuid=9, options={"all": 1}),
    "topicsonly null": _frame("subscribe", topics=["/x"], subuid=9, options={"topicsonly": None}),
    "prefix a string": _frame("subscribe", topics=["/x"], subuid=9, options={"prefix": "true"}),
    "options an array": _frame("subscribe", topics=["/x"], subuid=9, options=[]),
    "unpublish of nothing": _frame("unpublish", pubuid=77),
    "unsubscribe of nothing": _frame("unsubscribe", subuid=77),
    "update no object": _frame("setproperties", name="/x", update=[]),
}
"""Neither answered nor fatal (NA14 to NA20)."""

BAD_VALUES = {
    "truncated": _val(1, _T, 1.0)[:-1],
    "no array": b"\x07",
    "three": b"\x93\x01\x02\x01",
    "five": b"\x95\x01\x02\x01\x07\x07",
    "type unknown": _val(1, _T, 7, 6),
    "type negative": _val(1, _T, 7, -1),
    "type 21": _val(1, _T, [7], 21),
    "id a float": packed(1.0, _T, DOUBLE, 1.0),
    "id a string": packed("1", _T, DOUBLE, 1.0),
    "time a float": packed(1, 1.0, DOUBLE, 1.0),
    "time a string": packed(1, "1", DOUBLE, 1.0),
    "time too late": packed(1, 2**63, DOUBLE, 1.0),
    "type a string": packed(1, _T, "1", 1.0),
    "float as int": _val(1, _T, 1.5, INT),
    "boolean as int": _val(1, _T, True, INT),
    "int as boolean": _val(1, _T, 1, BOOLEAN),
    "string as raw": _val(1, _T, "x", RAW),
    "bytes as string": _val(1, _T, b"x", STRING),
    "mixed doubles": _val(1, _T, [1.0, "x"], ARRAY + DOUBLE),
    "mixed ints": _val(1, _T, [1, 1.5], ARRAY + INT),
    "mixed booleans": _val(1, _T, [True, 1], ARRAY + BOOLEAN),
    "mixed strings": _val(1, _T, ["x", 1], ARRAY + STRING),
    "no array as doubles": _val(1, _T, 1.0, ARRAY + DOUBLE),
    "nil": _val(1, _T, None),
    "a map": _val(1, _T, {}),
    "reserved byte": b"\xc1",
}
"""Each closes the connection, after the values before it in the message were processed (NA24)."""
