"""The life of a Bayeux session, as a table.

A handshake makes a session `NEW`. From then on exactly one thing can be said of it: either a `/meta/connect` of its
waits here (`HELD`), or none does (`IDLE`, and `NEW` before the first one), or it is over (`CLOSED`). All rules about
polling are rows below:

* The first connect is answered at once (design decision 1): clients take it as the sign that they are connected, and
  some ask for nothing special. So `NEW` has no row that leads to `HELD`.
* A connect may be held only if it came alone, nothing is waiting for the session, its browser has a free slot, the
  client did not ask for an immediate answer and the server is not leaving. The engine decides that and calls the
  connect `POLL` if it may wait and `CONNECT` if it may not.
* There is never more than one held connect. A newer one first makes the older one `REPLACED`; that one is answered with
  its own empty reply, and nothing waiting is given to it.
* A held connect ends in one of five ways, each of which leaves the session `IDLE` and its expiry clock running: events
  came, its time is up (`LAPSE`), it was replaced, its socket died (`GONE`), or the server is leaving (`DRAIN`).
* The same `LAPSE` without a held connect means that the client has not come back: the session ends. There is one
  deadline for both, so no state is without one.
* `LEAVE` is a disconnect by either side, `CUT` the end of a session that cannot be served (its outbox overflowed).
  Whoever waits is told: a held connect is `DISMISSED` with `reconnect: none`, or `REFUSED` with `reconnect: handshake`.

What has no row does nothing: an event for a session without a held connect waits in its outbox, and a socket that dies
after its answer was made is a matter of that answer (`Engine.unwritten`), not of the session.
"""

from __future__ import annotations

from enum import Enum, auto


class State(Enum):
    """What can be said of a session."""

    NEW = auto()
    IDLE = auto()
    HELD = auto()
    CLOSED = auto()


class Happening(Enum):
    """What can happen to it."""

    CONNECT = auto()
    POLL = auto()
    REPLACED = auto()
    EVENTS = auto()
    LAPSE = auto()
    GONE = auto()
    DRAIN = auto()
    LEAVE = auto()
    CUT = auto()


class Step(Enum):
    """What the engine does then."""

    ANSWER = auto()  # the connect at hand gets its reply, with all that waits
    HOLD = auto()  # it stays unanswered until one of the rows of HELD
    ANSWER_HELD = auto()  # the held connect gets its reply, with all that waits
    ANSWER_EMPTY = auto()  # the held connect gets its reply and nothing else
    RELEASE = auto()  # nobody is left to answer
    EXPIRE = auto()
    DISMISS = auto()
    REFUSE = auto()
    END = auto()  # nobody waits; the session just ends


LIFE: dict[tuple[State, Happening], tuple[State, Step]] = {
    (State.NEW, Happening.CONNECT): (State.IDLE, Step.ANSWER),
    (State.NEW, Happening.POLL): (State.IDLE, Step.ANSWER),
    (State.NEW, Happening.LAPSE): (State.CLOSED, Step.EXPIRE),
    (State.NEW, Happening.LEAVE): (State.CLOSED, Step.END),
    (State.NEW, Happening.CUT): (State.CLOSED, Step.END),
    (State.IDLE, Happening.CONNECT): (State.IDLE, Step.ANSWER),
    (State.IDLE, Happening.POLL): (State.HELD, Step.HOLD),
    (State.IDLE, Happening.LAPSE): (State.CLOSED, Step.EXPIRE),
    (State.IDLE, Happening.LEAVE): (State.CLOSED, Step.END),
    (State.IDLE, Happening.CUT): (State.CLOSED, Step.END),
    (State.HELD, Happening.REPLACED): (State.IDLE, Step.ANSWER_EMPTY),
    (State.HELD, Happening.EVENTS): (State.IDLE, Step.ANSWER_HELD),
    (State.HELD, Happening.LAPSE): (State.IDLE, Step.ANSWER_HELD),
    (State.HELD, Happening.GONE): (State.IDLE, Step.RELEASE),
    (State.HELD, Happening.DRAIN): (State.IDLE, Step.ANSWER_HELD),
    (State.HELD, Happening.LEAVE): (State.CLOSED, Step.DISMISS),
    (State.HELD, Happening.CUT): (State.CLOSED, Step.REFUSE),
}
