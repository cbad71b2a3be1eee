"""Bayeux clients for tests without a network: what they send, what they got, and what becomes of each request.

The house they visit is in `bayeux.py`. Nothing here decides what is right.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from app.protocols.bayeux.exchanges import Hold, Pending, Reply, Transport, Verdict, Wait
from support.messages import HANDSHAKE, JSON

if TYPE_CHECKING:
    from app.protocols.bayeux.exchanges import Outcome
    from app.protocols.bayeux.sessions import BayeuxSession
    from support.bayeux import House


CHANNELS = (
    "/meta/handshake",
    "/meta/connect",
    "/meta/subscribe",
    "/meta/unsubscribe",
    "/meta/disconnect",
    "/meta/unknown",
    "/service/a",
    "/a",
)
"""One of each kind that a message can have."""


def handshake(**fields: Any) -> JSON:
    """A handshake as cometd.js sends it; `fields` are added or replace its own."""
    types = ["long-polling", "callback-polling"]
    return {"id": "h", **HANDSHAKE, "minimumVersion": "1.0", "supportedConnectionTypes": types, **fields}


class Exchange:
    """One request and, sooner or later, its response.

    A `stalled` one has a response that does not leave its socket until the test says `written` or `unwritten`.
    """

    def __init__(self, house: House, peer: Peer | None, *, stalled: bool) -> None:
        self.house = house
        self.peer = peer
        self.stalled = stalled
        self.hold: Hold | None = None
        self.wait: Wait | None = None
        self.reply: Reply | None = None
        self.is_aborted = False
        self.is_pending = False  # it waits for the log

    @property
    def is_held(self) -> bool:
        """Whether it is a connect that waits for its answer."""
        return self.hold is not None and self.reply is None and not self.is_aborted

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for a hook."""
        return self.wait is not None

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self._answered().status

    @property
    def messages(self) -> list[JSON]:
        """All messages of the response, in order."""
        messages: list[JSON] = json.loads(self._answered().body())
        return messages

    @property
    def only(self) -> JSON:
        """The response's one message."""
        (message,) = self.messages
        return message

    @property
    def replies(self) -> list[JSON]:
        """The messages that answer requests."""
        return [message for message in self.messages if "data" not in message]

    @property
    def events(self) -> list[tuple[str, Any]]:
        """Channel and data of the other messages."""
        return [(message["channel"], message["data"]) for message in self.messages if "data" in message]

    def written(self) -> None:
        """Let the response leave its socket."""
        self._has_left()
        self.house.turn()

    def unwritten(self) -> None:
        """Let the socket die before the response has left."""
        self.house.engine.unwritten(self._answered())
        self.house.turn()

    def hang_up(self) -> None:
        """Let the socket of a held connect die."""
        assert self.hold is not None
        self.is_aborted = True
        self.house.engine.gone(self.hold, self.house.now)
        self.house.turn()

    def resume(self, value: Any = None, error: Exception | None = None) -> Exchange:
        """Give what it waited for: a value, or an error."""
        assert self.wait is not None, "nothing is waited for"
        wait, self.wait = self.wait, None
        self.came(self.house.engine.resume(wait, Verdict(value, error), self.house.now))
        self.house.turn()
        return self

    def came(self, outcome: Outcome | None) -> None:
        """Take note of what the engine gave for this request; None: its connection was cut."""
        self.is_pending = isinstance(outcome, Pending)
        if isinstance(outcome, Hold):
            self.hold = outcome
        elif isinstance(outcome, Wait):
            self.wait = outcome
        elif isinstance(outcome, Pending):
            pass
        elif outcome is None:
            self.is_aborted = True
        else:
            assert self.reply is None, "answered twice"
            self.reply = outcome
            if self.peer is not None and self.peer.jar is not None and outcome.set_cookie is not None:
                self.peer.jar[:] = [outcome.set_cookie]
            if not self.stalled:
                self._has_left()

    def _has_left(self) -> None:
        self.house.engine.written(self._answered())
        if self.peer is not None and self.status == 200:
            self.peer.heard.extend(self.events)

    def _answered(self) -> Reply:
        assert self.reply is not None, "not answered"
        return self.reply


class Peer:
    """A client: what it sends, and in `heard` the channel and data of every event that reached it, in order.

    Peers that share a `jar` are tabs of one browser; one without a jar keeps no cookies. `ext` is sent with the
    handshake.
    """

    def __init__(
        self,
        house: House,
        *,
        jar: list[str] | None = None,
        transport: Transport = Transport.LONG_POLLING,
        ext: JSON | None = None,
    ) -> None:
        self.house = house
        self.jar = jar
        self.transport = transport
        self.ext = ext
        self.id = ""
        self.heard: list[tuple[str, Any]] = []
        self._sent = 0

    @property
    def session(self) -> BayeuxSession:
        """Its session, which must live."""
        session = self.house.session(self.id)
        assert session is not None, "the session has ended"
        return session

    @property
    def is_known(self) -> bool:
        """Whether its session lives."""
        return self.house.session(self.id) is not None

    def message(self, channel: str, **fields: Any) -> JSON:
        """A message of its, with the next id; fields of None are left out."""
        self._sent += 1
        message = {"id": str(self._sent), "channel": channel, "clientId": self.id, **fields}
        return {name: value for name, value in message.items() if value is not None}

    def send(self, *messages: Any, **more: Any) -> Exchange:
        """One request over its transport with its cookies."""
        cookies = tuple(self.jar or ())
        return self.house.send(*messages, **{"transport": self.transport, "cookies": cookies, "peer": self, **more})

    def handshake(self, **fields: Any) -> Exchange:
        """A handshake; a successful one gives the peer its id."""
        ext = {} if self.ext is None else {"ext": self.ext}
        exchange = self.send(handshake(**ext, **fields))
        if not exchange.is_waiting and exchange.status == 200:
            self.id = exchange.messages[0].get("clientId", self.id)
        return exchange

    def poll(self, **fields: Any) -> JSON:
        """A connect, to be sent."""
        return self.message("/meta/connect", **{"connectionType": self.transport.value, **fields})

    def connect(self, *, stalled: bool = False, **fields: Any) -> Exchange:
        """Send a connect alone."""
        return self.send(self.poll(**fields), stalled=stalled)

    def subscribe(self, *names: str, **fields: Any) -> Exchange:
        """Subscribe to one name, or to an array of them."""
        subscription = names[0] if len(names) == 1 else list(names)
        return self.send(self.message("/meta/subscribe", subscription=subscription, **fields))

    def unsubscribe(self, *names: str) -> Exchange:
        """The opposite."""
        subscription = names[0] if len(names) == 1 else list(names)
        return self.send(self.message("/meta/unsubscribe", subscription=subscription))

    def publish(self, channel: str, data: Any, *, stalled: bool = False, **fields: Any) -> Exchange:
        """Publish one event."""
        return self.send(self.message(channel, **fields) | {"data": data}, stalled=stalled)

    def disconnect(self) -> Exchange:
        """Leave."""
        return self.send(self.message("/meta/disconnect"))
