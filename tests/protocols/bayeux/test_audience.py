"""`ext.audience` of a publish: who receives the event, live and from the history, and which forms are refused."""

import json

import pytest
from support.bayeux import House
from support.bayeux_peers import Peer, handshake
from support.messages import publish

from halley.broker.events import Audience
from halley.broker.policy import Proof

PEOPLE = {"ann's": Proof("ann", "staff"), "bob's": Proof("bob", "staff"), "eve's": Proof("eve", "guest")}
INVALID = "400::audience_invalid"


def join(house, token):
    """Return a peer with that token, subscribed to /a."""
    peer = Peer(house)
    peer.id = house.send(handshake(), token=token, peer=peer).only["clientId"]
    peer.connect()
    peer.subscribe("/a")
    return peer


@pytest.mark.parametrize(
    ("audience", "hearers"),
    [
        (None, {"ann", "bob", "eve"}),
        ({}, {"ann", "bob", "eve"}),
        ({"eligible_roles": None, "excluded_authids": []}, {"ann", "bob", "eve"}),
        ({"eligible_authids": ["eve", "ann"]}, {"ann", "eve"}),
        ({"eligible_roles": ["staff"]}, {"ann", "bob"}),
        ({"eligible_roles": ["staff"], "excluded_authids": ["ann"]}, {"bob"}),
        ({"excluded_roles": ["guest", "guest"]}, {"ann", "bob"}),
        ({"eligible_authids": []}, set()),
    ],
)
def test_only_its_audience_hears_an_event(audience, hearers):
    """Each of the four fields narrows the audience; the publisher is treated like every other subscriber."""
    house = House(authenticate=lambda token, _: PEOPLE[token])
    peers = {token.removesuffix("'s"): join(house, token) for token in PEOPLE}
    sent = peers["ann"].publish("/a", 1, ext={"audience": audience})
    assert sent.messages[0]["successful"] is True
    heard = {name for name, peer in peers.items() if peer.connect(advice={"timeout": 0}).events}
    assert heard | ({"ann"} if sent.events else set()) == hearers


def test_an_audience_stands_on_the_event_that_is_stored():
    """Names are stored once and sorted, so that equal audiences have one form in the log."""
    house = House(history={})
    audience = {"excluded_roles": ["b", "a", "b"], "eligible_authids": ["z", "é"]}
    house.send(publish("/a", 1, ext={"audience": audience}))
    house.send(publish("/a", 2, ext={"audience": {"excluded_authids": None}}))
    assert [event.audience for event in house.log.inbox] == [Audience(("z", "é"), None, (), ("a", "b")), None]


@pytest.mark.parametrize(
    "audience",
    [
        *(1, "ann", ["ann"], True),
        {"eligible": ["ann"]},
        {"eligible_authids": ["ann"], "exclude_roles": ["guest"]},
        {"eligible_authids": "ann"},
        {"eligible_authids": [None]},
        {"eligible_authids": [["ann"]]},
        {"excluded_roles": {"guest": 1}},
        {"excluded_roles": False},
    ],
)
def test_a_form_that_is_none_is_refused_and_nobody_hears_it(audience):
    """An event whose audience is misspelt is refused, since it might reach those whom it should exclude."""
    house = House(history={})
    peer = house.join()
    peer.subscribe("/**")
    assert peer.publish("/a", 1, ext={"audience": audience}).only["error"] == INVALID
    assert (house.log.inbox, house.broker.published) == ([], 0)


def test_too_many_names_are_refused_and_counted():
    """`limits.audience_chars` bounds what is stored with each event."""
    house = House(limits={"audience_chars": 64})
    assert house.send(publish("/a", 1, ext={"audience": {"eligible_roles": ["r" * 30, "s" * 26]}})).only["successful"]
    sent = house.send(publish("/a", 1, ext={"audience": {"eligible_roles": ["r" * 30], "excluded_roles": ["s" * 27]}}))
    assert sent.only["error"] == INVALID
    assert house.broker.hits["audience_chars"] == 1


def test_what_is_published_to_a_service_has_no_audience():
    """Messages to services reach no other client, so their `ext` belongs to the program, as with keys."""
    house = House()
    assert house.join().publish("/service/a", 1, ext={"audience": 1}).only["successful"] is True


def test_subscribers_are_not_told_who_the_others_are():
    """An event's message has its channel and its data, and not its audience."""
    house = House()
    peer = house.join()
    peer.subscribe("/a")
    sent = house.send(publish("/a", 1, ext={"audience": {"excluded_authids": ["mallory"]}}))
    assert sent.only["successful"] is True
    assert "mallory" not in json.dumps(peer.connect(advice={"timeout": 0}).messages)
