"""Event history: `wamp.subscription.get_events`, its arguments and its result (Advanced Profile, "Event History").

The time and publication bounds apply together, in the order of the log, regardless of the order of reading; `reverse`
applies next, then `limit`. A wrong argument is answered with a fixed text that names it; unknown keyword arguments are
ignored.

The keyword arguments of the result describe the page:

is_limit_reached   the page has as many events as `limit` allows, and there is more in the log
complete           the range that was read is complete: nothing of it was removed or damaged, and the page was not cut
                   short by the bounds on the work and the bytes of one call
next               the publication to continue from, as `after_publication`, or in reverse as `before_publication`; null
                   where nothing is left. The caller may not have received that publication: it is only a place
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson

from halley.broker.errors import InvalidName
from halley.broker.events import BOUNDS, LAST_PUBLICATION, Event, Span, to_ns, to_text
from halley.broker.names import Match, Pattern, narrowed
from halley.broker.policy import Proof
from halley.broker.ports import USUAL_LIMIT, Durability, Page, Query, Reader, UnknownPublication
from halley.broker.sessions import Session
from halley.protocols.shapes import parts
from halley.protocols.wamp import errors
from halley.protocols.wamp.errors import InvalidArgument, WampError
from halley.protocols.wamp.events import arguments, details_of
from halley.protocols.wamp.messages import RESULT, Call, identifier, whole
from halley.protocols.wamp.names import Grammar, is_meta, to_topic
from halley.protocols.wamp.serializers import Serializer, is_absent
from halley.protocols.wamp.session import WampSession
from halley.protocols.wamp.state import RouterState
from halley.protocols.wamp.subscribing import Subscribing
from halley.settings import Verb


class EventHistory:
    """Answers `wamp.subscription.get_events`."""

    def __init__(self, state: RouterState, subscribing: Subscribing) -> None:
        self._state = state
        self._subscribing = subscribing
        self._recording = state.broker.commits

    def is_kept(self, pattern: Pattern) -> bool:
        """Return whether events that match a pattern may be in the history."""
        log = self._recording.log
        if log is None or is_meta(pattern):
            return False
        return pattern.match is not Match.EXACT or log.durability_of(pattern.topic) is not Durability.NONE

    def get_events(self, session: WampSession, call: Call, now: float) -> None:
        """Read a page of the history for a client, and answer later. Raises `WampError`."""
        state, realm = self._state, session.realm
        max_events = self._recording.options.page_events
        reading = read(call.args or [], call.kwargs or {}, realm.space, realm.grammar, max_events)
        pattern = state.pattern_of(session, reading.subscription)
        if pattern is None:
            raise WampError(errors.NO_SUCH_SUBSCRIPTION)
        self._subscribing.check_right(session, pattern)
        if state.archive is None or not self.is_kept(pattern):
            raise WampError(errors.HISTORY_UNAVAILABLE)
        session.requests.check_capacity()
        start = partial(self._start, session, call, reading, pattern)
        session.engine.if_permitted("subscribe", pattern, call, start, now, blocks=False)

    def _start(self, session: WampSession, call: Call, reading: HistoryCall, pattern: Pattern, _now: float) -> None:
        archive, options = self._state.archive, self._recording.options
        if archive is None:  # closed while a policy decided
            raise WampError(errors.HISTORY_UNAVAILABLE)
        page = archive.page(lambda head: reading.query(pattern, session, head, options.page_bytes), Reader.of(session))
        answer = partial(self._answer, session, call.request, reading, pattern)
        needs: tuple[Verb, Pattern] = ("subscribe", pattern)
        session.engine.wait_for(call, page, options.commit_s + options.read_s, answer, needs=needs)

    def _answer(
        self,
        session: WampSession,
        request: int,
        reading: HistoryCall,
        pattern: Pattern,
        page: Page | None,
        error: Exception | None,
        _now: float,
    ) -> None:
        if isinstance(error, UnknownPublication):
            args, kwargs = nothing(is_complete=False)
        elif isinstance(error, TimeoutError):
            self._state.broker.hits["read_s"] += 1
            raise WampError(errors.TIMEOUT)
        elif error is not None:
            raise WampError(errors.HISTORY_UNAVAILABLE)
        elif page is None:
            args, kwargs = nothing(is_complete=True)
        else:
            args, kwargs = result(page, reading, pattern, session.engine.format.serializer)
        session.engine.say([RESULT, request, {}, args, kwargs])


@dataclass(frozen=True, slots=True)
class HistoryCall:
    """The parsed arguments of one call; `topic` is canonical, `filters` are fields of `Query`."""

    subscription: int
    topic: str | None
    limit: int
    is_reverse: bool
    filters: dict[str, Any]

    def query(self, pattern: Pattern, reader: Session | Proof, head: int, max_bytes: int) -> Query | None:
        """Return the query for a log that ends at the position `head`; None where nothing can match.

        `pattern` is the subscription's pattern, `reader` the caller. The page's events are bounded by `max_bytes`.
        """
        wanted = pattern if self.topic is None else narrowed(pattern, self.topic)
        if wanted is None:
            return None
        return Query(
            ((wanted, 0),),
            head,
            authid=reader.authid,
            role=reader.role,
            limit=self.limit,
            max_bytes=max_bytes,
            is_reverse=self.is_reverse,
            **self.filters,
        )


def read(
    args: Sequence[object], kwargs: Mapping[str, object], space: str, grammar: Grammar, max_events: int
) -> HistoryCall:
    """Parse the arguments of a call in a realm's space and grammar. Raises `InvalidArgument`.

    `max_events` is the greatest number of events in a page; a greater `limit` is lowered to it.
    """
    given = {name: value for name, value in kwargs.items() if not is_absent(value)}
    span = Span()
    filters: dict[str, Any] = {}
    for bound in BOUNDS:
        if (time := given.get(f"{bound}_time")) is not None:
            span.narrow(bound, _time_ns(f"{bound}_time", time))
        if (publication := given.get(f"{bound}_publication")) is not None:
            filters[f"{bound}_publication"] = _id(f"{bound}_publication", publication)
    filters |= {"from_time_us": span.from_us, "until_time_us": span.until_us}
    return HistoryCall(
        _id("subscription", args[0] if args else None),
        _topic(given["topic"], space, grammar) if "topic" in given else None,
        min(_limit(given["limit"]) if "limit" in given else USUAL_LIMIT, max_events),
        _flag("reverse", given.get("reverse", False)),
        filters,
    )


def result(
    page: Page, reading: HistoryCall, pattern: Pattern, serializer: Serializer
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the arguments of the RESULT, to be packed by `serializer`.

    Each event is one positional argument; the keyword arguments describe the page (see the module). They are always
    sent, so that client libraries return the same type for any number of events.
    """
    is_full = not page.is_end and len(page.events) >= reading.limit
    is_whole = (page.is_end or is_full) and not page.is_cut_off and not page.gaps
    return [_details(event, reading.subscription, pattern, serializer) for event in page.events], {
        "is_limit_reached": is_full,
        "complete": is_whole,
        "next": None if page.is_end else page.publication,
    }


