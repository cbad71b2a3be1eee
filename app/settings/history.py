"""Settings of the event history."""

from dataclasses import MISSING, dataclass

from app.settings.knob import knob


@dataclass(frozen=True, slots=True)
class Record:
    """One rule, a table [[record]]: the first whose pattern covers a topic says whether and how long its events are
    kept. Behind those that are written stand two of the house: the server's own topics for 72 h, not durable, and
    everything else for 72 h, durable. `/service/**` is recorded only by a rule that names it.
    """  # noqa: D205 - as above

    pattern: str = knob(MISSING, why="where: a channel, or a pattern such as /chat/*, /chat/** or /**")
    age: str = knob("72h", why='how long events can be replayed, such as 90s, 30m, 72h, 7d; "0": not recorded at all')
    durable: bool = knob(default=True, why="on disk before it is delivered or acknowledged; false: written afterwards")
    realm: str = knob("", why="of which WAMP realm; without it of the first, whose channels all protocols share")


@dataclass(frozen=True, slots=True)
class History:
    """The durable event history. What is recorded, and for how long, is said by [[record]]."""

    enabled: bool = knob(default=True, why="off: memory alone, nothing can be replayed and nothing outlives the server")
    max_bytes: int = knob(
        1_073_741_824, unit="bytes", low=1_048_576, why="of the whole log on disk; beyond it the oldest segment goes"
    )
    segment_bytes: int = knob(
        67_108_864, unit="bytes", low=65_536, why="when a segment is full and sealed; what goes, goes by segments"
    )
    free_bytes: int = knob(
        268_435_456, unit="bytes", low=0, zero="no floor", why="of the disk, left free; below it durable publishes fail"
    )
    inbox_bytes: int = knob(
        67_108_864, unit="bytes", low=65_536, why="events waiting to be written; beyond it publishes get 503"
    )
    commit_s: float = knob(
        10.0, unit="s", low=0.1, why="a publish not on disk by then is answered 503, outcome unknown"
    )
    tail_bytes: int = knob(
        1_048_576,
        unit="bytes",
        low=0,
        zero="all from disk",
        why="of the newest events, kept in memory for sessions that resume",
    )
    consumer_grace_s: float = knob(
        3_600.0,
        unit="s",
        low=0,
        zero="retention waits for no consumer",
        why="retention waits so long for consumers to read what lapses, and the log may grow by half meanwhile",
    )
    consumers: int = knob(
        100, unit="consumers", low=1, why="readers of the whole log that are waited for; then 409 until one is deleted"
    )
    readers: int = knob(2, unit="threads", low=1, high=64, why="reads of the disk at once; the others wait")
    page_events: int = knob(300, unit="events", low=1, high=1_000, why="in one page of a replay or a query")
    page_bytes: int = knob(
        524_288, unit="bytes", low=65_536, why="in one page of a replay or a query; one event always fits"
    )
    read_s: float = knob(10.0, unit="s", low=0.1, why="a page that is not there by then: the reply comes without it")
    keys: int = knob(100_000, unit="keys", low=0, zero="repeats are not noticed", why="idempotency keys remembered")
    key_age_s: float = knob(600.0, unit="s", low=1, why="how long each is remembered")
    key_chars: int = knob(128, unit="characters", low=16, why="longer idempotency keys are refused")
