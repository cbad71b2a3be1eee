"""JSONP responses, which any page can load as a script: callbacks, and how abuse is prevented (S35-S40)."""

from __future__ import annotations

import json
from urllib.parse import quote

import pytest
from support.messages import HANDSHAKE, connect, publish
from support.refusals import CANARY, refusal
from support.server import brisk, serving
from support.wire import head, request

pytestmark = pytest.mark.asyncio(loop_scope="module")

CALLBACK_POLLING = {"connectionType": "callback-polling"}
MESSAGE = quote(json.dumps([HANDSHAKE]))


@pytest.mark.parametrize(
    "query",
    [
        "jsonp=c4n4ry&jsonp=c4n4ry",
        "jsonp=" + "c4n4ry" * 11,
        "jsonp=alert(1)//c4n4ry",
        "jsonp=c4n4ry%20b",
        "jsonp=c4n4ry+b",
        "jsonp=c4n4ry%0d%0aSet-Cookie:a=b",
        "jsonp=c4n4ry%0a",
        "jsonp=%3Cscript%3Ec4n4ry",
        "jsonp=c4n4ry..b",
        "jsonp=.c4n4ry",
        "jsonp=c4n4ry.",
        "jsonp=c4n4ry[0]",
        "jsonp=c4n4ry%00",
        "jsonp=c4n4ry%C3%A4",
        "jsonp=NOTICE:c4n4ry",
        "jsonp=c4n4ry;b",
        "jsonp=c4n4ry%2f%2a",
        "jsonp=",
        "jsonp",
    ],
)
async def test_s35_an_illegal_callback_gets_400_as_text_and_is_not_echoed(served, query):
    """S35, A65: a callback is refused if it is given twice, is too long or is not a dotted name."""
    await refusal(served, request("GET", f"/bayeux?{query}&message={MESSAGE}"), 400, "bad callback")


@pytest.mark.parametrize("query", ["", "?jsonp=cb", "?jsonp=cb&massage=[]", "?jsonp=cb&Message=[]"])
async def test_a69_jsonp_without_a_message_gets_400(served, query):
    """A.9: JSONP without a message is 400."""
    await refusal(served, request("GET", f"/bayeux{query}"), 400, "no message")


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ("c4n4ry", "body is not JSON"),
        ("1", "body is not a Bayeux message"),
        ("[]", "no message"),
        ("%ff", "form is not in its charset"),
        ("[{}", "body is not JSON"),
        ("", "body is not JSON"),
    ],
)
async def test_a69_jsonp_with_a_message_that_is_none_gets_400(served, message, text):
    """S8, S9: over JSONP, an invalid message is refused with plain text, not with a script."""
    await refusal(served, request("GET", f"/bayeux?jsonp=c4n4ry&message={message}"), 400, text)


@pytest.mark.parametrize("callback", ["s-h_o.R1", "jQuery_1.x.$y", "_", "x" * 64, "__jsonp1__", "1"])
async def test_s36_a_good_callback_is_called_in_a_script_that_can_be_nothing_else(served, callback):
    """S36, A64: the response is typed as a script, begins with a comment, and has nosniff, attachment and no-store."""
    wire = await served.wire()
    answer = await wire.get(HANDSHAKE, callback=callback)
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/javascript;charset=UTF-8"
    assert answer.headers["content-disposition"] == "attachment; filename=f.txt"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"
    assert "server" not in answer.headers
    assert answer.text.startswith(f"/**/{callback}([")
    assert answer.text.endswith("]);")
    name, (reply,) = answer.called
    assert (name, reply["successful"]) == (callback, True)


async def test_s36_without_a_callback_the_specification_names_one(served):
    """A63: without a callback the response calls `jsonpcallback`."""
    wire = await served.wire()
    answer = await wire.request(request("GET", f"/bayeux?message={MESSAGE}"))
    assert answer.called[0] == "jsonpcallback"


@pytest.mark.parametrize("data", ["</script><script>c4n4ry()", "a\u2028b\u2029c", "<!--", "]]>", "'\"\\"])
async def test_s36_data_that_could_leave_the_script_is_escaped(served, data):
    """S36: `<` and the line separators U+2028 and U+2029 are escaped; the receiver gets the data that was sent."""
    client_id = await served.open_session("/a")
    wire = await served.wire()
    await wire.post(publish("/a", {data: data}))
    answer = await wire.get(connect(client_id, **CALLBACK_POLLING))
    assert not {"<", "\u2028", "\u2029"} & set(answer.text)
    assert [message["data"] for message in answer.called[1] if "data" in message] == [{data: data}]


