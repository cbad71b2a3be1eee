"""The table of a session's states, and that sessions behave as the text above it says (session.py)."""

from typing import get_args

import pytest
from support.bayeux import House
from support.bayeux_peers import Peer

from halley.protocols.bayeux.session import TRANSITIONS, Action, Trigger

LIVING = ("new", "idle", "held")


def test_a_first_connect_is_never_held():
    """No transition leads from NEW to HELD."""
    assert [row for row, (after, _) in TRANSITIONS.items() if row[0] == "new" and after == "held"] == []


def test_only_a_poll_is_held():
    """Only one transition leads to HELD (B2)."""
    assert [row for row, (after, _) in TRANSITIONS.items() if after == "held"] == [("idle", "poll")]


def test_a_held_session_never_holds_twice():
    """A held session has no transition for a connect: the older one is replaced first (B5)."""
    assert ("held", "connect") not in TRANSITIONS
    assert ("held", "poll") not in TRANSITIONS


def test_every_living_state_has_an_end():
    """Every living state has transitions for a deadline that has passed, a disconnect, and an overflow (B10)."""
    for state in LIVING:
        for happening in ("timeout", "leave", "cut"):
            assert (state, happening) in TRANSITIONS


def test_closed_is_closed():
    """A closed session has no transitions (A55)."""
    assert [row for row in TRANSITIONS if row[0] == "closed"] == []


def test_whoever_waits_is_answered_unless_lost():
    """Every transition out of HELD answers the held connect, except the one for a dead socket (B30)."""
    silent = {row[1] for row, (_, step) in TRANSITIONS.items() if row[0] == "held" and step in ("release", "end")}
    assert silent == {"lost"}


def test_every_happening_and_step_is_used():
    """The table has no happening or step that is not used."""
    assert {happening for _, happening in TRANSITIONS} == set(get_args(Trigger))
    assert {step for _, step in TRANSITIONS.values()} == set(get_args(Action))


def arrive(house, state):
    """Return a peer whose session is in `state`."""
    peer = Peer(house)
    peer.handshake()
    if state != "new":
        peer.connect()
    if state == "held":
        peer.connect()
    assert peer.session.state is state
    return peer


ACTIONS = {
    "connect": lambda house, peer: peer.connect(advice={"timeout": 0}),
    "poll": lambda house, peer: peer.connect(),
    "events": lambda house, peer: house.deliver(peer, "/a", 1),
    "timeout": lambda house, peer: house.pass_time(25 if peer.session.state == "held" else 10),
    "leave": lambda house, peer: peer.disconnect(),
    "drain": lambda house, peer: [
        house.engine.sessions.drain_session(s, house.now) for s in house.engine.sessions.drain()
    ],
    "cut": lambda house, peer: [
        house.engine.sessions.deliver(peer.session, "/a", n, None, house.now) for n in range(3)
    ],
}

AFTER = {
    "new": {
        "connect": "idle",
        "poll": "idle",
        "events": "new",
        "timeout": None,
        "leave": None,
        "drain": "new",
    },
    "idle": {
        "connect": "idle",
        "poll": "held",
        "events": "idle",
        "timeout": None,
        "leave": None,
        "drain": "idle",
    },
    "held": {
        "connect": "idle",
        "poll": "held",
        "events": "idle",
        "timeout": "idle",
        "leave": None,
        "drain": "idle",
    },
}


@pytest.mark.parametrize(
    ("state", "happening"), [(state, happening) for state, row in AFTER.items() for happening in row]
)
def test_what_happens_when(house, state, happening):
    """Each happening leads from each state to the documented one; a closed session no longer exists (session.py)."""
    peer = arrive(house, state)
    ACTIONS[happening](house, peer)
    house.turn()
    after = peer.session.state if peer.is_known else None
    assert after is AFTER[state][happening]


@pytest.mark.parametrize("state", ["new", "idle"])
def test_what_is_cut(state):
    """A session without a held connect is closed when its queue overflows (session.py)."""
    house = House(limits={"queue_events": 1})
    peer = arrive(house, state)
    session = peer.session
    for number in range(2):
        house.engine.sessions.deliver(session, "/a", number, None, house.now)
    house.turn()
    assert session.state == "closed"
    assert not peer.is_known
