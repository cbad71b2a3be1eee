"""The protection of a server that others can reach by NetworkTables' listener only; the rest is in `hardening/`."""

from __future__ import annotations

import pytest

from halley.configuration.protection import NotProtected, check_protected, rights_of
from halley.settings import Access, Nt4, Settings

EVERYWHERE = Nt4(enabled=True, host="0.0.0.0")


def test_networktables_listener_needs_a_word_as_any_other():
    """It needs rules or --open, unless it is disabled."""
    with pytest.raises(NotProtected, match=r"^0\.0\.0\.0 \(nt4\.host\) can be reached from other machines"):
        check_protected(Settings(nt4=EVERYWHERE))
    check_protected(Settings(nt4=EVERYWHERE, open=True))
    check_protected(Settings(nt4=EVERYWHERE, access=(Access(role="*", verb="subscribe", pattern="/**", allow=True),)))
    check_protected(Settings(nt4=Nt4(host="0.0.0.0")))


@pytest.mark.parametrize(("nt4", "is_private"), [(EVERYWHERE, False), (Nt4(enabled=True), True), (Nt4(), True)])
def test_what_is_for_this_machine_alone_is_not_for_who_comes_by_it(nt4, is_private):
    """S43: if others can connect to any listener, no client may use the server's own topics or end others' sessions."""
    rights = rights_of(Settings(open=True, nt4=nt4))
    assert rights.may(None, "publish", "stats/x") is is_private
    assert rights.may(None, "subscribe", "halley/sessions") is is_private
    assert rights.may(None, "call", "wamp/session/kill") is is_private
    assert rights.may(None, "publish", "robot/pose"), "curl still publishes on loopback"