async def test_s37_rosetta_flash_gets_no_first_byte_of_its_own(served):
    """S37 (CVE-2014-4671): a callback that is a Flash file is too long, or follows a comment."""
    flash = "CWSMIKI0hCD0Up0IZUnnnnnnnnnnnnnnnnnnnUU5nnnnnn3Snn7iiudIbEAt333swW0"
    assert len(flash) > 64
    await refusal(served, request("GET", f"/bayeux?jsonp={flash}&message={MESSAGE}"), 400, "bad callback")
    wire = await served.wire()
    assert (await wire.get(HANDSHAKE, callback=flash[:64])).body.startswith(b"/**/CWS")


@pytest.mark.parametrize("destination", ["document", "iframe", "frame", "embed", "object", "Document"])
async def test_s39_opened_as_a_page_it_gets_403(served, destination):
    """S39: a request whose response a browser would show as a page or frame is 403."""
    data = request("GET", f"/bayeux?jsonp=c4n4ry&message={MESSAGE}", sec_fetch_dest=destination)
    await refusal(served, data, 403, "callback-polling is for scripts")


EVIL = "https://c4n4ry.example/page?x=1"
LOOPBACK = "http://localhost:3000/page"
REFUSED = [
    ("cross-site", ""),
    ("same-site", ""),
    ("Cross-Site", ""),
    ("another value", ""),
    ("cross-site", EVIL),
    ("same-site", EVIL),
    ("none", EVIL),
    ("", EVIL),
    ("", "http://127.0.0.1.c4n4ry.example/"),
    ("", "http://127.0.0.1@c4n4ry.example/"),
    ("", "http://c4n4ry@127.0.0.1/"),
    ("", "http://c4n4ry.example\\@127.0.0.1/"),
    ("", "http://c4n4ry.example?http://127.0.0.1/"),
    ("", "http://c4n4ry.example#@127.0.0.1/"),
    ("", "file:///c4n4ry.html"),
    ("", "about:blank"),
    ("", "null"),
    ("", "c4n4ry"),
    ("", "http://127.0.0.1:99999/"),
]


def from_page(site, referer, query=f"jsonp=c4n4ry&message={MESSAGE}", **headers):
    """Return a request as a script element sends it; an empty header is left out."""
    return request("GET", f"/bayeux?{query}", sec_fetch_site=site, referer=referer, **headers)


async def refused(served, data):
    """Send a request that must get a script that names the reason, and change nothing."""
    before = served.books()
    wire = await served.wire()
    answer = await wire.request(data)
    assert (answer.status, answer.text) == (403, '/**/console.error("origin not allowed");')
    assert answer.headers["content-type"] == "text/javascript;charset=UTF-8"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert b"c4n4ry" not in answer.head + answer.body
    assert served.books() == before
    assert (await wire.request(request("GET", f"/bayeux?message={MESSAGE}"))).status == 200


@pytest.mark.parametrize(("site", "referer"), REFUSED)
async def test_s46_a_script_of_a_page_that_may_not_post_gets_403_as_a_script(served, site, referer):
    """S46: no handshake for a page of another origin, as far as Sec-Fetch-Site and Referer show its origin."""
    await refused(served, from_page(site, referer))


@pytest.mark.parametrize(
    "fields",
    [
        [f"Referer: {LOOPBACK}", f"Referer: {EVIL}"],
        [f"Referer: {EVIL}", f"Referer: {LOOPBACK}"],
        [f"Referer: {LOOPBACK}", f"referer: {LOOPBACK}"],
        [f"Referer: {LOOPBACK}", "Referer:"],
        ["Origin: http://localhost:3000", f"Referer: {LOOPBACK}", f"Referer: {EVIL}"],
        ["Sec-Fetch-Site: same-origin", f"Referer: {LOOPBACK}", f"Referer: {LOOPBACK}"],
        ["Sec-Fetch-Site: same-origin", "Sec-Fetch-Site: cross-site"],
        ["Sec-Fetch-Site: none", "Sec-Fetch-Site: none", f"Referer: {LOOPBACK}"],
    ],
)
async def test_s46_what_says_where_a_page_is_from_comes_once(served, fields):
    """S46: of two Referers a proxy may check the one that this server does not go by; the same for Sec-Fetch-Site."""
    lines = "".join(f"{field}\r\n" for field in fields)
    data = from_page("", "").replace(b"\r\n\r\n", f"\r\n{lines}\r\n".encode())
    await refused(served, data)


