"""Bytes in the JSON lines between a test and its driver: {"$bytes": "<base64>"} (`drivers/values.mjs`)."""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Any


def to_driver(value: Any) -> Any:
    """The value with its bytes as the driver reads them."""
    if isinstance(value, bytes):
        return {"$bytes": b64encode(value).decode()}
    if isinstance(value, dict):
        return {key: to_driver(each) for key, each in value.items()}
    return [to_driver(each) for each in value] if isinstance(value, list) else value


def from_driver(value: Any) -> Any:
    """The value of a driver with its bytes."""
    if isinstance(value, dict):
        if "$bytes" in value:
            return b64decode(value["$bytes"])
        return {key: from_driver(each) for key, each in value.items()}
    return [from_driver(each) for each in value] if isinstance(value, list) else value
