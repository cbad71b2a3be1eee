"""JSONP callbacks, and scripts that cannot be read as anything else (A63-A65, S35-S37)."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halley.protocols.bayeux.messages import encode
from halley.protocols.bayeux.session import Reply
from halley.settings import Bayeux, Limits
from halley.transports.callback_polling import read, render
from halley.transports.guard import Rejection
from halley.transports.head import Head

LEGAL = re.compile(r"[A-Za-z0-9_$-]+(\.[A-Za-z0-9_$-]+)*", re.ASCII)

texts = st.text(st.characters(codec="utf-8") | st.sampled_from("</!>\u2028\u2029&'\"\\"), max_size=12)
values = st.recursive(texts | st.integers(-(2**53), 2**53), lambda inner: st.dictionaries(texts, inner, max_size=3))


def called_by(query, **options):
    """Return the callback that a request with this query names."""
    head = Head("GET", "/bayeux", query.encode(), {}, "", "http")
    return read(head, Bayeux(**options), Limits())[0]


@given(
    st.text(st.characters(codec="utf-8", exclude_characters="&#%+"), max_size=70)
    | st.text(st.sampled_from("aZ09_$-."), max_size=70)
)
def test_a_callback_is_a_dotted_name_of_64_characters_at_most(callback):
    """A65, S35: other callbacks are refused, so that no foreign text can begin a script."""
    legal = len(callback) <= 64 and LEGAL.fullmatch(callback)
    if legal:
        assert called_by(f"jsonp={callback}&message={{}}") == callback
    else:
        with pytest.raises(Rejection) as caught:
            called_by(f"jsonp={callback}&message={{}}")
        assert (caught.value.status, caught.value.text) == (400, "bad callback")


def test_without_a_callback_the_specification_names_one():
    """A63: the default is `jsonpcallback`."""
    assert called_by("message={}") == "jsonpcallback"


@given(st.lists(st.dictionaries(texts, values, max_size=3), min_size=1, max_size=3))
def test_a_script_says_what_was_sent_and_nothing_else(messages):
    """A64, S36: one call, without `<`, which could begin a tag, and line separators, which break older JavaScript."""
    parts = [json.dumps(message, ensure_ascii=False).encode() for message in messages]
    script = render(Reply(parts, None, [], None), "cb").decode()
    assert script.startswith("/**/cb([")
    assert script.endswith("]);")
    assert not {"<", "\u2028", "\u2029"} & set(script)
    assert json.loads(script.removeprefix("/**/cb(").removesuffix(");")) == messages


@given(texts)
def test_a_reply_that_echoes_markup_holds_none(text):
    """E2: also with long-polling, for browsers that guess the type."""
    encoded = encode({"id": text, "subscription": [text]})
    assert b"<" not in encoded
    assert json.loads(encoded) == {"id": text, "subscription": [text]}