async def test_s46_nor_can_it_use_a_session_or_say_anything(served):
    """S46: with a clientId that it has found out, a page of another origin neither polls nor publishes."""
    client_id = await served.open_session("/a")
    for message in (connect(client_id, **CALLBACK_POLLING), publish("/a", "c4n4ry", clientId=client_id)):
        query = f"jsonp=cb&message={quote(json.dumps([message]))}"
        await refused(served, from_page("cross-site", EVIL, query))


@pytest.mark.parametrize(
    ("site", "referer"),
    [
        ("", ""),
        ("none", ""),
        ("same-origin", ""),
        ("same-origin", "http://127.0.0.1/page"),
        ("", "http://127.0.0.1/page"),
        ("", "http://127.0.0.1"),
        ("cross-site", LOOPBACK),
        ("same-site", "http://127.0.0.1:3000/"),
        ("cross-site", "http://[::1]:8000/"),
        ("", LOOPBACK),
    ],
)
async def test_s46_a_page_that_may_post_and_a_client_that_is_no_browser_are_served(served, site, referer):
    """S46: pages of this server and of loopback on a loopback listener; curl and old clients send neither header."""
    wire = await served.wire()
    answer = await wire.request(from_page(site, referer, sec_fetch_dest="script"))
    assert answer.called[1][0]["successful"] is True


async def test_s46_where_others_can_connect_the_list_decides():
    """S46: on a public listener loopback pages are refused too; a page of a listed origin is served."""
    settings = brisk(host="0.0.0.0", open=True, hosts=("halley.example",), cors={"origins": ("https://app.example",)})
    async with serving(settings) as served:
        wire = await served.wire()
        for site, referer, status in [
            ("cross-site", "https://app.example/x", 200),
            ("", "https://APP.example/", 200),
            ("same-site", "http://halley.example/", 200),
            ("", "http://halley.example/", 200),
            ("same-site", "http://halley.example:8081/", 403),
            ("cross-site", "http://app.example/", 403),
            ("cross-site", "https://app.example:444/", 403),
            ("", "https://app.example.evil/", 403),
            ("", LOOPBACK, 403),
            ("cross-site", "", 403),
            ("", "", 200),
        ]:
            answer = await wire.request(from_page(site, referer, host="halley.example"))
            assert answer.status == status, (site, referer)


async def test_s46_pages_that_send_no_referer_are_a_setting():
    """S46: a file on the disk sends none; with the setting it is served, and a page with a Referer is checked still."""
    async with serving(brisk(bayeux={"callback_polling_without_referer": True})) as served:
        wire = await served.wire()
        assert (await wire.request(from_page("cross-site", ""))).called[1][0]["successful"] is True
        await refused(served, from_page("cross-site", EVIL))


async def test_s46_an_origin_that_may_needs_no_referer(served):
    """S46: a page that hides its Referer can load the script with `crossorigin`, which sends its Origin."""
    wire = await served.wire()
    data = from_page("cross-site", "", origin="http://localhost:3000")
    assert (await wire.request(data)).called[1][0]["successful"] is True


async def test_s38_a_script_cannot_publish_without_a_session(served):
    """Publishing without a session needs a POST, else any page could publish here with a `<script>` tag."""
    wire = await served.wire()
    before = served.books()
    for channel in ("/a", "/service/a"):
        _, (reply,) = (await wire.get(publish(channel, CANARY))).called
        assert (reply["successful"], reply["error"]) == (False, "402::session_unknown")
    assert served.books() == before


async def test_s40_switched_off_it_gets_400_and_is_not_offered():
    """S40: a client that supports nothing else is refused with `reconnect: none` (A25)."""
    async with serving(brisk(bayeux={"callback_polling": False})) as served:
        data = request("GET", f"/bayeux?jsonp=c4n4ry&message={MESSAGE}")
        await refusal(served, data, 400, "callback-polling is switched off")
        wire = await served.wire()
        (reply,) = (await wire.post(HANDSHAKE)).messages
        assert "callback-polling" not in reply["supportedConnectionTypes"]
        (reply,) = (await wire.post(HANDSHAKE | {"supportedConnectionTypes": ["callback-polling"]})).messages
        assert reply["successful"] is False
        assert reply["error"].startswith("301:")
        assert reply["advice"]["reconnect"] == "none"


async def test_s1_a_query_that_is_no_text_gets_400(served):
    """A query of raw bytes that are not UTF-8 is 400."""
    wire = await served.wire()
    answer = await wire.request(head("GET /bayeux?message=\xff HTTP/1.1", "Host: 127.0.0.1"))
    assert answer.status == 400
