"""The life of a Bayeux session, as a table.

A handshake makes a session `NEW`. From then on a session is in exactly one state: a `/meta/connect` is held (`HELD`),
or none is (`IDLE`, and `NEW` before the first connect), or the session has ended (`CLOSED`). All rules about polling
are rows below:

* The first connect is not held: clients take the reply as the sign that they are connected, and some do not ask
  for it by advice. So `NEW` has no row that leads to `HELD`.
* A connect may be held only if it was sent alone, nothing is waiting for the session, its browser has a free slot, the
  client did not ask for an immediate answer and the server is not draining. The engine decides that and calls the
  connect `POLL` if it may be held and `CONNECT` if it may not.
* There is never more than one held connect. A newer one first makes the older one `REPLACED`; the older one is answered
  with its own empty reply, and gets none of the waiting events.
* A held connect ends in one of five ways, each of which leaves the session `IDLE` and its expiry clock running: events
  arrived, it timed out (`LAPSE`), it was replaced, its socket died (`GONE`), or the server is draining (`DRAIN`).
* The same `LAPSE` without a held connect means that the client has not connected again: the session ends. There is one
  deadline for both, so no state is without one.
* `LEAVE` is a disconnect by either side, `CUT` the end of a session that cannot be served (its outbox overflowed). A
  held connect is answered: by `DISMISS` with `reconnect: none`, or by `REFUSE` with `reconnect: handshake`.

A pair without a row has no effect: an event for a session without a held connect waits in its outbox, and a socket that
dies after its reply was made affects that reply (`Engine.unwritten`), not the session.
"""

from __future__ import annotations

from enum import Enum, auto


class State(Enum):
    """The states of a session."""

    NEW = auto()
    IDLE = auto()
    HELD = auto()
    CLOSED = auto()


class Happening(Enum):
    """The events in a session's life that may change its state."""

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
    """The actions of the engine on a change of state."""

    ANSWER = auto()  # the connect gets its reply, with all waiting events
    HOLD = auto()  # the connect stays unanswered until one of the rows of HELD
    ANSWER_HELD = auto()  # the held connect gets its reply, with all waiting events
    ANSWER_EMPTY = auto()  # the held connect gets its reply without events
    RELEASE = auto()  # the held connect's peer has closed the connection: no reply
    EXPIRE = auto()
    DISMISS = auto()
    REFUSE = auto()
    END = auto()  # no connect is held; the session ends without a reply


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
