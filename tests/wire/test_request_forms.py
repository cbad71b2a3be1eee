"""Every form in which clients send messages, and every address they send them to (A56-A62).

The same three publishes are sent in each form. All must be answered, in order, and a subscriber must get their data
unchanged.
"""

from __future__ import annotations

import json
from urllib.parse import quote, quote_plus

import pytest
from support.messages import HANDSHAKE, connect, disconnect, publish, subscribe
from support.server import PARSED, SHORT_WAY
from support.wire import chunked, post, request

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.faces(SHORT_WAY, PARSED)]

FORM = "application/x-www-form-urlencoded"
FAYE = "text/plain;charset=UTF-8"
DATA = ["Καλημέρα, \U0001f30d", "a&message=b;c+d %41 ", {"n": [1, -2.5, None, True], "": ""}]
MESSAGES = [publish("/forms", data, id=str(number)) for number, data in enumerate(DATA, 1)]
ALL = json.dumps(MESSAGES)
ONE = [json.dumps(message, ensure_ascii=False) for message in MESSAGES]
GREEK = "Αθήνα"


def form(*values, escape=quote_plus, **encoding):
    """Return a form body whose field `message` has these values."""
    return "&".join(f"message={escape(value, **encoding)}" for value in values).encode()


FORMS = {
    "an array": post(ALL.encode()),
    "an array between blanks": post(f"\r\n\t {ALL}\n".encode()),
    "an array whose type has a charset": post(ALL.encode(), content_type='application/json; charset="utf-8"'),
    "an array of another JSON type": post(ALL.encode(), content_type="application/vnd.api+json"),
    "an array without a type": post(ALL.encode(), content_type=""),
    "an array as curl's form": post(ALL.encode(), content_type=FORM),
    "an array as plain text": post(ALL.encode(), content_type="text/plain"),
    "a form, one array": post(form(ALL), content_type=FORM),
    "a form, messages": post(form(*ONE), content_type=FORM),
    "a form, arrays": post(form(f"[{ONE[0]},{ONE[1]}]", f"[{ONE[2]}]"), content_type=FORM),
    "a form, an array and a message": post(form(f"[{ONE[0]},{ONE[1]}]", ONE[2]), content_type=FORM),
    "a form, a message and an array": post(form(ONE[0], f"[{ONE[1]},{ONE[2]}]"), content_type=FORM),
    "a form whose type has a charset": post(form(*ONE), content_type=f"{FORM}; charset=UTF-8"),
    "a form with other fields": post(b"a=1&" + form(*ONE) + b"&jsonp=cb", content_type=FORM),
    "a form without a type": post(form(*ONE), content_type=""),
    "a form as plain text": post(form(ALL, escape=quote), content_type=FAYE, pragma="no-cache"),
    "an array in chunks": chunked(*(ALL[at : at + 7].encode() for at in range(0, len(ALL), 7))),
    "a form in chunks": chunked(form(ONE[0]), b"&" + form(*ONE[1:]), content_type=FORM),
    "as Faye's page of another site": post(
        form(ALL, escape=quote, safe="-_.!~*'()"), content_type=FAYE, pragma="no-cache", origin="http://localhost:3000"
    ),
    "as Faye's page of the same site": post(ALL.encode(), x_requested_with="XMLHttpRequest", pragma="no-cache"),
}


@pytest.mark.parametrize("name", FORMS)
async def test_messages_in_any_form_are_all_answered_in_order_and_arrive_intact(served, name):
    """A1, A53, A56, A57: JSON or form, with any Content-Type; with a length or in chunks."""
    client_id = await served.open_session("/forms")
    wire = await served.wire()
    answer = await wire.request(FORMS[name])
    assert answer.status == 200
    assert [(reply["id"], reply["successful"]) for reply in answer.messages] == [("1", True), ("2", True), ("3", True)]
    assert (await wire.post(connect(client_id))).data == DATA


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(post(ONE[0].encode()), id="JSON"),
        pytest.param(post(ONE[0].encode(), content_type=""), id="without a type"),  # python-bayeux
        pytest.param(post(form(ONE[0]), content_type=FORM), id="form"),
        pytest.param(post(form(ONE[0]), content_type=FAYE), id="form as plain text"),
        pytest.param(chunked(ONE[0].encode()), id="in a chunk"),
        pytest.param(chunked(ONE[0].encode(), content_type=""), id="in a chunk without a type"),
    ],
)
async def test_a_message_without_an_array_is_answered_with_an_array(served, data):
    """A1, A58, E5: a bare object is accepted; the response is an array."""
    wire = await served.wire()
    assert (await wire.request(data)).messages == [{"id": "1", "channel": "/forms", "successful": True}]


@pytest.mark.parametrize("charset", ["ISO-8859-7", '"iso-8859-7"', "windows-1253", "UTF-16LE", "utf-16", "UTF-8"])
@pytest.mark.parametrize("content_type", ["application/json", FORM, "text/plain"])
async def test_the_charset_that_is_named_is_honoured(served, charset, content_type):
    """A57, E3, E4: text arrives intact, also if it is escaped in a form."""
    client_id = await served.open_session("/forms")
    wire = await served.wire()
    codec = charset.strip('"')
    text = json.dumps(publish("/forms", GREEK), ensure_ascii=False)
    if content_type == FORM:
        text = form(text, encoding=codec).decode()
    named = f"{content_type}; charset={charset}"
    answer = await wire.request(post(text.encode(codec), content_type=named))
    assert answer.messages == [{"channel": "/forms", "successful": True}]
    assert (await wire.post(connect(client_id))).data == [GREEK]


