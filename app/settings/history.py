"""Settings of the event history."""

from dataclasses import MISSING, dataclass

from app.settings.knob import knob


@dataclass(frozen=True, slots=True)
class Record:
    """One rule of the history, a table [[record]].

    The first rule whose pattern matches a topic decides whether its events are kept, and for how long. After all these
    there are two built-in rules: the server's own topics for 72 h, not durable, and all others for 72 h, durable.
    `/service/**` is recorded only by a rule that names it.
    """

    pattern: str = knob(MISSING, why="a channel, or a pattern such as /chat/*, /chat/** or /**")
    age: str = knob("72h", why='how long events can be replayed, such as 90s, 30m, 72h, 7d; "0": not recorded at all')
    durable: bool = knob(
        default=True, why="events are on disk before they are delivered and acknowledged; false: written afterwards"
    )
    realm: str = knob("", why="the WAMP realm; empty: the first one, whose channels all protocols share")


@dataclass(frozen=True, slots=True)
class History:
    """The durable event history. [[record]] sets what is recorded, and for how long."""

    enabled: bool = knob(
        default=True, why="off: events are kept in memory only; they cannot be replayed and do not outlive the server"
    )
    max_bytes: int = knob(
        1_073_741_824,
        unit="bytes",
        low=1_048_576,
        why="of the whole log on disk; beyond it the oldest segments are deleted",
    )
    segment_bytes: int = knob(
        67_108_864, unit="bytes", low=65_536, why="after which a segment is sealed; retention deletes whole segments"
    )
    free_bytes: int = knob(
        268_435_456,
        unit="bytes",
        low=0,
        zero="no minimum",
        why="of free disk space; below it durable publishes are refused",
    )
    inbox_bytes: int = knob(
        67_108_864, unit="bytes", low=65_536, why="of events that wait to be written; beyond it publishes get 503"
    )
    commit_s: float = knob(
        10.0, unit="s", low=0.1, why="a publish that is not on disk by then gets 503: its outcome is unknown"
    )
    tail_bytes: int = knob(
        1_048_576,
        unit="bytes",
        low=0,
        zero="all are read from disk",
        why="of the newest events that are kept in memory, for sessions that resume",
    )
    consumer_grace_s: float = knob(
        3_600.0,
        unit="s",
        low=0,
        zero="retention does not wait for consumers",
        why="how long retention waits for consumers; meanwhile the log can grow to 1.5 times max_bytes",
    )
    consumers: int = knob(
        100,
        unit="consumers",
        low=1,
        why="programs that read the whole log and for which retention waits; then 409 until one is deleted",
    )
    readers: int = knob(
        2, unit="threads", low=1, high=64, why="that read from disk at the same time; further reads wait"
    )
    page_events: int = knob(300, unit="events", low=1, high=1_000, why="in one page of a replay or a query")
    page_bytes: int = knob(
        524_288, unit="bytes", low=65_536, why="in one page of a replay or a query; one event always fits"
    )
    read_s: float = knob(10.0, unit="s", low=0.1, why="if a page cannot be read by then, the reply is sent without it")
    keys: int = knob(
        100_000, unit="keys", low=0, zero="repeats are not recognized", why="idempotency keys that are remembered"
    )
    key_age_s: float = knob(600.0, unit="s", low=1, why="how long an idempotency key is remembered")
    key_chars: int = knob(128, unit="characters", low=16, why="longer idempotency keys are refused")
