"""Rights and tokens over raw sockets (S12 to S15 and S38, as far as they concern rights)."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime

import pytest
from access.signing import AUDIENCE, ISSUER, ec_key, jwk, jwks, rsa_key, sign
from support.messages import HANDSHAKE, connect, publish, subscribe
from support.process import replace_text
from support.server import THOROUGHLY, brisk, serving
from support.wire import request

from halley.access.tokens import hash_of, new_token
from halley.settings import Access, Token

pytestmark = pytest.mark.faces(*THOROUGHLY[:2])

TOKEN, SENSOR, ENDED = new_token(), new_token(), new_token()
TOKENS = (
    Token("ada", "user", hash_of(TOKEN)),
    Token("s1", "sensor", hash_of(SENSOR)),
    Token("old", "user", hash_of(ENDED), datetime(2020, 1, 1, tzinfo=UTC)),
)
RULES = (
    Access("*", "subscribe", "/halley/rates", allow=False),
    Access("*", "*", "/open/**"),
    Access("user", "*", "/**"),
    Access("sensor", "publish", "/sensors/*"),
)
FOREIGN = {"sec_fetch_site": "cross-site", "referer": "http://localhost:3000/page.html"}
"""A script of another site, whose pages the server allows."""

DENIED = "403:denied_by_security_policy:"


def guarded(**more):
    return brisk(**{"access": RULES, "tokens": TOKENS, **more})


def bearer(token):
    return {"authorization": f"Bearer {token}"}


async def test_a_token_in_either_place_makes_a_session_somebody():
    """A token in `Authorization: Bearer` or in `ext.authentication` sets the session's user and role."""
    async with serving(guarded()) as served:
        wire = await served.wire()
        shown = [
            await wire.post(HANDSHAKE, **bearer(TOKEN)),
            await wire.post(HANDSHAKE, authorization=f"bearer  {TOKEN} "),
            await wire.post(HANDSHAKE | {"ext": {"authentication": TOKEN}}),
            await wire.post(HANDSHAKE | {"ext": {"authentication": {"token": TOKEN}}}),
            await wire.post(HANDSHAKE, authorization="Basic YWRhOng="),
            await wire.post(HANDSHAKE),
        ]
        sessions = [served.halley.session(answer.messages[0]["clientId"]) for answer in shown]
        assert [(session.authid, session.role) for session in sessions[:4]] == [("ada", "user")] * 4
        assert [(session.authid, session.role) for session in sessions[4:]] == [(None, "anonymous")] * 2


async def test_a_rule_for_a_name_with_what_looks_like_an_escape_is_for_that_name_only():
    """`/v2!41` is not `/v2A`, but `/caf!c3!a9` is a name with an accent, in rules as in messages."""
    rules = (Access("*", "publish", "/v2!41/**"), Access("*", "publish", "/caf!c3!a9"))
    async with serving(brisk(access=rules)) as served:
        wire = await served.wire()
        for channel, may in (("/v2!41/x", True), ("/caf!c3!a9", True), ("/v2A/x", False), ("/v2!2141/x", False)):
            reply = (await wire.post(publish(channel, 1))).messages[0]
            assert reply["successful"] is may
            assert reply.get("error", "").startswith("" if may else DENIED)


