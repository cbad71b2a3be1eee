"""`GET /rights`: who a token says that the caller is, and what its role may do at all."""

from __future__ import annotations

import hashlib
import json

import pytest
from support.server import brisk, serving
from support.wire import request

from app.settings import Access, Realm, Token

TOKEN = "a token of the tests"
ADA = Token(id="ada", role="member", hash=f"sha256:{hashlib.sha256(TOKEN.encode()).hexdigest()}")
NOTHING = {"publish": False, "subscribe": False, "call": False, "export": False, "erase": False}


async def rights(access=(), token=None, **changed):
    """What the server answers."""
    tokens = (ADA,) if access else ()
    async with serving(brisk(access=access, tokens=tokens, **changed)) as served:
        wire = await served.wire()
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return await wire.request(request("GET", "/rights", **headers))


async def test_on_loopback_without_rules_everyone_may_everything():
    """Nobody has written any rules, and only this machine can connect."""
    answer = await rights()
    assert json.loads(answer.body) == {"authid": None, "role": "anonymous", "may": dict.fromkeys(NOTHING, True)}


async def test_others_may_not_look_into_the_log_where_the_server_is_open():
    """`--open`: publish and subscribe, and harmless procedures; no export, no erasing."""
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
    """What an earlier rule denies as a whole no later one grants; a part that is denied hides nothing else."""
    answer = await rights([Access(role, verb, pattern, allow=allow) for role, verb, pattern, allow in access])
    assert {verb for verb, may in json.loads(answer.body)["may"].items() if may} == granted


async def test_a_token_tells_who_somebody_is():
    """The token's id and role, and what that role may do."""
    answer = await rights([Access("member", "publish", "/chat/**", allow=True)], token=TOKEN)
    assert json.loads(answer.body) == {"authid": "ada", "role": "member", "may": NOTHING | {"publish": True}}


async def test_a_token_that_proves_nothing_is_refused():
    """It is never taken for none."""
    answer = await rights([Access("member", "publish", "/chat/**", allow=True)], token="wrong")
    assert (answer.status, answer.headers["www-authenticate"]) == (401, 'Bearer error="invalid_token"')


async def test_another_realm_is_no_part_of_it():
    """A rule about a realm of its own grants nothing here."""
    access = Access("*", "publish", "/**", allow=True, realm="other")
    answer = await rights((access,), realm=(Realm("realm1"), Realm("other")))
    assert json.loads(answer.body)["may"] == NOTHING


async def test_it_takes_no_parameter_and_no_post():
    """As everywhere: what is not known is refused."""
    async with serving() as served:
        wire = await served.wire()
        assert (await wire.request(request("GET", "/rights?role=admin"))).status == 400
        assert (await wire.request(request("POST", "/rights"))).status == 405
