"""How options are read: absent ones, accepted values, and refused ones (W13, W18, W27)."""

import cbor2
import msgspec
import pytest

from halley.broker.broker import Broker
from halley.broker.errors import AudienceTooLong
from halley.broker.events import Audience
from halley.protocols.wamp import messages
from halley.protocols.wamp.errors import InvalidOption
from halley.settings import Limits

ABSENT = [None, cbor2.undefined, msgspec.msgpack.Ext(0, b"\0")]
READERS = [
    (messages.flag_option, False),
    (messages.text_option, None),
    (messages.ids_option, None),
    (messages.names_option, None),
    (messages.texts_option, None),
]
GOOD = [
    (messages.flag_option, True, True),
    (messages.flag_option, False, False),
    (messages.text_option, "", ""),
    (messages.text_option, "prefix", "prefix"),
    (messages.ids_option, [], ()),
    (messages.ids_option, 7, (7,)),
    (messages.ids_option, [7, 2.0**40, 7], (7, 2**40, 7)),
    (messages.texts_option, ["b", "a", "b"], ("b", "a", "b")),
    (messages.names_option, [], ()),
    (messages.names_option, "ann", ("ann",)),
    (messages.names_option, ["bob", "ann", "bob"], ("ann", "bob")),
]
BAD = [
    (messages.flag_option, [1, 0, "true", [], {}, 1.0]),
    (messages.text_option, [1, True, b"prefix", [], {}]),
    (messages.ids_option, ["1", True, {}, [None], ["1"], [True], [0], [2**53 + 1], [1.5], [[1]]]),
    (messages.names_option, [1, True, {}, b"ann", ["ann", None], ["ann", 1], [["ann"]]]),
]


@pytest.mark.parametrize(("read", "default"), READERS)
@pytest.mark.parametrize("sent", [{}, *({"x": value} for value in ABSENT)])
def test_undefined_and_null_are_as_good_as_none(read, default, sent):
    """Options that are null or undefined count as absent; some clients send unset options so (W18)."""
    assert read(sent, "x") == default


@pytest.mark.parametrize("sent", [{}, {"exclude_me": None}])
def test_a_flag_that_is_on_unless_told_otherwise(sent):
    """A flag can be true by default, as `exclude_me` is (W26)."""
    assert messages.flag_option(sent, "exclude_me", default=True) is True
    assert messages.flag_option({"exclude_me": False}, "exclude_me", default=True) is False


@pytest.mark.parametrize(("read", "sent", "meaning"), GOOD)
def test_values(read, sent, meaning):
    """A single value is accepted for a list, and a float for an id (W13, W27)."""
    assert read({"x": sent}, "x") == meaning


@pytest.mark.parametrize(("read", "sent"), [(read, value) for read, values in BAD for value in values])
def test_values_of_the_wrong_type(read, sent):
    """A wrong type raises `InvalidOption` with the option's name (W18, W27), and so does an unknown ext."""
    for value in (sent, msgspec.msgpack.Ext(1, b"")):
        with pytest.raises(InvalidOption) as refused:
            read({"x": value}, "x")
        assert refused.value.name == "x"


def test_an_audience_from_the_four_lists():
    """The four lists of authids and roles become an `Audience`, in which an empty list admits no session (W27)."""
    sent = {"eligible_authid": [], "eligible_authrole": "staff", "exclude_authid": ["b", "a"], "exclude_authrole": None}
    assert messages.audience_of(sent) == Audience((), ("staff",), ("a", "b"), ())
    assert messages.audience_of({}) == Audience()
    assert messages.audience_of({"acknowledge": True, "exclude": [1], "exclude_authid": []}) == Audience()


def test_an_audience_has_a_bound():
    """The limit of an audience counts the names of all lists together."""
    sent = {"eligible_authid": ["a" * 46], "exclude_authrole": ["b" * 46]}
    audience = messages.audience_of(sent)
    assert Broker(Limits(audience_chars=100)).check_audience(audience) == audience
    with pytest.raises(AudienceTooLong):
        Broker(Limits(audience_chars=99)).check_audience(audience)
