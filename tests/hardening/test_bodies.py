"""Bodies that are refused before an engine sees them: too large, encoded, not JSON, not messages (S5, S6, S8-S10)."""

from __future__ import annotations

import json
from urllib.parse import quote

import pytest
from support.messages import publish
from support.refusals import CANARY, refusal
from support.server import PARSED, SHORT_WAY
from support.wire import chunked, head, post

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.faces(SHORT_WAY, PARSED)]

MESSAGE = json.dumps(publish("/canary", CANARY)).encode()
LIMIT = 262_144


def padded(nbytes):
    """Return a publish of exactly `nbytes` bytes."""
    return b"[" + b" " * (nbytes - len(MESSAGE) - 2) + MESSAGE + b"]"


async def test_s5_a_body_of_256_kib_is_served_and_one_byte_more_gets_413(served):
    """S5: 413 is sent from the head alone, whether or not the body follows."""
    wire = await served.wire()
    assert (await wire.request(post(padded(LIMIT)))).status == 200
    await refusal(served, post(padded(LIMIT + 1)), 413, "request body too large", closes=True)
    only_head = head("POST /bayeux HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {LIMIT + 1}")
    await refusal(served, only_head, 413, "request body too large", closes=True)


async def test_s5_a_chunked_body_gets_413_at_the_first_byte_too_many(served):
    """S5: a request that never ends is refused as soon as it exceeds the limit."""
    wire = await served.wire()
    assert (await wire.request(chunked(padded(LIMIT)[:1000], padded(LIMIT)[1000:]))).status == 200
    whole = chunked(padded(LIMIT) + b" ")
    await refusal(served, whole[: -len(b"\r\n0\r\n\r\n")], 413, "request body too large", closes=True)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"1;" + b"x" * 300_000, id="one-extension"),
        pytest.param((b"1;" + b"x" * 1_000 + b"\r\n \r\n") * 300, id="many-extensions"),
        pytest.param(b"0\r\nX-Trailer: " + b"x" * 300_000, id="trailer"),
        pytest.param(b"0\r\n" + b"".join(b"X-%d: %b\r\n" % (n, b"x" * 3_000) for n in range(99)), id="trailers"),
    ],
)
async def test_s5_chunk_extensions_and_trailers_count_towards_the_limit(served, data):
    """Bytes that are neither head nor content are bounded too: 413, or 431 if trailers are too long."""
    before = served.books()
    wire = await served.wire()
    answer = await wire.request(
        head("POST /bayeux HTTP/1.1", "Host: 127.0.0.1", "Transfer-Encoding: chunked", body=data)
    )
    assert answer.status in (413, 431)
    assert await wire.is_closed()
    assert served.books() == before


async def test_s5_content_and_framing_together_may_not_pass_the_limit(served):
    """Chunk extensions count towards the body's limit, so half content and half framing can exceed it."""
    chunks = b"".join(b"%x;%b\r\n%b\r\n" % (1_000, b"x" * 1_000, b" " * 1_000) for _ in range(200))
    data = head("POST /bayeux HTTP/1.1", "Host: 127.0.0.1", "Transfer-Encoding: chunked", body=chunks)
    last = b"%x\r\n%b\r\n0\r\n\r\n" % (len(MESSAGE), MESSAGE)
    await refusal(served, data + last, 413, "request body too large", closes=True)


async def test_a_body_that_is_refused_before_it_is_asked_for_is_no_fault(served):
    """RFC 9110, 10.1.1: after the refusal nothing asks the client to continue; that would be an error in the log."""
    wire = await served.wire()
    asking = head("POST /bayeux HTTP/1.1", "Host: 127.0.0.1", "Expect: 100-continue", "Transfer-Encoding: chunked")
    answer = await wire.request(asking + b"no length\r\n")
    assert (answer.status, answer.text) == (400, "bad request")
    assert await wire.is_closed()
    assert not [line for line in served.log if line["event"] == "fault"]


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "GZIP", "x-gzip", "gzip, identity", "identity, gzip"])
async def test_s6_an_encoded_body_gets_415_and_is_never_inflated(served, coding):
    """S6: any content coding is refused."""
    data = post(MESSAGE, content_encoding=coding)
    await refusal(served, data, 415, "content encoding not supported", closes=True)


