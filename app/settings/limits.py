"""Settings that bound what clients can use."""

from dataclasses import dataclass, fields

from app.settings.knob import knob


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what clients can make the server do or keep."""

    head_bytes: int = knob(16_384, unit="bytes", low=512, why="h11's and nginx's order of size; then 431")
    headers: int = knob(100, unit="headers", low=8, why="browsers send about 20; then 431")
    query_bytes: int = knob(8_192, unit="bytes", low=256, why="JSONP clients stay below 2,000; then 414")
    body_bytes: int = knob(262_144, unit="bytes", low=1_024, why="parsed JSON is up to 31 times larger; then 413")
    data_bytes: int = knob(65_536, unit="bytes", low=64, why="one event's data; Centrifugo's frame; refused beyond")
    messages: int = knob(1_000, unit="messages", low=1, why="in one request; then 413")
    nesting: int = knob(64, unit="levels", low=4, why="far above honest data, far below what crashes parsers; then 400")
    nodes: int = knob(20_000, unit="JSON values", low=64, why="in one request; guards memory; then 413")
    head_s: float = knob(
        10.0,
        unit="s",
        low=0.1,
        why="a request head, with TLS its handshake too, not there by then is slowloris; closed",
    )
    body_s: float = knob(
        10.0, unit="s", low=0.1, why="a request body that is not complete by then is slowloris; then 408"
    )
    write_s: float = knob(10.0, unit="s", low=0.1, why="a peer that reads nothing for so long is cut (NATS' number)")
    linger_s: float = knob(1.0, unit="s", low=0, zero="cut at once", why="a refused sender may still read why")
    keep_alive_s: float = knob(75.0, unit="s", low=1, why="longer than a hold, so that idle connections are reused")
    sessions: int = knob(20_000, unit="sessions", low=1, why="about 1 GiB when all are busy; then 503")
    sessions_per_address: int = knob(
        200, unit="sessions", low=1, why="one machine cannot take all; an IPv6 /64 counts as one; then 503"
    )
    exempt: tuple[str, ...] = knob(
        ["127.0.0.0/8", "::1"], why="networks whose addresses have no limits of their own: programs of this machine"
    )
    publishes_per_s: float = knob(
        200.0, unit="publishes/s", low=0, zero="no limit", why="of a session, or an address without one; then 403"
    )
    publish_burst: int = knob(400, unit="publishes", low=1, why="at once, by one that was silent before")
    subscriptions: int = knob(128, unit="subscriptions", low=1, why="of one session; Centrifugo's; then 403")
    patterns: int = knob(16, unit="patterns", low=0, zero="no wildcards", why="wildcards among them; then 403")
    topic_chars: int = knob(255, unit="characters", low=8, why="Centrifugo's; then 405 or 403")
    topic_segments: int = knob(16, unit="segments", low=1, why="matching walks them; then 405 or 403")
    audience_chars: int = knob(4_096, unit="characters", low=64, why="of all names in one publish's audience; then 400")
    queue_events: int = knob(1_000, unit="events", low=1, why="waiting for one session (Mercure's); then it ends")
    queue_bytes: int = knob(
        1_048_576, unit="bytes", low=1_024, why="waiting for one session (Centrifugo's); then it ends"
    )
    conflated_topics: int = knob(
        10_000,
        unit="topics",
        low=0,
        zero="values are as other events",
        why="whose newest NetworkTables value waits apart from a full queue of one session; then it ends",
    )
    conflated_bytes: int = knob(1_048_576, unit="bytes", low=1_024, why="of these values; NetworkTables' own bound")
    token_chars: int = knob(8_192, unit="characters", low=128, why="JWTs with many groups reach 4,000; then refused")
    waiting_bytes: int = knob(
        268_435_456, unit="bytes", low=1_024, why="events that wait for anyone, each once; then 503 until 5 % are gone"
    )
    memory_share: float = knob(
        0.6, unit="of the memory", low=0, high=1, zero="no limit", why="of cgroup or machine (RabbitMQ's); then 503"
    )
    channels: int = knob(100_000, unit="channels", low=1, why="remembered at once; the idle ones go after three sweeps")


LIMITS = (
    *(limit.name for limit in fields(Limits) if limit.name not in ("exempt", "publish_burst")),
    *("callback_chars", "holds_per_browser", "max_interval_s", "policy_s"),  # of Bayeux
    *("hello_s", "message_bytes", "pings_per_s", "pong_s", "kill_s", "polls"),  # of WAMP
    *("waiting_calls", "wildcard_forms", "testaments"),
    *(
        "name_bytes",
        "topics",
        "publishers",
        "properties_bytes",
        "values_per_s",
        "last_bytes",
        "elements",
    ),  # of NetworkTables
    "control_bytes",
    *("free_bytes", "inbox_bytes", "commit_s", "consumers", "read_s", "key_chars"),  # of the history
)
"""The settings for which a request can be refused; under these names /metrics counts the refusals."""