@pytest.mark.parametrize(
    ("headers", "ext", "reason"),
    [
        (bearer("wrong"), None, "token_invalid"),
        (bearer(""), None, "token_invalid"),
        ({"authorization": "Bearer"}, None, "token_invalid"),
        (bearer(TOKEN[:-1]), None, "token_invalid"),
        (bearer(hash_of(TOKEN)), None, "token_invalid"),
        (bearer(f"{TOKEN} {TOKEN}"), None, "token_invalid"),
        (bearer("\xff"), None, "token_invalid"),
        (bearer("x" * 9_000), None, "token_invalid"),
        (bearer(ENDED), None, "token_expired"),
        ({}, {"authentication": "wrong"}, "token_invalid"),
        ({}, {"authentication": "ü\u0000"}, "token_invalid"),
        ({}, {"authentication": "x" * 100_000}, "token_invalid"),
        ({}, {"authentication": ENDED}, "token_expired"),
        ({}, {"authentication": True}, "token_invalid"),
    ],
)
async def test_a_bad_token_is_refused_without_a_word_of_it(headers, ext, reason):
    """A bad token is refused in a handshake and in a publish without a session, and is neither echoed nor logged."""
    async with serving(guarded()) as served:
        wire = await served.wire()
        handshake = HANDSHAKE | ({"ext": ext} if ext else {})
        answer = await wire.post(handshake, **headers)
        (reply,) = answer.messages
        assert (reply["successful"], reply["error"]) == (False, f"403:{reason}:handshake_denied")
        assert reply["advice"]["reconnect"] == "none"
        assert served.house.broker.sessions == {}
        if headers:
            answer = await wire.post(publish("/open/a", 1), **headers)
            assert answer.messages[0]["error"] == f"403:{reason}:publish_denied"
            assert served.house.broker.published == 0
        refused = [line for line in served.log if line["event"] == "token_refused"]
        asked = 2 if headers else int(isinstance(ext["authentication"], str))
        assert [line["reason"] for line in refused] == [reason] * asked
        for secret in (TOKEN, ENDED, "xxxxxxxx", "wrong"):
            assert secret.encode() not in answer.head + answer.body
            assert secret not in str(served.log)


async def test_nothing_of_a_good_token_is_written_anywhere():
    """A valid token appears neither in replies nor in the log; the log names the session's user and role."""
    async with serving(guarded()) as served:
        wire = await served.wire()
        answer = await wire.post(HANDSHAKE | {"ext": {"authentication": TOKEN}})
        client_id = answer.messages[0]["clientId"]
        answers = [answer, await wire.post(connect(client_id)), await wire.post(publish("/a", 1), **bearer(SENSOR))]
        for token in (TOKEN, SENSOR):
            assert all(token.encode() not in answer.head + answer.body for answer in answers)
            assert token not in str(served.log)
        (opened,) = [line for line in served.log if line["event"] == "session_opened"]
        assert (opened["authid"], opened["role"]) == ("ada", "user")


async def test_s15_what_no_rule_allows_is_refused_and_delivered_to_nobody():
    """S15: `/**` without permission, reserved prefixes and channels without a rule are denied; the session stays."""
    async with serving(guarded()) as served:
        heard = []
        served.halley.local_session("all").subscribe("/**", lambda channel, data: heard.append((channel, data)))
        client_id = await served.open_session()
        wire = await served.wire()
        answer = await wire.post(
            subscribe(client_id, "/**"),
            subscribe(client_id, "/*"),
            subscribe(client_id, "/open/a", "/closed"),
            subscribe(client_id, "/halley/**"),
            subscribe(client_id, "/service/a"),
            subscribe(client_id, "/open/**"),
            *(publish(name, 1, clientId=client_id) for name in ("/closed", "/halley/x", "/stats/a", "/service/a")),
            publish("/open/a", 2, clientId=client_id),
        )
        assert [reply.get("error", "") for reply in answer.replies] == [
            *[DENIED + "subscribe_denied"] * 5,
            "",
            *[DENIED + "publish_denied"] * 4,
            "",
        ]
        assert answer.data == [2]
        assert heard == [("/open/a", 2)]
        assert served.halley.session(client_id).subscriptions == ["/open/**"]


async def test_s15_a_role_reaches_the_servers_own_topics_only_by_name():
    """S15: a right on `/**` covers neither /halley nor publishing to /stats."""
    async with serving(guarded()) as served:
        wire = await served.wire()
        client_id = (await wire.post(HANDSHAKE, **bearer(TOKEN))).messages[0]["clientId"]
        answer = await wire.post(
            subscribe(client_id, "/**"),
            subscribe(client_id, "/stats/**"),
            subscribe(client_id, "/halley/rates"),
            publish("/stats/a", 1, clientId=client_id),
            publish("/halley", 1, clientId=client_id),
            publish("/service/a", 1, clientId=client_id),
        )
        assert [reply["successful"] for reply in answer.replies] == [True, True, False, False, False, True]


