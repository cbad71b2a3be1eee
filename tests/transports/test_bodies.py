"""From the bytes of a request to its messages: all forms give the same messages; all others are refused with a reason.

Here random messages and random bytes are tried in all forms. `wire/test_request_forms.py` tests each form over a
socket, `hardening/test_bodies.py` each refusal.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halley.protocols.bayeux.fast import usual
from halley.protocols.json_text import OutOfRange, has_out_of_range
from halley.settings import Limits
from halley.transports.asgi import read_body
from halley.transports.bodies import form_fields, messages_of_body, parse
from halley.transports.exchange import Disconnected
from halley.transports.guard import Rejection

LIMITS = Limits()
FORM = "application/x-www-form-urlencoded"
REFUSALS = {400, 413, 415}

text = st.text(st.characters(codec="utf-8"), max_size=12)
numbers = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
messages = st.lists(st.dictionaries(text, values, max_size=4), min_size=1, max_size=5)
huge = st.sampled_from([2**64, 10**19, 10**30, -(2**63) - 1, -(10**19)]) | st.lists(st.integers(0, 2**65), max_size=20)


def body(*texts, escape=quote_plus, **encoding):
    return "&".join(f"message={escape(value, **encoding)}" for value in texts).encode()


def read(data, content_type=""):
    return messages_of_body(data, content_type.encode(), LIMITS).messages


def same(found, expected):
    """Return whether two values are equal and of the same types: 1 is not True, and 1.0 is not 1."""
    return json.dumps(found) == json.dumps(expected)


@given(messages, st.booleans())
def test_every_form_says_the_same(batch, ascii_only):
    """A1, A56, A57: an array, an object, or a form with one or many values, with any Content-Type."""
    whole = json.dumps(batch, ensure_ascii=ascii_only)
    each = [json.dumps(message, ensure_ascii=ascii_only) for message in batch]
    assert same(read(whole.encode(), "application/json"), batch)
    assert same(read(f"\r\n {whole} \t".encode()), batch)
    assert same(read(whole.encode(), FORM), batch)
    assert same(read(body(whole), FORM), batch)
    assert same(read(body(*each), FORM), batch)
    assert same(read(body(*each, escape=quote), "text/plain;charset=UTF-8"), batch)
    assert same(read(body(*each)), batch)
    assert same(read(each[0].encode()), batch[:1])
    halves = [f"[{','.join(part)}]" for part in (each[:2], each[2:]) if part]
    assert same(read(body(*halves), FORM), batch)


@given(messages, st.sampled_from(["utf-16", "utf-16-le", "utf-32", "gb18030", "utf-8"]))
def test_every_charset_says_the_same(batch, charset):
    """A57: for charsets that can encode all characters, in JSON and in a form."""
    whole = json.dumps(batch, ensure_ascii=False)
    assert same(read(whole.encode(charset), f"application/json; charset={charset}"), batch)
    form = body(whole, encoding=charset).decode().encode(charset)
    assert same(read(form, f"{FORM}; charset={charset}"), batch)


@given(
    st.binary(max_size=60) | st.text(st.sampled_from('[]{}":,1eE+-.\\udDA9mesag=&%'), max_size=40).map(str.encode),
    st.sampled_from(
        ["", "application/json", FORM, "text/plain; charset=utf-16", "a; charset=x", "; charset=shift_jis"]
    ),
)
def test_whatever_bytes_come_are_taken_or_refused(data, content_type):
    """P8: there is no other error, and accepted bytes are a list of objects."""
    refused = None
    found = []
    try:
        found = read(data, content_type)
    except Rejection as rejection:
        refused = rejection.status
    assert bool(found) is (refused is None)
    assert refused in {None, *REFUSALS}
    assert all(isinstance(message, dict) for message in found)


@pytest.mark.parametrize(
    "content_type",
    [
        "text/plain; charset=zip",
        "text/plain; charset=rot13",
        "text/plain; charset=idna",
        "text/plain; charset=punycode",
        "text/plain; charset=unicode_escape",
        "text/plain; charset=utf-7",
        "text/plain; charset=base64",
        "text/plain; charset=no-such",
    ],
)
def test_what_only_python_calls_a_charset_is_none(content_type):
    """S8: 415, since some of them are not character sets, and some take quadratic time."""
    with pytest.raises(Rejection) as caught:
        read(b"[{}]", content_type)
    assert caught.value.status == 415


@pytest.mark.parametrize("content_type", ["a/b; charset=", "a/b; charset", "a/b; charset=;x=y", "charsetx"])
def test_a_charset_that_is_not_named_is_utf_8(content_type):
    """A57: a malformed charset parameter is ignored."""
    assert read(b'[{"a":"\xc3\xa4"}]', content_type) == [{"a": "ä"}]


@pytest.mark.parametrize("number", ["18446744073709551616", "-9223372036854775809", "1e400", "-1E+999", "9" * 5_000])
@pytest.mark.parametrize("before", ["", "1,", '"e99999",'])
def test_a_number_that_not_everyone_can_carry_is_marked_where_it_stands(number, before):
    """S11: so that only the message with the number is refused."""
    batch = messages_of_body(f'[{{"a":[{before}{number}]}},{{"b":1}}]'.encode(), b"", LIMITS)
    assert batch.has_big_numbers
    assert isinstance(batch.messages[0]["a"][-1], OutOfRange)
    assert batch.messages[1] == {"b": 1}


@given(st.integers(-(2**63), 2**64 - 1))
def test_a_number_of_64_bits_stays_what_it_is(number):
    """S11: it is never altered silently."""
    (message,) = messages_of_body(b'{"a":%d}' % number, b"", LIMITS).messages
    assert message == {"a": number}
    assert isinstance(message["a"], int)


@pytest.mark.parametrize("data", [b'{"a":[[1]]}', b'{"a":{"b":{"c":1}}}', b'{"a":"[[[[[[[["}'])
def test_nesting_is_counted_in_levels_not_in_brackets(data):
    """S10: brackets inside strings are not levels."""
    assert parse([data], replace(LIMITS, nesting=4)).messages


@pytest.mark.parametrize("data", [b'{"a":[[[[1]]]]}', b'[{"a":{"b":{"c":{}}}}]', b'{"a":[1e400,[[[[]]]]]}'])
def test_deeper_nesting_is_refused(data):
    """S10: also behind a number because of which the text is parsed again."""
    with pytest.raises(Rejection) as caught:
        parse([data], replace(LIMITS, nesting=3))
    assert caught.value.status == 400


@pytest.mark.parametrize(
    "texts", [[b"[{},{},{}]"], [b"{}", b"{}", b"{}"], [b"[{},{}]", b"{}"], [b"{}", b'{"a":[1,2,3,4,5,6,7,8,9]}']]
)
def test_messages_and_values_are_counted_over_all_texts(texts):
    """S10: a form with many values has the same limits as one array."""
    with pytest.raises(Rejection) as caught:
        parse(texts, replace(LIMITS, messages=2, nodes=10))
    assert caught.value.status == 413


def test_form_fields_are_bounded_before_they_are_taken_apart():
    """S10: a million ampersands are not split into a million fields."""
    assert len(form_fields(b"&".join([b"a=1"] * 1_000), LIMITS)) == 1_000
    with pytest.raises(Rejection) as caught:
        form_fields(b"&".join([b"a=1"] * 1_100), LIMITS)
    assert caught.value.status == 413


def receiver(*events):
    """Return an ASGI `receive` that returns these events."""
    waiting = list(events)

    async def receive():
        return waiting.pop(0)

    return receive


def piece(content=b"", *, more=True):
    return {"type": "http.request", "body": content, "more_body": more}


def test_a_body_may_come_in_pieces():
    """A56: any number of pieces, empty ones too, also without the optional fields of ASGI."""
    receive = receiver(piece(b"[{"), piece(), piece(b"}]"), {"type": "http.request"})
    assert asyncio.run(read_body(receive, LIMITS)) == b"[{}]"


def test_a_body_is_refused_at_its_first_byte_too_many():
    """S5: the rest is not read."""
    receive = receiver(piece(b"x" * 600), piece(b"x" * 401))
    with pytest.raises(Rejection) as caught:
        asyncio.run(read_body(receive, replace(LIMITS, body_bytes=1_000)))
    assert (caught.value.status, caught.value.closes) == (413, True)


def test_a_peer_that_leaves_before_its_end_sends_nothing():
    """P8: an incomplete body gives no messages, even if its JSON is complete."""
    with pytest.raises(Disconnected):
        asyncio.run(read_body(receiver(piece(b"[{}]"), {"type": "http.disconnect"}), LIMITS))


@given(st.lists(st.dictionaries(text, values | huge | st.lists(huge, max_size=2), max_size=5), max_size=5))
def test_usual_bodies_give_the_same_messages(sent):
    """The short way has the messages of the long one, and leaves to that each that has a number out of range."""
    data = json.dumps(sent[0] if len(sent) == 1 else sent).encode()
    found = usual(data, LIMITS)
    if not sent:
        assert found is None
        return
    batch = messages_of_body(data, b"application/json", LIMITS)
    assert found in (None, batch.messages)
    if has_out_of_range(batch.messages):
        assert found is None
    elif not batch.has_big_numbers and b"e+" not in data:
        assert found == sent


@pytest.mark.parametrize("siblings", [0, 3, 20])
@pytest.mark.parametrize(("begin", "end"), [(b"[", b"]"), (b'{"a":', b"}")])
@pytest.mark.parametrize("levels", range(1, 9))
def test_usual_bodies_have_no_more_levels_than_are_allowed(levels, begin, end, siblings):
    """The short way takes an array of messages down to the same level as the long one, which refuses the others."""
    deep = begin * levels + b"1" + end * levels
    data = b'[{"data":%b}]' % deep if not siblings else b'[{"data":[%b%b]}]' % (b"1," * siblings, deep)
    limits = replace(LIMITS, nesting=7)
    found = usual(data, limits)
    if levels + 2 + bool(siblings) <= 7:
        assert found == messages_of_body(data, b"application/json", limits).messages
    else:
        assert found is None
        with pytest.raises(Rejection, match="nested too deeply"):
            messages_of_body(data, b"application/json", limits)
