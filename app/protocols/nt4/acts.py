"""The effects of a client's text messages, after the program's own policy has allowed them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from app.protocols.nt4.messages import Ignored, Publish, SetProperties, Subscribe, Unpublish, Unsubscribe
from app.protocols.nt4.subscribing import subscribe, unsubscribe

if TYPE_CHECKING:
    from app.protocols.nt4.engine import Engine


def act(engine: Engine, message: Any, now: float) -> None:
    """Carry out a text message (`messages.Message`) of an engine's client."""
    _ACTS[type(message)](engine, message, now)


def _publish(engine: Engine, message: Publish, now: float) -> None:
    def go_on(_: list[bool], now: float) -> None:
        engine.tables.publish(engine.client, message, now)

    engine.if_permitted("publish", [message.name], engine.tables.exactly, go_on, now)


def _unpublish(engine: Engine, message: Unpublish, now: float) -> None:
    engine.tables.unpublish(engine.client, message.pubuid, now)


def _set_properties(engine: Engine, message: SetProperties, now: float) -> None:
    def go_on(_: list[bool], now: float) -> None:
        engine.tables.set_properties(engine.client, message.name, message.update, now)

    engine.if_permitted("publish", [message.name], engine.tables.exactly, go_on, now)


def _subscribe(engine: Engine, message: Subscribe, now: float) -> None:
    """Subscribe to those names of the message that the policy allows."""

    def go_on(permitted: list[bool], now: float) -> None:
        topics = tuple(name for name, may in zip(message.topics, permitted, strict=True) if may)
        subscribe(engine.tables, engine.client, message._replace(topics=topics), now)

    pattern_of = engine.tables.below if message.options.is_prefix else engine.tables.exactly
    engine.if_permitted("subscribe", message.topics, pattern_of, go_on, now)


def _unsubscribe(engine: Engine, message: Unsubscribe, now: float) -> None:
    unsubscribe(engine.tables, engine.client, message.subuid, now)


def _ignored(engine: Engine, message: Ignored, now: float) -> None:  # noqa: ARG001 - as its siblings
    engine.tables.ignore(message.reason)


_ACTS: dict[type, Callable[[Engine, Any, float], None]] = {
    Publish: _publish,
    Unpublish: _unpublish,
    SetProperties: _set_properties,
    Subscribe: _subscribe,
    Unsubscribe: _unsubscribe,
    Ignored: _ignored,
}
