"""The class `Halley`: it registers a program's hooks and provides the ASGI application."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import sys
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from types import SimpleNamespace
from typing import Any, Literal, overload

from halley.embed.hooks import (
    AuthorizerHook,
    ChannelHook,
    Extension,
    ListenerHook,
    NamedHook,
    Policy,
    ServiceHook,
    SessionHook,
    methods_of,
)
from halley.embed.local_session import LocalSession, LocalSessions
from halley.embed.server_session import ServerSession, pattern_of
from halley.protocols.bayeux.hooks import PUBLISHES, VALUES, Listener
from halley.protocols.bayeux.session import BayeuxSession
from halley.server.composition import Server
from halley.server.protocols import PROTOCOLS, Compose
from halley.settings import Settings

Occasion = Literal[
    "session_opened", "session_closed", "subscribed", "unsubscribed", "suspended", "resumed", "channel_created"
]


class Halley:
    """A server inside a program.

    The settings' `host` must be the one that the program listens on: it decides what anonymous clients can do (see
    "Listeners and protection" in `halley/settings/README.md`). `app` is the ASGI application. Pass `lifespan` to the
    program's own application, or background tasks do not run and clients are not disconnected when the program ends.
    """

    def __init__(self, settings: Settings | None = None, protocols: Sequence[Compose] = PROTOCOLS) -> None:
        """Make a server that speaks `protocols` (`halley/server/protocols.py`).

        Raises `BadSettings` for settings that a file could not have, `NotProtected` for a host that others can reach,
        unless `settings.open`.
        """
        self.server = Server(settings, protocols)
        self._hooks = self.server.hooks
        self._engine = self.server.engine
        self._own: LocalSession | None = None
        self.server.add(LocalSessions(self.server.broker))

    @property
    def app(self) -> Server:
        """The ASGI application, to run or to mount."""
        return self.server

    @property
    def lifespan(self) -> Callable[[Any], AbstractAsyncContextManager[None]]:
        """The lifespan to pass to `Starlette(lifespan=...)` or `FastAPI(lifespan=...)`."""
        return self.server.application.lifespan

    # What the program does

    def publish(self, channel: str, data: Any, ext: Mapping[str, Any] | None = None) -> asyncio.Future[dict[str, Any]]:
        """Publish as the program itself; `data` and `ext` are JSON. The future is that of `LocalSession.publish`."""
        if self._own is None:
            self._own = LocalSession(self._engine, "program")
        return self._own.publish(channel, data, ext)

    def local_session(self, name: str) -> LocalSession:
        """Create a session of the program itself; `name` is for its log lines.

        If the server runs, the session ends with that run; so does what an older one subscribes to meanwhile.
        """
        return LocalSession(self._engine, name, lambda: self.server.lifecycle.is_running)

    @property
    def sessions(self) -> list[ServerSession]:
        """All Bayeux sessions that are open."""
        found = self.server.broker.sessions.values()
        return [self._handle_of(session) for session in found if isinstance(session, BayeuxSession)]

    def session(self, session_id: str) -> ServerSession | None:
        """The Bayeux session with that id; None if there is none or it has ended."""
        session = self.server.broker.sessions.get(session_id)
        return self._handle_of(session) if isinstance(session, BayeuxSession) else None

    # The program's hooks

    def service(self, channel: str) -> Callable[[ServiceHook], ServiceHook]:
        """Register an answer to messages on `/service/...`: `service(session, message)`, plain or a coroutine function.

        Its result, unless None, is sent to the sender alone, on the same channel and with the same id. `session` is
        None for a sender without one. Raises `ValueError` if `channel` is not below `/service`.
        """
        if not channel.startswith("/service/"):
            raise ValueError(f"a service's channel must be below /service, not {channel!r}")
        pattern = pattern_of(channel, self._engine)

        def register(hook: ServiceHook) -> ServiceHook:
            self._hooks.services.add(pattern, self._with_session(hook))
            return hook

        return register

    def listener(
        self, channel: str, *, vetoes: bool = False, protocols: Collection[str] = PUBLISHES
    ) -> Callable[[ListenerHook], ListenerHook]:
        """Register a hook for publishes before they are delivered: `listener(session, message)`.

        It may set `message.data`. If it returns False or raises `Refused`, the message is not delivered. If it raises
        any other exception the message is delivered, or with `vetoes` it is not. `session` is None for all but Bayeux's
        sessions and the program's own.

        `protocols` are some of "bayeux", "wamp", "http" (requests without a session), "local" (the program) and "nt4":
        the values of NetworkTables' clients, before they pass to other protocols and the history. That is no more often
        than every `nt4.record_every_s` for each topic, and only where a listener asks for it.

        Raises `ValueError` for an invalid channel or protocol, and `TypeError` for a coroutine function.
        """
        pattern = pattern_of(channel, self._engine)
        wanted = frozenset(protocols)
        if not wanted or not wanted <= {*PUBLISHES, VALUES}:
            raise ValueError(f"protocols must be some of {', '.join(sorted({*PUBLISHES, VALUES}))}, not {protocols!r}")

        def register(hook: ListenerHook) -> ListenerHook:
            _must_be_plain(hook)
            listener = Listener(self._with_session(hook), vetoes=vetoes, protocols=wanted)
            if wanted & PUBLISHES:
                self._hooks.listeners.add(pattern, listener)
            if VALUES in wanted:
                self._hooks.value_listeners.add(pattern, listener)
            return hook

        return register

    def authorizer(self, channel: str) -> Callable[[AuthorizerHook], AuthorizerHook]:
        """Register an authorizer for channels: `authorizer(session, operation, channel, message)`.

        `operation` is "create", "subscribe" or "publish". True grants, False denies, None leaves the decision to
        others. Any False denies; if there are authorizers for a channel and none grants, the operation is denied.
        Raises `ValueError` for an invalid channel, and `TypeError` for a coroutine function.
        """
        pattern = pattern_of(channel, self._engine)

        def register(hook: AuthorizerHook) -> AuthorizerHook:
            _must_be_plain(hook)
            self._hooks.authorizers.add(pattern, self._with_session(hook))
            return hook

        return register

    @overload
    def on(
        self, occasion: Literal["session_opened", "suspended", "resumed"]
    ) -> Callable[[SessionHook], SessionHook]: ...

    @overload
    def on(
        self, occasion: Literal["session_closed", "subscribed", "unsubscribed"]
    ) -> Callable[[NamedHook], NamedHook]: ...

    @overload
    def on(self, occasion: Literal["channel_created"]) -> Callable[[ChannelHook], ChannelHook]: ...

    def on(self, occasion: Occasion) -> Callable[[Any], Any]:
        """Register a notification hook, which must be a plain function (else `TypeError`).

        It is called as `hook(session)` for `session_opened`, and for connects that are held and answered (`suspended`,
        `resumed`); as `hook(session, reason)` for `session_closed`; as `hook(session, channel)` for `subscribed` and
        `unsubscribed`; and as `hook(channel)` for `channel_created`, once, before the channel can be used.
        """

        def register(hook: Callable[..., object]) -> Callable[..., object]:
            _must_be_plain(hook)
            notified = hook if occasion == "channel_created" else self._with_session(hook)
            getattr(self._hooks, occasion).append(notified)
            return hook

        return register

    def set_policy(self, policy: object) -> None:
        """Set the policy: a `Policy`, or any object with some of its methods."""
        methods = {name: self._with_session(method) for name, method in methods_of(policy, Policy).items()}
        self._hooks.policy = SimpleNamespace(**methods)

    def add_extension(self, extension: object) -> None:
        """Pass all messages through an `Extension`, or any object with some of its methods.

        An incoming message also has the attributes `context`, the HTTP request that carried it, and `identity`, who
        sent it.
        """
        methods = {name: self._with_session(method) for name, method in methods_of(extension, Extension).items()}
        self._hooks.extensions.append(SimpleNamespace(**methods))

    def background(self, task: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], Coroutine[Any, Any, None]]:
        """Run a coroutine function while the server runs; it is cancelled when the server stops."""
        self.server.lifecycle.run_in_background(task)
        return task

    def _with_session(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a hook so that it gets a `ServerSession`."""

        def call(session: BayeuxSession | None, *arguments: Any) -> Any:
            return hook(None if session is None else self._handle_of(session), *arguments)

        return call

    def _handle_of(self, session: BayeuxSession) -> ServerSession:
        if not isinstance(session.handle, ServerSession):
            session.handle = ServerSession(session, self._engine)
        return session.handle


def _must_be_plain(hook: Callable[..., Any]) -> None:
    if inspect.iscoroutinefunction(hook):
        raise TypeError(f"{hook!r} must not be a coroutine function: its result is needed immediately")


def load(name: str, halley: Halley) -> None:
    """Import `MODULE:FUNCTION`, also from the working directory, and call it with `halley`.

    Raises `ImportError` if the module or function does not exist, and any exception of the function itself.
    """
    module, colon, function = name.partition(":")
    if not colon:
        raise ImportError(f"{name!r} is not of the form MODULE:FUNCTION")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        setup = getattr(importlib.import_module(module), function, None)
    except ImportError as error:
        raise ImportError(f"cannot load {name}: {error}") from error
    if setup is None:
        raise ImportError(f"cannot load {name}: there is no {function} in {module}")
    setup(halley)