async def test_s12_another_identitys_session_is_as_unknown_as_any():
    """S12: a token does not give access to another user's session; the session's cookie does, with any token."""
    async with serving(guarded()) as served:
        wire = await served.wire()
        answer = await wire.post(HANDSHAKE, **bearer(TOKEN))
        client_id, cookie = answer.messages[0]["clientId"], answer.set_cookies[0].partition(";")[0]
        await wire.post(connect(client_id), cookie=cookie)
        stolen = await wire.post(publish("/a", 1, clientId=client_id), **bearer(SENSOR))
        unknown = await wire.post(publish("/a", 1, clientId="0" * 40), **bearer(SENSOR))
        assert stolen.body == unknown.body
        assert stolen.messages[0]["error"] == "402::session_unknown"
        own = await wire.post(publish("/a", 1, clientId=client_id), cookie=cookie, **bearer(SENSOR))
        assert own.messages[0]["successful"] is True


async def test_s13_in_a_batch_each_publish_has_its_own_rights():
    """S13: publishes with the first message's clientId have its session's rights, those without one the token's."""
    async with serving(guarded()) as served:
        first, second = await served.open_session(), await served.open_session()
        wire = await served.wire()
        answer = await wire.post(
            publish("/closed/a", 1, clientId=first),
            publish("/open/a", 1, clientId=second),
            publish("/sensors/a", 1),
            publish("/open/a", 1, clientId=first),
            **bearer(SENSOR),
        )
        assert [reply.get("error", "") for reply in answer.messages] == [
            DENIED + "publish_denied",
            "402::session_unknown",
            "",
            "",
        ]


@pytest.mark.parametrize("channel", ["/meta/subscribe/x", "/meta/Subscribe", "/meta/connect/x", "/meta", "/meta/x"])
async def test_s14_no_rule_opens_the_meta_channels(channel):
    """S14: not even a role with all rights on `/**` can publish or subscribe to meta channels."""
    async with serving(guarded()) as served:
        wire = await served.wire()
        client_id = (await wire.post(HANDSHAKE, **bearer(TOKEN))).messages[0]["clientId"]
        replies = (await wire.post(publish(channel, 1, clientId=client_id), subscribe(client_id, channel))).messages
        assert [reply["error"] for reply in replies] == [DENIED + "publish_denied", DENIED + "subscribe_denied"]


# JSONP


async def test_s38_over_jsonp_a_bearer_is_nobody():
    """S38: over JSONP a client is anonymous, with any Authorization header or cookie that a browser adds."""
    async with serving(guarded()) as served:
        wire = await served.wire()
        handshake = HANDSHAKE | {"supportedConnectionTypes": ["callback-polling"]}
        answer = await wire.get(handshake, **FOREIGN, cookie="login=1", **bearer(TOKEN))
        client_id = answer.called[1][0]["clientId"]
        assert served.halley.session(client_id).authid is None
        answer = await wire.get(
            subscribe(client_id, "/closed/a"),
            publish("/closed/a", 1, clientId=client_id),
            publish("/open/a", 1, clientId=client_id),
            **bearer(TOKEN),
        )
        replies = answer.called[1]
        assert [reply["successful"] for reply in replies] == [False, False, True]
        (reply,) = (await wire.get(publish("/open/a", 1), **bearer(TOKEN))).called[1]
        assert reply["error"] == "402::session_unknown"


async def test_s38_a_token_in_a_url_is_refused():
    """S38: a token in a URL would end up in logs, histories and Referer headers, so even a valid one is refused."""
    async with serving(guarded()) as served:
        wire = await served.wire()
        answer = await wire.get(HANDSHAKE | {"ext": {"authentication": {"token": TOKEN}}})
        (reply,) = answer.called[1]
        assert reply["error"] == "403:token_in_url:handshake_denied"
        assert TOKEN not in answer.text
        assert TOKEN not in str(served.log)
        assert served.house.broker.sessions == {}


