"""What changed rights take away from a session while it lasts.

Bayeux has no word for this. The client gets the message that would answer its own unsubscribe, without an id and with
`ext: {"revoked": true}`, as an event of the session: cometd.js passes it to its listeners for `/meta/unsubscribe`, and
Faye ignores it. Events that wait because of such a subscription are dropped, also those that were sent and whose reply
has not been written or acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable

from halley.broker.broker import Broker
from halley.broker.events import Event
from halley.broker.names import matches, receiving_patterns
from halley.broker.policy import Rights
from halley.protocols.bayeux.history import Replayer
from halley.protocols.bayeux.hooks import Hooks
from halley.protocols.bayeux.messages import revocation_frame
from halley.protocols.bayeux.names import to_subscription
from halley.protocols.bayeux.session import BayeuxSession


def revoke(
    session: BayeuxSession,
    broker: Broker,
    rights: Rights,
    hooks: Hooks,
    history: Replayer,
    send: Callable[[Event], object],
) -> int:
    """Take away the subscriptions that the session's rights no longer grant; return their number.

    What the program has subscribed the session to is not the rules' to take. `send` sends an event to the session.
    """
    denied = [
        pattern
        for pattern, subscription in session.subscriptions.items()
        if not subscription.sessions[session] and not rights.may(session, "subscribe", pattern)
    ]
    if not denied:
        return 0
    history.forget(session, denied)
    for pattern in denied:
        broker.unsubscribe(session, pattern)

    def is_unwanted(event: Event) -> bool:
        if not event.publication or not any(matches(pattern, event.topic) for pattern in denied):
            return False  # what a program sends to one session needs no subscription
        return not any(pattern in session.subscriptions for pattern in receiving_patterns(event.topic))

    session.discard(is_unwanted)
    for name in map(to_subscription, denied):
        hooks.notify(hooks.unsubscribed, session, name)
        frame = revocation_frame(name)
        event = Event("meta/unsubscribe", frame)
        event.frames["bayeux"] = frame
        send(event)
    return len(denied)
