"""The identity of a client: from `ext.authentication` of its handshake, or from the bearer token of the request.

The handshake's token takes precedence. If the server accepts no tokens at all, both are ignored: they may be meant for
a program's policy, or for a proxy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.broker.errors import TokenRefused
from app.broker.policy import ANONYMOUS, Identity
from app.protocols.bayeux import errors
from app.protocols.bayeux.exchanges import Request, Transport
from app.protocols.bayeux.messages import Fault, Message
from app.protocols.bayeux.sessions import BayeuxSession

if TYPE_CHECKING:
    from app.protocols.bayeux.engine import Engine


def identify(engine: Engine, request: Request, message: Message, session: BayeuxSession, now: float) -> None:
    """Set the identity of a new session from its handshake's token, if there is one. Raises `Fault`."""
    shown = _shown(message)
    if not engine.identities.accept_tokens or (shown is None and request.token is None):
        return
    if request.transport is Transport.CALLBACK_POLLING:  # a URL ends up in logs, histories and Referer headers
        raise Fault(errors.HANDSHAKE_DENIED.format(errors.DENIED_BY_URL))
    try:
        token = shown if shown is not None else request.token
        if not isinstance(token, str):
            raise TokenRefused("the token is not a string")
        identity = engine.identities.prove(token, engine.wall_s(now))
    except TokenRefused as refused:
        raise Fault(errors.HANDSHAKE_DENIED.format(refused.reason)) from None
    session.authid, session.role, session.credential = identity.authid, identity.role, identity.credential
    if identity.expires_s is not None:
        session.expiry = identity.expires_s - engine.broker.clock_offset_s


def confirm(engine: Engine, session: BayeuxSession) -> None:
    """Check that a new session's token has not been withdrawn while a policy was awaited. Raises `Fault`."""
    if not engine.identities.stand_by(session.credential):
        raise Fault(errors.HANDSHAKE_DENIED.format(TokenRefused.reason))


def visitor(engine: Engine, request: Request, now: float) -> Identity:
    """The identity of a publisher without a session; checked once a request, since a signature costs time.

    Raises `Fault`.
    """
    if not engine.identities.accept_tokens or request.token is None:
        return ANONYMOUS
    if request.visitor is None:
        try:
            request.visitor = engine.identities.prove(request.token, engine.wall_s(now))
        except TokenRefused as refused:
            request.visitor = refused
    if isinstance(request.visitor, TokenRefused):
        raise Fault(errors.PUBLISH_DENIED.format(request.visitor.reason))
    return request.visitor


def _shown(message: Message) -> object:
    """The handshake's token, or any other value in its place; None without one.

    An object without `token` is ignored: CometD's users send names and passwords there for their own policies.
    """
    shown = (message.ext or {}).get("authentication")
    return shown.get("token") if isinstance(shown, dict) else shown
