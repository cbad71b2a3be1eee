"""`GET /rights`: the identity of the caller by its token, and the verbs that its role has anywhere."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import pytest
from support.messages import HANDSHAKE, publish
from support.server import brisk, serving
from support.streams import StreamReader
from support.wire import post, request

from halley.server.metrics import exposition
from halley.settings import Access, Realm, Token, User

TOKEN = "a token of the tests"
ADA = Token(id="ada", role="member", hash=f"sha256:{hashlib.sha256(TOKEN.encode()).hexdigest()}")
NOTHING = {"publish": False, "subscribe": False, "call": False, "export": False, "erase": False}


async def rights(access=(), token=None, **changed):
    """Return the server's response."""
    tokens = (ADA,) if access else ()
    async with serving(brisk(access=access, tokens=tokens, **changed)) as served:
        wire = await served.wire()
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return await wire.request(request("GET", "/rights", **headers))


async def test_on_loopback_without_rules_everyone_may_everything():
    """Without rules, if only this machine can connect, everything is allowed."""
    answer = await rights()
    everything = dict.fromkeys(NOTHING, True)
    expected = {"authid": None, "role": "anonymous", "may": everything, "reads_tokens": False}
    assert json.loads(answer.body) == expected


async def test_others_may_not_look_into_the_log_where_the_server_is_open():
    """With `--open` others can publish, subscribe and call harmless procedures, but neither export nor erase."""
    answer = await rights(host="0.0.0.0", open=True)
    assert json.loads(answer.body)["may"] == NOTHING | {"publish": True, "subscribe": True, "call": True}


@pytest.mark.parametrize(
    ("access", "granted"),
    [
        ([("*", "subscribe", "/**", True)], {"subscribe"}),
        ([("member", "publish", "/chat/**", True)], set()),
        ([("anonymous", "*", "/a", True)], set(NOTHING)),
        ([("anonymous", "publish", "/chat/staff", False), ("*", "publish", "/chat/**", True)], {"publish"}),
        ([("anonymous", "publish", "/chat/**", False), ("*", "publish", "/chat/lobby", True)], set()),
        ([("anonymous", "*", "/**", False), ("*", "*", "/chat/lobby", True)], set()),
    ],
)
async def test_with_rules_it_is_what_any_of_them_grants(access, granted):
    """A later rule cannot grant what an earlier one denies in full; the denial of a part hides nothing else."""
    answer = await rights([Access(role, verb, pattern, allow=allow) for role, verb, pattern, allow in access])
    assert {verb for verb, may in json.loads(answer.body)["may"].items() if may} == granted


async def test_a_token_tells_who_somebody_is():
    """The response has the token's id and role, and the verbs of that role."""
    answer = await rights([Access("member", "publish", "/chat/**", allow=True)], token=TOKEN)
    may = NOTHING | {"publish": True}
    assert json.loads(answer.body) == {"authid": "ada", "role": "member", "may": may, "reads_tokens": True}


async def test_a_token_that_proves_nothing_is_refused():
    """An invalid token is not treated like a missing one."""
    answer = await rights([Access("member", "publish", "/chat/**", allow=True)], token="wrong")
    assert (answer.status, answer.headers["www-authenticate"]) == (401, 'Bearer error="invalid_token"')


async def unread(served):
    """Return what the server says of tokens: whether it reads any, and how many it has not read."""
    found = json.loads((await (await served.wire()).request(request("GET", "/rights"))).body)
    (line,) = (each for each in exposition(served.house).splitlines() if each.startswith(b"halley_tokens_unread_total"))
    return found["reads_tokens"], int(float(line.split()[1]))