async def test_a_charset_does_not_change_what_is_answered(served):
    """A58: for any charset of the request, the response is UTF-8, and its header says so."""
    client_id = await served.open_session("/forms")
    wire = await served.wire()
    batch = [publish("/forms", GREEK, clientId=client_id)]
    body = json.dumps(batch, ensure_ascii=False).encode("iso-8859-7")
    answer = await wire.request(post(body, content_type="application/json; charset=ISO-8859-7"))
    assert answer.headers["content-type"] == "application/json; charset=utf-8"
    assert GREEK.encode() in answer.body


@pytest.mark.parametrize("mount", ["/bayeux", "/cometd"])
@pytest.mark.parametrize(
    "below", ["", "/", "/handshake", "/connect", "/disconnect", "/publish", "/a/b.c", "/?x=1", "?x"]
)
async def test_every_address_below_a_mount_is_served_without_a_redirect(served, mount, below):
    """A60: a redirect would lose the POST, and fail a preflight."""
    wire = await served.wire()
    for data in (post(ALL.encode(), path=f"{mount}{below}"), chunked(ALL.encode(), path=f"{mount}{below}")):
        answer = await wire.request(data)
        assert answer.status == 200
        assert "location" not in answer.headers
        assert all(reply["successful"] for reply in answer.messages)


@pytest.mark.parametrize("mount", ["/bayeux", "/cometd"])
async def test_cometds_addresses_make_one_session(served, mount):
    """A60: `handshake`, `connect` and `disconnect` have their own addresses, all else the one with a slash."""
    wire = await served.wire()
    (reply,) = (await wire.post(HANDSHAKE, path=f"{mount}/handshake")).messages
    client_id = reply["clientId"]
    (reply,) = (await wire.post(connect(client_id), path=f"{mount}/connect")).messages
    assert reply["successful"] is True
    (reply,) = (await wire.post(subscribe(client_id, "/paths"), path=f"{mount}/")).messages
    assert reply["successful"] is True
    sent = await wire.post(publish("/paths", 1, clientId=client_id), path=f"{mount}/")
    assert sent.data == [1]
    (reply,) = (await wire.post(disconnect(client_id), path=f"{mount}/disconnect")).messages
    assert (reply["channel"], reply["successful"]) == ("/meta/disconnect", True)


async def test_the_address_says_nothing_about_the_message(served):
    """A60: a message's channel alone decides what it is; all mounts share their sessions."""
    wire = await served.wire()
    (reply,) = (await wire.post(HANDSHAKE, path="/bayeux/disconnect")).messages
    client_id = reply["clientId"]
    (reply,) = (await wire.post(connect(client_id), path="/cometd/handshake")).messages
    assert (reply["channel"], reply["successful"]) == ("/meta/connect", True)


@pytest.mark.parametrize(
    "message",
    [
        pytest.param({}, id="no channel"),
        pytest.param(publish("/a b", 1), id="bad channel"),
        pytest.param({"channel": "/a"}, id="no data"),
        pytest.param(connect("nobody"), id="unknown session"),
        pytest.param({"channel": "/meta/handshake"}, id="bad handshake"),
    ],
)
async def test_a_refused_message_is_answered_200_with_a_message(served, message):
    """A58, A59, A61: an error status or an empty array would count as a dead connection and fail its neighbours."""
    wire = await served.wire()
    answer = await wire.post(message)
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json; charset=utf-8"
    (reply,) = answer.messages
    assert reply["successful"] is False
    assert reply["error"]


async def test_a_large_request_may_wait_to_be_asked_for(served):
    """RFC 9110, 10.1.1: curl sends its larger bodies only after `100 Continue`."""
    body = json.dumps(publish("/large", "x" * 60_000)).encode()
    wire = await served.wire()
    await wire.send(post(body, expect="100-continue")[: -len(body)])
    assert (await wire.read()).status == 100
    answer = await wire.request(body)
    assert answer.messages == [{"channel": "/large", "successful": True}]


async def test_a_client_that_closes_after_each_request_is_served(served):
    """HTTP/1.0, and 1.1 with `Connection: close`: the request is answered, then the connection is closed."""
    for data in (
        post(ALL.encode(), connection="close"),
        post(ALL.encode()).replace(b"HTTP/1.1", b"HTTP/1.0"),
    ):
        wire = await served.wire()
        assert len((await wire.request(data)).messages) == 3
        assert await wire.is_closed()


async def test_a_connection_serves_one_form_after_the_other(served):
    """A61: two connections carry all of a client's requests, so none may spoil the connection for the next."""
    wire = await served.wire()
    for data in FORMS.values():
        assert len((await wire.request(data)).messages) == 3
    assert (await wire.request(request("OPTIONS", "/bayeux"))).status == 200
    assert len((await wire.request(FORMS["an array"])).messages) == 3
