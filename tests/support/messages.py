"""Bayeux messages as clients write them; keyword arguments add or replace fields."""

from __future__ import annotations

from typing import Any

JSON = dict[str, Any]

HANDSHAKE: JSON = {"channel": "/meta/handshake", "version": "1.0", "supportedConnectionTypes": ["long-polling"]}


def connect(client_id: str, **fields: Any) -> JSON:
    """Return a connect of the long-polling transport."""
    return {"channel": "/meta/connect", "clientId": client_id, "connectionType": "long-polling", **fields}


def subscribe(client_id: str, *channels: str, **fields: Any) -> JSON:
    """Return a subscription to one channel, or to several by an array."""
    subscription = channels[0] if len(channels) == 1 else list(channels)
    return {"channel": "/meta/subscribe", "clientId": client_id, "subscription": subscription, **fields}


def unsubscribe(client_id: str, channel: str, **fields: Any) -> JSON:
    """Return a message that ends the subscription to a channel."""
    return {"channel": "/meta/unsubscribe", "clientId": client_id, "subscription": channel, **fields}


def disconnect(client_id: str, **fields: Any) -> JSON:
    """Return a message that ends a session."""
    return {"channel": "/meta/disconnect", "clientId": client_id, **fields}


def publish(channel: str, data: Any, **fields: Any) -> JSON:
    """Return a publish, without a session unless `clientId` is given."""
    return {"channel": channel, "data": data, **fields}
