"""Which fields of a publish's `ext` its subscribers get: those that a setting names, and no other."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from support.bayeux import House
from support.messages import publish

from halley.history.stored import event_of, row_of
from halley.transports.api.history import render

NAMES = ("binary", "trace", "no.such")
SECRETS = {"authentication": {"token": "s3cret"}, "ack": 1, "lazy": False, "latest": True, "other": "s3cret"}


def heard(house, message):
    """Return what a subscriber receives of a publish without a session."""
    peer = house.join()
    peer.subscribe("/a")
    sent = house.send(message)
    if hasattr(house, "log"):
        house.log.commit(now=house.now)
        house.turn()
    assert sent.only["successful"] is True
    (event,) = [each for each in peer.connect(advice={"timeout": 0}).messages if "data" in each]
    return event


def test_by_default_it_is_the_mark_of_binary_messages():
    """CometD's `binary` extension says by it what is in the data; its clients do without all else."""
    data = {"data": "009f3@^PB", "last": True, "meta": {"name": "f"}}
    event = heard(House(), publish("/a", data, ext={"binary": {}, **SECRETS}))
    assert event == {"channel": "/a", "data": data, "ext": {"binary": {}}}


def test_a_setting_names_the_fields():
    """They come as they were sent, in the order of the setting, with any JSON as value."""
    value = {"<&>": ["\u2028", None, 1.5]}
    event = heard(House(forwarded_ext=NAMES), publish("/a", 1, ext={"trace": value, "binary": None, **SECRETS}))
    assert list(event["ext"].items()) == [("binary", None), ("trace", value)]


def test_without_names_subscribers_get_nothing():
    """An event then has only what the server itself adds."""
    assert "ext" not in heard(House(forwarded_ext=()), publish("/a", 1, ext={"binary": {}, **SECRETS}))


def test_it_stands_next_to_what_the_server_adds_and_is_stored():
    """An event of the history has it, whoever reads it, with the event's position."""
    house = House(history={}, forwarded_ext=NAMES)
    event = heard(house, publish("/a", {"x": 1}, ext={"trace": 7, "idempotency_key": "k"}))
    assert event["ext"] == {"replay": 1, "trace": 7}
    (stored,) = house.log.events
    again = event_of(row_of(stored, stored.position))
    assert again.details == '{"trace":7}'
    assert json.loads(render(again))["ext"] == {"trace": 7}


@pytest.mark.parametrize(("chars", "is_taken"), [(1_022, True), (1_023, False)])
def test_a_field_has_up_to_a_kilobyte(chars, is_taken):
    """It is counted with its quotes. A longer one is refused with the publish, and nobody hears it."""
    house = House(forwarded_ext=NAMES, history={})
    sent = house.send(publish("/a", 1, ext={"trace": "x" * chars}))
    assert len(house.log.inbox) == is_taken
    house.log.commit(now=house.now)
    house.turn()
    assert sent.only.get("error") == (None if is_taken else "413::ext_too_large")


def test_what_is_not_forwarded_may_be_longer():
    """Only what is stored and delivered is bounded so."""
    assert House().send(publish("/a", 1, ext={"trace": "x" * 5_000})).only["successful"] is True


def test_a_service_keeps_its_messages_as_they_are():
    """What is sent to a service reaches no other client."""
    house = House(forwarded_ext=NAMES)
    assert house.join().publish("/service/a", 1, ext={"trace": "x" * 5_000}).only["successful"] is True


def test_an_extension_that_puts_no_json_there_is_at_fault():
    """The message is answered as any that an extension has deleted; the exception is reported."""
    house = House(forwarded_ext=NAMES)
    spoil = SimpleNamespace(incoming=lambda _, message: {**message, "ext": {"trace": object()}})
    house.hooks.extensions.append(spoil)
    assert house.send(publish("/a", 1)).only["error"] == "404::message_deleted"
    assert [what for what, _ in house.reported] == ["extension.incoming"]


def test_what_waits_counts_with_its_ext():
    """A flood of large fields with small data is bounded like one of large data."""
    house = House(forwarded_ext=NAMES)
    peer = house.join()
    peer.subscribe("/a")
    before = house.broker.waiting.value
    house.send(publish("/a", 1, ext={"trace": "x" * 1_000}))
    assert house.broker.waiting.value - before > 2_000
