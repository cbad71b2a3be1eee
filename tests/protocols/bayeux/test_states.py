"""The table of a session's states, and that sessions behave as the text above it says (states.py)."""

import pytest
from support.bayeux import House
from support.bayeux_peers import Peer

from app.protocols.bayeux.states import LIFE, Happening, State, Step

LIVING = (State.NEW, State.IDLE, State.HELD)


def test_a_first_connect_is_never_held():
    """No transition leads from NEW to HELD."""
    assert [row for row, (after, _) in LIFE.items() if row[0] is State.NEW and after is State.HELD] == []


def test_only_a_poll_is_held():
    """Only one transition leads to HELD (B2)."""
    assert [row for row, (after, _) in LIFE.items() if after is State.HELD] == [(State.IDLE, Happening.POLL)]


def test_a_held_session_never_holds_twice():
    """A held session has no transition for a connect: the older one is replaced first (B5)."""
    assert (State.HELD, Happening.CONNECT) not in LIFE
    assert (State.HELD, Happening.POLL) not in LIFE


def test_every_living_state_has_an_end():
    """Every living state has transitions for a deadline that has passed, a disconnect, and an overflow (B10)."""
    for state in LIVING:
        for happening in (Happening.LAPSE, Happening.LEAVE, Happening.CUT):
            assert (state, happening) in LIFE


def test_closed_is_closed():
    """A closed session has no transitions (A55)."""
    assert [row for row in LIFE if row[0] is State.CLOSED] == []


def test_whoever_waits_is_answered_unless_gone():
    """Every transition out of HELD answers the held connect, except the one for a dead socket (B30)."""
    silent = {row[1] for row, (_, step) in LIFE.items() if row[0] is State.HELD and step in (Step.RELEASE, Step.END)}
    assert silent == {Happening.GONE}


def test_every_happening_and_step_is_used():
    """The table has no happening or step that is not used."""
    assert {happening for _, happening in LIFE} == set(Happening)
    assert {step for _, step in LIFE.values()} == set(Step)


def arrive(house, state):
    """Return a peer whose session is in `state`."""
    peer = Peer(house)
    peer.handshake()
    if state is not State.NEW:
        peer.connect()
    if state is State.HELD:
        peer.connect()
    assert peer.session.state is state
    return peer


ACTIONS = {
    Happening.CONNECT: lambda house, peer: peer.connect(advice={"timeout": 0}),
    Happening.POLL: lambda house, peer: peer.connect(),
    Happening.EVENTS: lambda house, peer: house.deliver(peer, "/a", 1),
    Happening.LAPSE: lambda house, peer: house.pass_time(25 if peer.session.state is State.HELD else 10),
    Happening.LEAVE: lambda house, peer: peer.disconnect(),
    Happening.DRAIN: lambda house, peer: [house.engine.release(s, house.now) for s in house.engine.drain()],
    Happening.CUT: lambda house, peer: [house.engine.deliver(peer.session, "/a", n, None, house.now) for n in range(3)],
}

AFTER = {
    State.NEW: {
        Happening.CONNECT: State.IDLE,
        Happening.POLL: State.IDLE,
        Happening.EVENTS: State.NEW,
        Happening.LAPSE: None,
        Happening.LEAVE: None,
        Happening.DRAIN: State.NEW,
    },
    State.IDLE: {
        Happening.CONNECT: State.IDLE,
        Happening.POLL: State.HELD,
        Happening.EVENTS: State.IDLE,
        Happening.LAPSE: None,
        Happening.LEAVE: None,
        Happening.DRAIN: State.IDLE,
    },
    State.HELD: {
        Happening.CONNECT: State.IDLE,
        Happening.POLL: State.HELD,
        Happening.EVENTS: State.IDLE,
        Happening.LAPSE: State.IDLE,
        Happening.LEAVE: None,
        Happening.DRAIN: State.IDLE,
    },
}


@pytest.mark.parametrize(
    ("state", "happening"), [(state, happening) for state, row in AFTER.items() for happening in row]
)
def test_what_happens_when(house, state, happening):
    """Each happening leads from each state to the documented one; a closed session no longer exists (states.py)."""
    peer = arrive(house, state)
    ACTIONS[happening](house, peer)
    house.turn()
    after = peer.session.state if peer.is_known else None
    assert after is AFTER[state][happening]


@pytest.mark.parametrize("state", [State.NEW, State.IDLE])
def test_what_is_cut(state):
    """A session without a held connect is closed when its queue overflows (states.py)."""
    house = House(limits={"queue_events": 1})
    peer = arrive(house, state)
    session = peer.session
    for number in range(2):
        house.engine.deliver(session, "/a", number, None, house.now)
    house.turn()
    assert session.state is State.CLOSED
    assert not peer.is_known
