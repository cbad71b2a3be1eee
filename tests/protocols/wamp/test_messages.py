"""Which messages a router accepts, and which are violations (W1-W3, W13, W14, W24, W50)."""

import math

import pytest

from halley.protocols.wamp import messages
from halley.protocols.wamp.errors import Violation
from halley.protocols.wamp.messages import MOST_ID, read

ROLES = {"roles": {"subscriber": {}}}
GOOD = [
    ([1, "realm1", ROLES], messages.Hello("realm1", ROLES)),
    ([3, {"message": "no"}, "wamp.close.normal"], messages.Abort({"message": "no"}, "wamp.close.normal")),
    ([3, {}, "a.b", ["x"], {"y": 1}], messages.Abort({}, "a.b")),
    ([5, "signature", {}], messages.Authenticate("signature", {})),
    ([6, {}, "wamp.close.normal"], messages.Goodbye({}, "wamp.close.normal")),
    ([8, 68, 7, {}, "a.b"], messages.Error(68, 7, {}, "a.b")),
    ([8, 68, 7, {}, "a.b", [1], {"k": 2}], messages.Error(68, 7, {}, "a.b", [1], {"k": 2})),
    ([16, 1, {}, "a.b"], messages.Publish(1, {}, "a.b", None, None)),
    ([16, 1, {"acknowledge": True}, "a.b", [1]], messages.Publish(1, {"acknowledge": True}, "a.b", [1], None)),
    ([16, 1, {}, "a.b", [], {}], messages.Publish(1, {}, "a.b", [], {})),
    ([16, 1, {}, "a.b", None], messages.Publish(1, {}, "a.b", None, None)),
    ([16, 1, {}, "a.b", None, {"k": 1}], messages.Publish(1, {}, "a.b", None, {"k": 1})),
    ([16, 1, {}, "a.b", [1], None], messages.Publish(1, {}, "a.b", [1], None)),
    ([32, 2, {"match": None}, "a."], messages.Subscribe(2, {"match": None}, "a.")),
    ([34, 3, 4], messages.Unsubscribe(3, 4)),
    ([48, 5, {}, "a.b", [1], {"k": 2}], messages.Call(5, {}, "a.b", [1], {"k": 2})),
    ([48, 5, {}, "a.b", None, {"k": 2}], messages.Call(5, {}, "a.b", None, {"k": 2})),
    ([48, 5, {}, "a.b", None, None], messages.Call(5, {}, "a.b", None, None)),
    ([49, 5, {"mode": "kill"}], messages.Cancel(5, {"mode": "kill"})),
    ([64, 6, {}, "a.b"], messages.Register(6, {}, "a.b")),
    ([66, 7, 8], messages.Unregister(7, 8)),
    ([70, 9, {}], messages.Yield(9, {})),
    ([70, 9, {}, [1], {}], messages.Yield(9, {}, [1], {})),
]
ID, TEXT, DICT, ARGS, KWARGS = "an id", "a text", "a dict", "a list or null", "a dict or null"
SHAPES = [  # the code, the kind of each element, how many of them are required
    (1, [TEXT, DICT], 2),
    (3, [DICT, TEXT, ARGS, KWARGS], 2),
    (5, [TEXT, DICT], 2),
    (6, [DICT, TEXT], 2),
    (16, [ID, DICT, TEXT, ARGS, KWARGS], 3),
    (32, [ID, DICT, TEXT], 3),
    (34, [ID, ID], 2),
    (48, [ID, DICT, TEXT, ARGS, KWARGS], 3),
    (49, [ID, DICT], 2),
    (64, [ID, DICT, TEXT], 3),
    (66, [ID, ID], 2),
    (70, [ID, DICT, ARGS, KWARGS], 2),
]
RIGHT = {ID: 1, TEXT: "a.b", DICT: {}, ARGS: [], KWARGS: {}}
SAMPLES = [None, True, 1, 1.5, "a.b", b"a.b", [], {}, ()]
WRONG = {
    kind: [
        value for value in SAMPLES if type(value) is not type(right) and not (value is None and kind in (ARGS, KWARGS))
    ]
    for kind, right in RIGHT.items()
}
SENTENCES = {messages.PUBLISH: "PUBLISH: ", messages.UNSUBSCRIBE: "UNSUBSCRIBE: ", messages.YIELD: "YIELD: "}


@pytest.mark.parametrize(("value", "message"), GOOD)
def test_what_clients_may_send(value, message):
    """Messages of every kind are read, with and without optional elements; empty elements are kept (W3)."""
    found = read(value)
    assert found == message
    assert type(found) is type(message)