async def test_s6_identity_is_no_encoding(served):
    """RFC 9110, 8.4: `identity` changes nothing."""
    wire = await served.wire()
    assert (await wire.request(post(MESSAGE, content_encoding="identity"))).status == 200


@pytest.mark.parametrize(
    "body",
    [
        b"\xef\xbb\xbf" + MESSAGE,
        b"[" + MESSAGE + b",]",
        b"[" + MESSAGE,
        MESSAGE + MESSAGE,
        MESSAGE[:-1] + b',"x":NaN}',
        MESSAGE[:-1] + b',"x":-Infinity}',
        MESSAGE[:-1] + b',"x":"\\ud800"}',
        MESSAGE[:-1] + b',"x":"\\udc00"}',
        MESSAGE[:-1] + b',"x":"\\ud800 12345678901234567890"}',
        MESSAGE[:-1] + b',"x":"\\udc00 12345678901234567890"}',
        MESSAGE[:-1] + b',"\\udc00 1e100":1}',
        MESSAGE.replace(CANARY.encode(), b"\\udc00 1e100"),
        MESSAGE[:-1] + b',"x":"\xed\xa0\x80"}',
        MESSAGE[:-1] + b',"x":"\xff"}',
        MESSAGE[:-1] + b',"x":"\xc0\xaf"}',
        MESSAGE[:-1] + b',"x":"a\nb"}',
        MESSAGE[:-1] + b',"x":01}',
        MESSAGE[:-1] + b',"x":.5}',
        MESSAGE[:-1] + b',"x":0x10}',
        MESSAGE[:-1] + b",'x':1}",
        MESSAGE[:-1] + b',"x":1}//',
        MESSAGE.replace(b'"', b"'"),
        MESSAGE + b"\x00",
        b"[" + MESSAGE + b"," + MESSAGE[:-1] + b"]",
    ],
)
async def test_s8_what_is_not_json_gets_400_and_none_of_it_is_processed(served, body):
    """S8: a body with a byte order mark, lone surrogates, bad UTF-8 or other violations of RFC 8259 is refused."""
    await refusal(served, post(body), 400, "body is not JSON" if body[:1] in b"[{" else "body is not a Bayeux message")


@pytest.mark.parametrize(
    "charset", ["c4n4ry", "utf-7", "idna", "rot13", "zip", "base64", "unicode_escape", "utf-8-sig"]
)
async def test_s8_an_unknown_charset_gets_415(served, charset):
    """S8, A57: an unknown charset is 415, and so is a codec of Python's that is not a charset."""
    data = post(MESSAGE, content_type=f"application/json; charset={charset}")
    await refusal(served, data, 415, "charset not supported")


@pytest.mark.parametrize("charset", ["utf-16", "ascii", "shift_jis"])
async def test_s8_a_body_that_is_not_in_its_charset_gets_400(served, charset):
    """S8: bytes that are invalid in the request's charset are 400."""
    data = post(MESSAGE + b"\x81", content_type=f"application/json; charset={charset}")
    await refusal(served, data, 400, "body is not in its charset")


@pytest.mark.parametrize(
    "body", [b"1", b'"c4n4ry"', b"null", b"true", b"c4n4ry", b"", b" \r\n", b"\xff\xfe", b"<c4n4ry/>"]
)
async def test_s9_what_is_neither_object_nor_array_gets_400(served, body):
    """S9, A69: scalars and empty bodies are 400."""
    await refusal(served, post(body), 400, "body is not a Bayeux message")


async def test_s9_an_empty_array_gets_400(served):
    """S9, A69: an empty array has no message to answer, so it is 400."""
    await refusal(served, post(b"[]"), 400, "no message")
    await refusal(served, post(b"message=%5B%5D", content_type="application/x-www-form-urlencoded"), 400, "no message")


@pytest.mark.parametrize("element", [b"1", b"null", b'"c4n4ry"', b"[]", b"[{}]", b"true"])
async def test_s9_an_array_of_other_things_than_objects_gets_400(served, element):
    """S9: an array with anything but objects is 400, and messages in it are not processed."""
    await refusal(served, post(b"[" + element + b"]"), 400, "body is not a Bayeux message")
    await refusal(served, post(b"[" + MESSAGE + b"," + element + b"]"), 400, "body is not a Bayeux message")