async def test_s38_another_sessions_cookie_opens_nothing_over_jsonp():
    """S38: over JSONP a user's session is 402 even with its cookie; the same bytes as for an unknown session."""
    async with serving(guarded()) as served:
        wire = await served.wire()
        answer = await wire.post(HANDSHAKE, **bearer(TOKEN))
        client_id, cookie = answer.messages[0]["clientId"], answer.set_cookies[0].partition(";")[0]
        await wire.post(connect(client_id), cookie=cookie)
        polled = {"connectionType": "callback-polling"}
        stolen = await wire.get(connect(client_id, **polled), cookie=cookie, **FOREIGN)
        unknown = await wire.get(connect("0" * 40, **polled), cookie=cookie, **FOREIGN)
        assert stolen.body == unknown.body
        assert stolen.called[1][0]["error"] == "402::session_unknown"


# Expiry and rotation, with real clocks


async def test_a_token_that_expires_ends_its_session_over_the_wire():
    """When a token expires, the held connect gets the advice to handshake again; from then on the token is refused."""
    short = new_token()
    ends = datetime.fromtimestamp(time.time() + 1.0, UTC)
    async with serving(guarded(tokens=(Token("ada", "user", hash_of(short), ends),))) as served:
        client_id = await served.open_session("/a", ext={"authentication": short})
        held = await served.hold(client_id)
        (reply,) = (await held.read()).messages
        assert time.time() >= ends.timestamp() - 0.05
        assert (reply["successful"], reply["error"]) == (False, "403::token_expired")
        assert reply["advice"]["reconnect"] == "handshake"
        (reply,) = (await held.post(connect(client_id))).messages
        assert (reply["error"], reply["advice"]["reconnect"]) == ("402::session_unknown", "handshake")
        (reply,) = (await held.post(HANDSHAKE, **bearer(short))).messages
        assert reply["error"] == "403:token_expired:handshake_denied"
        (closed,) = [line for line in served.log if line["event"] == "session_closed"]
        assert closed["reason"] == "token_expired"


async def test_keys_can_be_rotated_while_serving(tmp_path):
    """Tokens of an added key are accepted, those of a removed key refused; a broken file changes nothing."""
    file = tmp_path / "jwks.json"
    file.write_text(jwks(jwk(rsa_key(), kid="r1")))
    options = {"issuer": ISSUER, "audience": AUDIENCE, "jwks": str(file), "keys_check_s": 0.1}
    old = sign(rsa_key(), "RS256", header={"kid": "r1"}, exp=int(time.time()) + 600)
    new = sign(ec_key(), "ES256", header={"kid": "e1"}, exp=int(time.time()) + 600)
    async with serving(guarded(jwt=options)) as served:
        wire = await served.wire()

        async def error(token):
            (reply,) = (await wire.post(publish("/a", 1), **bearer(token))).messages
            return reply.get("error")

        assert await error(old) is None
        assert await error(new) == "403:token_invalid:publish_denied"
        replace_text(file, jwks(jwk(ec_key(), kid="e1")))
        await served.until(lambda: any(line["event"] == "keys" for line in served.log))
        assert await error(new) is None
        assert await error(old) == "403:token_invalid:publish_denied"
        replace_text(file, "broken")
        await served.until(lambda: len([line for line in served.log if line["event"] == "keys"]) == 2)
        assert await error(new) is None
        assert "the keys read before are kept" in served.log[-1]["what"]


async def test_a_thousand_bad_tokens_in_a_request_are_one():
    """A bad token is checked and logged once for a batch, so a batch cannot make the server check many signatures."""
    async with serving(guarded()) as served:
        wire = await served.wire()
        body = json.dumps([publish("/open/a", number) for number in range(200)]).encode()
        await wire.send(request("POST", "/bayeux", body, content_type="application/json", **bearer("wrong")))
        replies = (await wire.read()).messages
        assert {reply["error"] for reply in replies} == {"403:token_invalid:publish_denied"}
        assert len([line for line in served.log if line["event"] == "token_refused"]) == 1
