"""Settings that a program makes are checked when its server is made, as those of a file are when they are read."""

from __future__ import annotations

import dataclasses

import pytest

from halley.configuration import BadSettings
from halley.configuration.knobs import KNOBS, LISTS, assemble
from halley.embed import Halley, NotProtected
from halley.settings import Access, Bayeux, Limits, Nt4, Record, Settings, Token, Wamp

DEFAULTS = {key: knob.default for key, knob in KNOBS.items()} | dict.fromkeys(LISTS, ())


def mistakes(settings):
    """Return the mistakes that `Halley` reports, by key."""
    with pytest.raises(BadSettings) as raised:
        Halley(settings)
    return {problem.key: problem.text for problem in raised.value.problems}


def test_a_value_of_the_wrong_type_is_refused():
    """Every setting there is; the message names it."""
    for key in (*KNOBS, *LISTS):
        assert [*mistakes(assemble(DEFAULTS | {key: object()}))] == [key]


def test_a_value_out_of_bounds_is_refused():
    for key, knob in KNOBS.items():
        if knob.low is not None:
            assert [*mistakes(assemble(DEFAULTS | {key: knob.kind(knob.low - 1)}))] == [key]


def test_all_mistakes_are_reported_at_once():
    """Those of tables and of the entries of lists too; a secret is not shown."""
    token = Token("ada", "member", "secret")
    bad = Settings(bayeux=Bayeux(hold_s="25"), nt4={}, limits=Limits(queue_events=-3), access=[1], tokens=(token,))
    assert mistakes(bad) == {
        "bayeux.hold_s": 'expected a number of at least 0 (s), found "25"',
        "nt4": "expected an object Nt4, found a table",
        "limits.queue_events": "expected a whole number of at least 1 (events), found -3",
        "access": "expected a tuple of objects Access",
        "tokens[0].hash": "expected sha256: and 64 hexadecimal digits (see halley token)",
    }
    assert [*mistakes(Settings(access=(Access("*", "look", "/chat"),)))] == ["access[0].verb"]
    assert "secret" not in str(mistakes(Settings(tokens=(token,))))


def test_the_rules_between_settings_hold():
    """What only makes sense together with another setting, and names and paths."""
    assert mistakes(Settings(bayeux=Bayeux(paths=("bayeux",)), record=(Record("chat"),))) == {
        "bayeux.paths": 'expected paths like "/bayeux" (no slash at the end), found "bayeux"',
        "record[0].pattern": 'expected a channel or pattern like /chat/room, /chat/* or /chat/**, found "chat"',
    }
    assert mistakes(Settings(nt4=Nt4(enabled=True, port=8080)))


def test_an_unprotected_host_is_told_apart():
    with pytest.raises(NotProtected):
        Halley(Settings(host="0.0.0.0"))


def test_values_that_a_file_may_have_are_taken():
    """A list where a tuple is declared, and a whole number where a float is."""
    settings = Halley(Settings(wamp=Wamp(paths=["/ws"]), bayeux=Bayeux(hold_s=5))).server.settings
    assert settings.wamp.paths == ("/ws",)
    assert (settings.bayeux.hold_s, type(settings.bayeux.hold_s)) == (5.0, float)
    assert dataclasses.replace(settings, wamp=Wamp(), bayeux=Bayeux()) == Settings()