async def with_token(served):
    """Show a token by every door that could read it, and return how often; all are served as without it."""
    wire = await served.wire()
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    for path in ("/rights", "/history/a"):
        assert (await wire.request(request("GET", path, **bearer))).status in (200, 404)
    await StreamReader.open(served, "/events/a", **bearer)
    shown = [
        (await wire.post(HANDSHAKE | {"ext": {"authentication": TOKEN}})).messages[0],
        (await wire.post(HANDSHAKE | {"ext": {"authentication": {"token": ["no text"]}}})).messages[0],
        (await wire.post(HANDSHAKE, **bearer)).messages[0],
        (await wire.post(publish("/a", 1), **bearer)).messages[0],
        (await wire.post(publish("/a", 1), publish("/a", 2), **bearer)).messages[0],
        (await wire.post(publish("/a", 1) | {"ext": {"x": 1}}, **bearer)).messages[0],
    ]
    answer = await wire.request(post(b"1", path="/events/a", **bearer))
    assert answer.status == 200
    assert [each["successful"] for each in shown] == [True] * len(shown)
    return 3 + len(shown) + 1


async def test_where_nothing_can_check_a_token_it_is_not_read_and_that_is_said():
    """Proxies and programs send their own; a counter has each token that came, once for each request."""
    async with serving(brisk(bayeux={"anonymous_publish": "on"})) as served:
        assert await unread(served) == (False, 0)
        shown = await with_token(served)
        assert await unread(served) == (False, shown)


async def test_a_program_that_proves_identities_may_read_tokens():
    """Then the server does not know that nobody reads them."""

    class Policy:
        def can_handshake(self, session, message):
            return True

    async with serving(brisk(), lambda halley: halley.set_policy(Policy())) as served:
        await with_token(served)
        assert await unread(served) == (True, 0)


async def test_a_token_that_comes_first_is_read_from_then_on():
    """A reload with a token, and one that takes the last away."""
    async with serving(brisk()) as served:
        settings = served.house.settings
        served.house.reloading.apply_access(replace(settings, tokens=(ADA,)))
        assert await unread(served) == (True, 0)
        served.house.reloading.apply_access(settings)
        assert (await unread(served))[0] is False


MEMBERS = (
    Access("member", "*", "/**"),
    Access("staff", "*", "/**"),
    Access("nt4", "*", "/**"),
    Access("*", "call", "/a"),
)


async def test_a_role_that_nobody_can_have_is_said_at_the_start_and_with_new_rules():
    """As where a server was started with another settings file: its tokens are not there."""

    def told(served):
        return [(each["roles"], each["reads_tokens"]) for each in served.log if each["event"] == "roles_unproved"]

    async with serving(brisk(access=MEMBERS)) as served:
        assert told(served) == [(["member", "staff"], False)]
        settings = served.house.settings
        served.house.reloading.apply_access(replace(settings, tokens=(ADA,)))
        assert told(served)[1:] == [(["staff"], True)]
        served.house.reloading.apply_access(
            replace(settings, tokens=(ADA,), user=(User("ann", "staff", "a2V5", "salt"),))
        )
        assert len(told(served)) == 2
    async with serving(brisk()) as served:
        assert told(served) == []


async def test_a_program_or_json_web_tokens_can_give_any_role(tmp_path):
    """Then there is nothing to warn of."""

    class Policy:
        def can_handshake(self, session, message):
            return True

    (tmp_path / "secret").write_bytes(b"x" * 32)
    jwt = {"issuer": "https://x.example", "audience": "halley", "secret": str(tmp_path / "secret")}
    for settings, register in (
        (brisk(access=MEMBERS), lambda halley: halley.set_policy(Policy())),
        (brisk(access=MEMBERS, jwt=jwt), None),
    ):
        async with serving(settings, register) as served:
            assert [each for each in served.log if each["event"] == "roles_unproved"] == []


async def test_another_realm_is_no_part_of_it():
    """A rule for another realm grants nothing here."""
    access = Access("*", "publish", "/**", allow=True, realm="other")
    answer = await rights((access,), realm=(Realm("realm1"), Realm("other")))
    assert json.loads(answer.body)["may"] == NOTHING


async def test_it_takes_no_parameter_and_no_post():
    """Unknown parameters and methods are refused, as everywhere."""
    async with serving() as served:
        wire = await served.wire()
        assert (await wire.request(request("GET", "/rights?role=admin"))).status == 400
        assert (await wire.request(request("POST", "/rights"))).status == 405
