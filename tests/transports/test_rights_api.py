"""`GET /rights`: the identity of the caller by its token, and the verbs that its role has anywhere."""

from __future__ import annotations

import hashlib
import json

import pytest
from support.server import brisk, serving
from support.wire import request

from halley.settings import Access, Realm, Token

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
    assert json.loads(answer.body) == {"authid": None, "role": "anonymous", "may": dict.fromkeys(NOTHING, True)}


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
    assert json.loads(answer.body) == {"authid": "ada", "role": "member", "may": NOTHING | {"publish": True}}


async def test_a_token_that_proves_nothing_is_refused():
    """An invalid token is not treated like a missing one."""
    answer = await rights([Access("member", "publish", "/chat/**", allow=True)], token="wrong")
    assert (answer.status, answer.headers["www-authenticate"]) == (401, 'Bearer error="invalid_token"')


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
