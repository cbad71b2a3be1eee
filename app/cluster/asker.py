"""Asking keepers about the history, which a front has not, and a new keeper has not yet (`keeper.py`)."""

from __future__ import annotations

from typing import Any, NamedTuple

import orjson

from app.cluster.keeper import subject_of_keeper, subject_of_keepers
from app.cluster.nats import Connection
from app.cluster.requests import Unanswered, ask


class State(NamedTuple):
    """What a keeper has, on its disk.

    node             the keeper
    log_id           of the log, and `publication_key` is that of its publications
    first            the first offset that the keeper still has
    applied          as `Applied.restore` takes it
    """

    node: str
    log_id: str
    publication_key: int
    first: int
    applied: dict[str, Any]


async def state_of(nats: Connection, space: str, within_s: float, node: str = "") -> State:
    """The state of the keeper `node`, or of any.

    Raises `NobodyAnswers`, `Unanswered`, `TimeoutError`, `AwayErrors`.
    """
    subject = subject_of_keeper(space, node) if node else subject_of_keepers(space)
    told = orjson.loads(await ask(nats, space, subject, {"what": "state"}, within_s))
    try:
        told["publication_key"] = int(told["publication_key"])  # a JSON number has 53 bits for many readers
        return State(**told)
    except (TypeError, KeyError, ValueError):
        raise Unanswered("another version") from None