def nothing(*, is_complete: bool) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the arguments of a RESULT without events.

    `is_complete` is false where a publication in the call's arguments is not in the log.
    """
    return [], {"is_limit_reached": False, "complete": is_complete, "next": None}


def _details(event: Event, subscription: int, pattern: Pattern, serializer: Serializer) -> dict[str, Any]:
    """Return an event of the history as a dictionary: the elements of its EVENT, and its time."""
    found = {
        "timestamp": to_text(event.time_us),
        "subscription": subscription,
        "publication": event.publication,
        "details": orjson.loads(details_of(event, pattern)),
    }
    values: tuple[Any, Any]
    if serializer.is_binary:
        values = arguments(event.payload, event.shape, serializer)
    else:
        args, kwargs = parts(event.payload, event.shape)
        values = args and orjson.Fragment(args), kwargs and orjson.Fragment(kwargs)
    return found | {name: value for name, value in zip(("args", "kwargs"), values, strict=True) if value is not None}


def _id(name: str, value: object) -> int:
    number = identifier(value)
    if number is None:
        raise InvalidArgument(name, f"an id, a whole number from 1 to {LAST_PUBLICATION}")
    return number


def _limit(value: object) -> int:
    number = whole(value)
    if number is None or number < 1:
        raise InvalidArgument("limit", "a whole number of at least 1")
    return number


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidArgument(name, "true or false")
    return value


def _time_ns(name: str, value: object) -> int:
    try:
        if isinstance(value, str):
            return to_ns(value)
    except ValueError:
        pass
    raise InvalidArgument(name, "an RFC 3339 time with its offset, such as 2026-07-01T12:00:00Z")


def _topic(value: object, space: str, grammar: Grammar) -> str:
    try:
        if isinstance(value, str):
            return to_topic(value, space, grammar)
    except InvalidName:
        pass
    raise InvalidArgument("topic", "a URI")
