"""Bayeux clients for tests without a network: what they send and receive, and the course of each request.

The house whose clients they are is in `bayeux.py`. Nothing here judges what is right.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from halley.protocols.bayeux.outcomes import AbortConnection, AwaitHook, Deferred, Transport, Verdict
from halley.protocols.bayeux.session import Hold, Reply
from support.messages import HANDSHAKE, JSON

if TYPE_CHECKING:
    from halley.protocols.bayeux.outcomes import Outcome
    from halley.protocols.bayeux.session import BayeuxSession
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
"""One channel of each kind."""


def handshake(**fields: Any) -> JSON:
    """Return a handshake as cometd.js sends it; `fields` are added or replace its own."""
    types = ["long-polling", "callback-polling"]
    return {"id": "h", **HANDSHAKE, "minimumVersion": "1.0", "supportedConnectionTypes": types, **fields}


class Exchange:
    """One request and, once it exists, its response.

    The response of a `stalled` one stays in its socket until the test calls `written` or `unwritten`.
    """

    def __init__(self, house: House, peer: Peer | None, *, stalled: bool) -> None:
        self.house = house
        self.peer = peer
        self.stalled = stalled
        self.hold: Hold | None = None
        self.wait: AwaitHook | None = None
        self.reply: Reply | None = None
        self.is_aborted = False
        self.is_pending = False  # it waits for the log

    @property
    def is_held(self) -> bool:
        """Whether it is a connect that waits for its reply."""
        return self.hold is not None and self.reply is None and not self.is_aborted

    @property
    def is_over(self) -> bool:
        """Whether its peer has gone."""
        return self.is_aborted

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
        """The messages that are replies to requests."""
        return [message for message in self.messages if "data" not in message]

    @property
    def events(self) -> list[tuple[str, Any]]:
        """The channel and data of each event."""
        return [(message["channel"], message["data"]) for message in self.messages if "data" in message]

    def written(self) -> None:
        """Report to the engine that the response has left its socket."""
        self._has_left()
        self.house.turn()

    def unwritten(self) -> None:
        """Report to the engine that the socket died before the response had left it."""
        self.house.engine.sessions.take_back(self._answered())
        self.house.turn()

    def hang_up(self) -> None:
        """Report to the engine that the socket of a held connect has died."""
        assert self.hold is not None
        self.is_aborted = True
        self.house.engine.sessions.lost(self.hold.session, self, self.house.now)
        self.house.turn()

    def resume(self, value: Any = None, error: Exception | None = None) -> Exchange:
        """End the wait for a hook, with its result or its error."""
        assert self.wait is not None, "nothing is waited for"
        wait, self.wait = self.wait, None
        self.write(self.house.engine.resume(wait, Verdict(value, error), self.house.now))
        self.house.turn()
        return self

    def write(self, outcome: Outcome | AbortConnection) -> None:
        """Note the engine's outcome of this request."""
        self.is_pending = isinstance(outcome, Deferred)
        if isinstance(outcome, Hold):
            self.hold = outcome
        elif isinstance(outcome, AwaitHook):
            self.wait = outcome
        elif isinstance(outcome, Deferred):
            pass
        elif isinstance(outcome, AbortConnection):
            self.is_aborted = True
        else:
            assert self.reply is None, "answered twice"
            self.reply = outcome
            self.house.replies.append(outcome)
            if self.peer is not None and self.peer.jar is not None and outcome.set_cookie is not None:
                self.peer.jar[:] = [outcome.set_cookie]
            if not self.stalled:
                self._has_left()

    def _has_left(self) -> None:
        self.house.engine.sessions.settle(self._answered())
        if self.peer is not None and self.status == 200:
            self.peer.heard.extend(self.events)

    def _answered(self) -> Reply:
        assert self.reply is not None, "not answered"
        return self.reply


class Peer:
    """A client. `heard` has the channel and data of every event that reached it, in order.

    Peers that share a `jar` are tabs of one browser; a peer without a jar keeps no cookies. `ext` is sent with the
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
        """Its session, which must not have ended."""
        session = self.house.session(self.id)
        assert session is not None, "the session has ended"
        return session

    @property
    def is_known(self) -> bool:
        """Whether its session exists."""
        return self.house.session(self.id) is not None

    def message(self, channel: str, **fields: Any) -> JSON:
        """Return a message of this peer, with the next id; fields that are None are omitted."""
        self._sent += 1
        message = {"id": str(self._sent), "channel": channel, "clientId": self.id, **fields}
        return {name: value for name, value in message.items() if value is not None}

    def send(self, *messages: Any, **more: Any) -> Exchange:
        """Send one request over its transport with its cookies."""
        cookies = tuple(self.jar or ())
        return self.house.send(*messages, **{"transport": self.transport, "cookies": cookies, "peer": self, **more})

    def handshake(self, **fields: Any) -> Exchange:
        """Send a handshake; a successful one gives the peer its id."""
        ext = {} if self.ext is None else {"ext": self.ext}
        exchange = self.send(handshake(**ext, **fields))
        if not exchange.is_waiting and exchange.status == 200:
            self.id = exchange.messages[0].get("clientId", self.id)
        return exchange

    def poll(self, **fields: Any) -> JSON:
        """Return a connect message."""
        return self.message("/meta/connect", **{"connectionType": self.transport.value, **fields})

    def connect(self, *, stalled: bool = False, **fields: Any) -> Exchange:
        """Send a request with only a connect."""
        return self.send(self.poll(**fields), stalled=stalled)

    def subscribe(self, *names: str, **fields: Any) -> Exchange:
        """Subscribe to one name, or to an array of them."""
        subscription = names[0] if len(names) == 1 else list(names)
        return self.send(self.message("/meta/subscribe", subscription=subscription, **fields))

    def unsubscribe(self, *names: str) -> Exchange:
        """End the subscription to one name, or to an array of them."""
        subscription = names[0] if len(names) == 1 else list(names)
        return self.send(self.message("/meta/unsubscribe", subscription=subscription))

    def publish(self, channel: str, data: Any, *, stalled: bool = False, **fields: Any) -> Exchange:
        """Publish one event."""
        return self.send(self.message(channel, **fields) | {"data": data}, stalled=stalled)

    def disconnect(self) -> Exchange:
        """End the session."""
        return self.send(self.message("/meta/disconnect"))
