"""A Halley of one's own: registers a program's code and hands out the ASGI application."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from app.embed.local_session import LocalSession
from app.embed.names import pattern_of
from app.embed.server_session import ServerSession
from app.protocols.bayeux.hooks import Hooks, Listener
from app.protocols.bayeux.sessions import BayeuxSession
from app.server import House

if TYPE_CHECKING:
    import asyncio
    from contextlib import AbstractAsyncContextManager

    from app.settings import Settings

Hook = TypeVar("Hook", bound=Callable[..., Any])
Occasion = Literal[
    "session_opened", "session_closed", "subscribed", "unsubscribed", "suspended", "resumed", "channel_created"
]
_QUESTIONS = ("can_handshake", "can_create", "can_subscribe", "can_publish")
_WAYS = ("incoming", "outgoing")


class Halley:
    """One server inside a program.

    `settings` say where the program listens (`host`), which decides what strangers may do; see the README's limits.
    `app` is the ASGI application. Give `lifespan` to the program's own, or background tasks do not run and clients are
    not sent away when the program ends.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        """Raises `app.protection.NotProtected` for a host that others can reach, unless `settings.open`."""
        self._hooks = Hooks()
        self.house = House(settings, self._hooks)
        self._engine = self.house.engine
        self._own: LocalSession | None = None

    @property
    def app(self) -> House:
        """The ASGI application, to run or to mount."""
        return self.house

    @property
    def lifespan(self) -> Callable[[Any], AbstractAsyncContextManager[None]]:
        """For `Starlette(lifespan=...)` and `FastAPI(lifespan=...)`."""
        return self.house.lifespan

    # What the program does

    def publish(self, channel: str, data: Any) -> asyncio.Future[dict[str, Any]]:
        """Publish as the program itself; see `LocalSession.publish`."""
        if self._own is None:
            self._own = self.local_session("program")
        return self._own.publish(channel, data)

    def local_session(self, name: str) -> LocalSession:
        """A session of the program's own; `name` is for its log lines."""
        return LocalSession(self._engine, name)

    @property
    def sessions(self) -> list[ServerSession]:
        """All Bayeux sessions of now."""
        found = self.house.broker.sessions.values()
        return [self._shown(session) for session in found if isinstance(session, BayeuxSession)]

    def session(self, session_id: str) -> ServerSession | None:
        """The session of that id, if it has not ended."""
        session = self.house.broker.sessions.get(session_id)
        return self._shown(session) if isinstance(session, BayeuxSession) else None

    # What the program hears and decides

    def service(self, channel: str) -> Callable[[Hook], Hook]:
        """Answer messages published to `/service/...`: `service(session, message)`, which may be a coroutine function.

        What it returns, unless None, goes back to the sender alone, on the same channel and with the same id. `session`
        is None for a sender without one. Raises `ValueError` if `channel` is not below `/service`.
        """
        if not channel.startswith("/service/"):
            raise ValueError(f"services live below /service, not at {channel!r}")
        pattern = pattern_of(channel, self._engine)

        def register(hook: Hook) -> Hook:
            self._hooks.services.add(pattern, self._with_session(hook))
            return hook

        return register

    def listener(self, channel: str, *, vetoes: bool = False) -> Callable[[Hook], Hook]:
        """See publishes before they are delivered: `listener(session, message)`.

        It may set `message.data`. Returning False, or raising `Refused`, keeps the message from everyone. If it fails,
        the message goes on, or with `vetoes` it does not.
        """
        pattern = pattern_of(channel, self._engine)

        def register(hook: Hook) -> Hook:
            _must_be_plain(hook)
            self._hooks.listeners.add(pattern, Listener(self._with_session(hook), vetoes=vetoes))
            return hook

        return register

    def authorizer(self, channel: str) -> Callable[[Hook], Hook]:
        """Decide about one part of the channels: `authorizer(session, operation, channel, message)`.

        `operation` is "create", "subscribe" or "publish". True grants, False denies, None leaves it to others. Any
        False denies; where there are authorizers and none grants, nobody may.
        """
        pattern = pattern_of(channel, self._engine)

        def register(hook: Hook) -> Hook:
            _must_be_plain(hook)
            self._hooks.authorizers.add(pattern, self._with_session(hook))
            return hook

        return register

    def on(self, occasion: Occasion) -> Callable[[Hook], Hook]:
        """Be told: of sessions (`hook(session)`, or with the reason when one closes), of subscriptions
        (`hook(session, channel)`), of connects held and answered (`suspended`, `resumed`), of new channels
        (`hook(channel)`, once, before anyone can use it).
        """  # noqa: D205 - one sentence that does not fit on a line

        def register(hook: Hook) -> Hook:
            _must_be_plain(hook)
            told = hook if occasion == "channel_created" else self._with_session(hook)
            getattr(self._hooks, occasion).append(told)
            return hook

        return register

    def set_policy(self, policy: object) -> None:
        """Have these questions answered by `policy`, as far as it has methods of these names.

        `can_handshake(session, message)`, `can_create(session, channel, message)`,
        `can_subscribe(session, channel, message)`, `can_publish(session, channel, message)`; plain or coroutine
        functions. True means yes, anything else and raising means no. `Refused` lets it say why.
        """
        asked = {name: self._with_session(getattr(policy, name)) for name in _QUESTIONS if hasattr(policy, name)}
        self._hooks.policy = SimpleNamespace(**asked)

    def add_extension(self, extension: object) -> None:
        """Pass all messages through `extension.incoming(session, message)` and `.outgoing(session, message)`.

        Either may be missing. Both get the JSON object and return it, changed or not; None drops an incoming message
        or an outgoing event.
        """
        seen = {name: self._with_session(getattr(extension, name)) for name in _WAYS if hasattr(extension, name)}
        self._hooks.extensions.append(SimpleNamespace(**seen))

    def background(self, task: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], Coroutine[Any, Any, None]]:
        """Run a coroutine function while the server runs; it is cancelled when the server stops."""
        self.house.background.append(task)
        return task

    def _with_session(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        """Let a hook see sessions as `ServerSession`."""

        def call(session: BayeuxSession | None, *arguments: Any) -> Any:
            return hook(None if session is None else self._shown(session), *arguments)

        return call

    def _shown(self, session: BayeuxSession) -> ServerSession:
        if not isinstance(session.handle, ServerSession):
            session.handle = ServerSession(session, self._engine)
        return session.handle


def _must_be_plain(hook: Callable[..., Any]) -> None:
    if inspect.iscoroutinefunction(hook):
        raise TypeError(f"{hook!r} must not be a coroutine function: it is asked for its answer at once")


def load(name: str, halley: Halley) -> None:
    """Import `MODULE:FUNCTION`, also from the working directory, and call it with `halley`.

    Raises `ImportError` if there is no such thing, and whatever the function itself raises.
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
