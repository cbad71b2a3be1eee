"""The strict parser that reads every reply in WAMP's tests works: it refuses malformed messages."""

from __future__ import annotations

import pytest
from support import wamp
from support.programs import require_module

GOOD = [wamp.WELCOME, 7, {"roles": {"broker": {"features": {}}, "dealer": {"features": {}}}, "authid": "ada"}]
BAD = {
    "a role that no router has": [wamp.WELCOME, 7, {"roles": {"callee": {"features": {}}}}],
    "a feature that is no boolean": [wamp.WELCOME, 7, {"roles": {"broker": {"features": {"event_history": "yes"}}}}],
    "an id out of range": [wamp.SUBSCRIBED, 1, 2**53 + 1],
    "a reason that is no URI": [wamp.ABORT, {}, "no such realm"],
    "an error with too little": [wamp.ERROR, 32, 1, {}],
}


@pytest.mark.parametrize("what", BAD)
def test_what_a_strict_client_refuses(what):
    """W7, W9, W13: `check` raises for a router's malformed message, so that the test that received it fails."""
    require_module("autobahn", "pip install -r tests/clients/requirements.txt")
    wamp.check(GOOD)
    with pytest.raises(Exception, match=r"(?i)invalid|unexpected|expected"):
        wamp.check(BAD[what])
