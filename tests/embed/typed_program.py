"""A program that embeds Halley, as a type checker sees it: `test_types.py` runs `mypy --strict` over this file.

Where a line is wrong, it says which error is expected; mypy reports each that it does not find.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.routing import Mount

from halley.client import Client, Event
from halley.embed import (
    Extension,
    Fields,
    Halley,
    HttpContext,
    Identity,
    LocalSession,
    Message,
    Policy,
    Refused,
    ServerSession,
    Settings,
)
from halley.settings import Bayeux, History

halley = Halley(Settings(history=History(enabled=False), bayeux=Bayeux(hold_s=20)))
clock: LocalSession = halley.local_session("clock")


class MembersOnly(Policy):
    """Some methods of a policy, plain and not."""

    async def can_handshake(self, session: ServerSession, message: Message) -> bool:
        """Prove a name."""
        name = (message.ext or {}).get("name")
        if not isinstance(name, str):
            raise Refused("name_missing", advice={"reconnect": "none"})
        session.identify(name, "member", {"team": "red"})
        session.attributes["name"] = name
        return True

    def can_publish(self, session: ServerSession | None, channel: str, message: Message) -> bool:
        """Ask who publishes."""
        who: Identity = message.identity
        return session is not None and who.is_proved and who.claims.get("team") == "red"


class Numbered(Extension):
    """One method of an extension."""

    count = 0

    def outgoing(self, session: ServerSession | None, message: Fields) -> dict[str, Any] | None:
        """Number all messages."""
        self.count += 1
        context: HttpContext | None = message.context
        return {**message, "ext": {"number": self.count, "asked": context is not None}}


class Unrelated:
    """An object that has the methods without the class."""

    def can_subscribe(self, session: ServerSession | None, channel: str, message: Message) -> bool:
        """Grant all."""
        return True


halley.set_policy(MembersOnly())
halley.set_policy(Unrelated())
halley.add_extension(Numbered())


@halley.service("/service/greet")
async def greet(session: ServerSession | None, message: Message) -> str:
    """Answer a question."""
    return f"Hello, {message.data['name']}!"


@halley.listener("/chat/**", vetoes=True, protocols=["bayeux", "http"])
def keep_polite(session: ServerSession | None, message: Message) -> bool | None:
    """Keep some events back."""
    return False if "spam" in str(message.data) else None


@halley.authorizer("/reports/**")
def for_members(session: ServerSession | None, operation: str, channel: str, message: Message) -> bool | None:
    """Decide about a part of the channels."""
    return operation != "publish" and message.identity.role == "member"


@halley.on("session_opened")
def opened(session: ServerSession) -> None:
    """Greet a client."""
    session.deliver("/welcome", {"name": session.attributes.get("name")})


@halley.on("session_closed")
def closed(session: ServerSession, reason: str) -> None:
    """Tell the others."""
    halley.publish("/left", {"reason": reason, "others": len(halley.sessions)})


@halley.on("channel_created")
def created(channel: str) -> None:
    """Note a channel."""


@halley.background
async def tick() -> None:
    """Publish the time."""
    while True:
        clock.publish("/time", asyncio.get_running_loop().time())
        await asyncio.sleep(1)


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    """Begin and end with the program."""
    async with halley.lifespan(app):
        yield


program = Starlette(routes=[Mount("/realtime", app=halley.app)], lifespan=lifespan)


async def read(url: str) -> list[Event]:
    """Use the client."""
    found: list[Event] = []
    async with Client(url, token="secret") as client:
        await client.subscribe("/room/*")
        async for event in client:
            found.append(event)
            if len(found) == 2:
                break
    return found


# What is wrong


class Wrong(Policy):
    """Methods that are called with other arguments, or whose answer means nothing."""

    def can_publish(self, session: ServerSession | None, message: Message) -> bool:  # type: ignore[override]
        """Lack the channel."""
        return True

    def can_create(self, session: ServerSession | None, channel: str, message: Message) -> str:  # type: ignore[override]
        """Answer with a text."""
        return "yes"


@halley.on("session_opened")  # type: ignore[type-var]
def with_a_reason(session: ServerSession, reason: str) -> None:
    """Expect an argument too many."""


@halley.service("/service/other")  # type: ignore[type-var]
def without_a_message(session: ServerSession | None) -> None:
    """Expect an argument too few."""


@halley.authorizer("/a")  # type: ignore[type-var]
async def too_late(session: ServerSession | None, operation: str, channel: str, message: Message) -> bool:
    """Answer later, where an answer is needed at once."""
    return True


Halley(Settings(prot=1))  # type: ignore[call-arg]