async def test_s9_a_form_without_a_message_gets_400(served):
    """A.9: a form whose field `message` is missing, empty or not a JSON message is 400."""
    form = "application/x-www-form-urlencoded"
    await refusal(
        served, post(b"massage=" + quote(MESSAGE).encode(), content_type=form), 400, "body is not a Bayeux message"
    )
    await refusal(served, post(b"message=", content_type=form), 400, "body is not JSON")
    await refusal(served, post(b"message=c4n4ry", content_type=form), 400, "body is not JSON")
    await refusal(served, post(b"message=%ff", content_type=form), 400, "form is not in its charset")
    await refusal(served, post(b"message=1", content_type=form), 400, "body is not a Bayeux message")


def nested(levels):
    """Return a publish whose JSON is `levels` levels deep."""
    inner = b"[" * (levels - 1) + b"]" * (levels - 1)
    return b'{"channel":"/canary","data":' + inner + b"}"


async def test_s10_64_levels_are_served(served):
    """S10: JSON of 64 levels, the limit, is accepted."""
    wire = await served.wire()
    assert (await wire.request(post(nested(64)))).messages == [{"channel": "/canary", "successful": True}]


@pytest.mark.parametrize("levels", [65, 255, 1_025, 100_000])
async def test_s10_deeper_nesting_gets_400(served, levels):
    """S10: deeper nesting is 400, even if it could crash a parser; either the parser or the limit refuses it."""
    before = served.books()
    wire = await served.wire()
    answer = await wire.request(post(nested(levels)))
    assert answer.status == 400
    assert answer.text in ("nested too deeply", "body is not JSON")
    assert served.books() == before
    assert (await wire.request(post(MESSAGE))).status == 200


async def test_s10_nesting_cannot_hide_behind_an_odd_number(served):
    """A number that makes JSON slower to parse does not lift the limit on nesting."""
    body = b'{"channel":"/canary","data":[1e999,' + b"[" * 60_000 + b"]" * 60_000 + b"]}"
    await refusal(served, post(body), 400, "body is not JSON")


async def test_s10_1000_messages_are_served_and_1001_get_413(served):
    """S10: a batch of 1,000 messages is processed, one of 1,001 is 413."""
    wire = await served.wire()
    answer = await wire.request(post(b"[" + b",".join([MESSAGE] * 1_000) + b"]"))
    assert len(answer.messages) == 1_000
    for body in (b"[" + b",".join([b"{}"] * 1_001) + b"]", b"[" + b",".join([MESSAGE] * 1_001) + b"]"):
        await refusal(served, post(body), 413, "too many messages or values")


async def test_s10_1001_messages_get_413_however_they_are_spread_over_a_form(served):
    """S10: the messages of all fields of a form are counted together."""
    form = b"&".join([b"message=" + quote(b"[" + b",".join([b"{}"] * 500) + b"]").encode()] * 3)
    await refusal(served, post(form, content_type="text/plain"), 413, "too many messages or values")
    fields = b"&".join([b"message={}"] * 2_000)
    await refusal(served, post(fields, content_type="text/plain"), 413, "too many fields")


@pytest.mark.parametrize(
    "data",
    [b"[" + b",".join([b"0"] * 20_001) + b"]", b"[" + b",".join([b"[]"] * 20_001) + b"]"],
    ids=["flat", "arrays"],
)
async def test_s10_more_than_20000_values_get_413(served, data):
    """S10: more than 20,000 values are 413, because parsed JSON is up to 31 times larger than its text."""
    await refusal(served, post(b'{"channel":"/canary","data":' + data + b"}"), 413, "too many messages or values")


async def test_s10_text_with_many_commas_is_no_lot_of_values(served):
    """S10: commas within strings do not count as values."""
    body = json.dumps(publish("/canary", "," * 30_000)).encode()
    wire = await served.wire()
    assert (await wire.request(post(body))).messages == [{"channel": "/canary", "successful": True}]