@pytest.mark.parametrize(("code", "elements", "least"), SHAPES)
def test_lengths(code, elements, least):
    """A message with too few or too many elements is a violation (W2, S28)."""
    for count in range(len(elements) + 2):
        value = [code, *(RIGHT[kind] for kind in elements[:count]), *[1] * (count > len(elements))]
        if least <= count <= len(elements):
            assert read(value)
        else:
            with pytest.raises(Violation, match="the number of elements is wrong"):
                read(value)


@pytest.mark.parametrize(("code", "elements", "_least"), SHAPES)
def test_types(code, elements, _least):
    """An element of the wrong type is a violation (W2, W50)."""
    for at, kind in enumerate(elements):
        for wrong in WRONG[kind]:
            value = [code, *(RIGHT[kind] for kind in elements)]
            value[at + 1] = wrong
            with pytest.raises(Violation) as violation:
                read(value)
            assert str(violation.value).startswith(SENTENCES.get(code, "")), violation


@pytest.mark.parametrize("value", [None, True, 1, "x", b"", {}, (), (1, "realm1", {}), []])
def test_only_a_list_that_is_not_empty_is_a_message(value):
    """Anything but a list with elements is a violation (W50)."""
    with pytest.raises(Violation, match="A message must be a list and must not be empty"):
        read(value)


@pytest.mark.parametrize("code", [None, True, "1", 1.0, [], {}, -1, 0, 7, 9, 15, 71, 255, 256, 337, 2**70])
def test_codes_that_are_none(code):
    """A code is one of the known integers, never a bool that equals one (W1, W2, W50)."""
    with pytest.raises(Violation, match=r"must begin with the number|The message type is unknown"):
        read([code, "realm1", {}])


@pytest.mark.parametrize("code", [2, 4, 17, 33, 35, 36, 50, 65, 67, 68, 69])
def test_a_routers_messages_from_a_client(code):
    """A message type that only routers send is a violation if a client sends it (W50)."""
    with pytest.raises(Violation, match=r"is sent by routers only\."):
        read([code, 1, {}])


@pytest.mark.parametrize("kind", [48, 16, 1, 0, True, "68", None])
def test_a_client_answers_invocations_only_with_an_error(kind):
    """An ERROR is a violation unless it answers an INVOCATION (W50)."""
    with pytest.raises(Violation, match="ERROR: a client can send it only in answer to an INVOCATION"):
        read([8, kind, 1, {}, "a.b"])


@pytest.mark.parametrize("number", [1, 2**32 + 1, MOST_ID])
def test_ids_that_javascript_wrote_as_doubles(number):
    """Ids written as floats become integers in every position (W13)."""
    found = read([34, float(number), float(number)])
    assert found == (number, number)
    assert [type(each) for each in found] == [int, int]


@pytest.mark.parametrize(
    "number",
    [0, -1, 0.0, -0.0, 1.5, MOST_ID + 1, 2.0**54, 2**64, 1e300, math.nan, math.inf, -math.inf, True, "1", b"1"],
)
def test_ids_that_are_none(number):
    """Ids that are 0, negative, above 2^53 or not integers are violations (W14, S30)."""
    for value in ([34, number, 1], [34, 1, number], [16, number, {}, "a.b"], [8, 68, number, {}, "a.b"]):
        with pytest.raises(Violation, match=r"must be an integer from 1 to 2\^53"):
            read(value)


@pytest.mark.parametrize("key", [1, b"match", None, (), 1.5, True])
def test_keys_of_options_are_texts(key):
    """Keys of options that are not strings are violations (W2), but in arguments they fail only the publish."""
    for value in ([32, 1, {key: 1}, "a.b"], [1, "realm1", {"a": 1, key: 1}]):
        with pytest.raises(Violation, match="every key of the"):
            read(value)
    assert read([16, 1, {}, "a.b", [], {key: 1}]).kwargs == {key: 1}


@pytest.mark.parametrize("sealed", ["\0c2VjcmV0", b"secret"])
def test_a_sealed_payload_of_the_older_kind(sealed):
    """The older sealed payload, one string or bytes, is read as a publish without arguments, not a violation (W32)."""
    options = {"enc_algo": "cryptobox"}
    assert read([16, 1, options, "a.b", sealed]) == messages.Publish(1, options, "a.b")
    for value in ([16, 1, options, "a.b", sealed, {}], [16, 1, {}, "a.b", sealed], [16, 1, options, "a.b", 1]):
        with pytest.raises(Violation, match="PUBLISH: the arguments must be a list"):
            read(value)


def test_violations_quote_nothing_of_the_peer():
    """A violation's text contains nothing that the peer sent, since it is written into an ABORT and logs."""
    secret = "Grüße\r\n"
    for value in (
        [secret],
        [16, secret, {}, "a"],
        [16, 1, {secret: 1, 2: 3}, "a"],
        [16, 1, {}, "a", secret],
        {secret: 1},
    ):
        with pytest.raises(Violation) as violation:
            read(value)
        assert secret not in str(violation.value)
