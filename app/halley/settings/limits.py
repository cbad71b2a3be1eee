"""Settings that limit what clients can use."""

from dataclasses import dataclass, fields

from halley.settings.knob import knob


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits for what clients can make the server do or store."""

    head_bytes: int = knob(
        16_384, unit="bytes", low=512, why="of a request head; about the limit of h11 and nginx; then 431"
    )
    headers: int = knob(100, unit="headers", low=8, why="browsers send about 20; then 431")
    query_bytes: int = knob(8_192, unit="bytes", low=256, why="of a query; JSONP clients stay below 2,000; then 414")
    body_bytes: int = knob(
        262_144, unit="bytes", low=1_024, why="of a request body; parsed JSON is up to 31 times larger; then 413"
    )
    data_bytes: int = knob(
        65_536, unit="bytes", low=64, why="of one event's data; Centrifugo's limit for a frame; more is refused"
    )
    messages: int = knob(1_000, unit="messages", low=1, why="in one request; then 413")
    nesting: int = knob(
        64, unit="levels", low=4, high=250, why="of JSON; far above usual data, within what orjson can write; then 400"
    )
    nodes: int = knob(20_000, unit="JSON values", low=64, why="in one request; limits the memory for parsing; then 413")
    fragments: int = knob(
        4_096, unit="fragments", low=1, why="of one WebSocket message; libraries send 1 KiB or more in each; then 1009"
    )
    empty_frames_per_s: float = knob(
        1_000.0,
        unit="frames/s",
        low=1,
        why="without data, of one WebSocket; some libraries end each message with one; then 1008",
    )
    head_s: float = knob(
        10.0, unit="s", low=0.1, why="for a request head, with TLS including the handshake (slowloris); then closed"
    )
    body_s: float = knob(10.0, unit="s", low=0.1, why="for a request body to be complete (slowloris); then 408")
    write_s: float = knob(10.0, unit="s", low=0.1, why="a peer that reads nothing for this long is cut; NATS' value")
    read_bytes_per_s: float = knob(
        4_096.0,
        unit="bytes/s",
        low=1,
        why="of a response: a peer that takes longer for all of it, and write_s more, is cut; slow phones have 5,000",
    )
    linger_s: float = knob(
        1.0, unit="s", low=0, zero="cut immediately", why="time for the sender of a refused request to read the reason"
    )
    keep_alive_s: float = knob(
        75.0, unit="s", low=1, why="for an idle connection; longer than a hold, so that connections are reused"
    )
    sessions: int = knob(
        20_000,
        unit="sessions",
        low=1,
        why="one with a held poll takes 7 KB, one at the limit of its subscriptions 0.2 MB (Bayeux), 2.0 MB (WAMP) "
        "or 2.1 MB (NetworkTables), and what waits in its queue; then 503",
    )
    sessions_per_address: int = knob(
        200,
        unit="sessions",
        low=1,
        why="so that one machine cannot take all; an IPv6 /64 counts as one address; then 503",
    )
    exempt: tuple[str, ...] = knob(
        ["127.0.0.0/8", "::1"],
        why="networks whose addresses have no rate limit and no limit of sessions: programs on this machine",
    )
    publishes_per_s: float = knob(
        200.0,
        unit="publishes/s",
        low=0,
        zero="no limit",
        why="of a session, or of all requests of an address without one; as many more that are refused; then 403",
    )
    publish_burst: int = knob(
        400, unit="publishes", low=1, why="that a session or address can send at once after a silence"
    )
    subscriptions: int = knob(128, unit="subscriptions", low=1, why="of one session; Centrifugo's value; then 403")
    patterns: int = knob(
        16,
        unit="patterns",
        low=0,
        zero="no wildcards",
        why="of one session's subscriptions, those with wildcards; then 403",
    )
    subscription_bytes: int = knob(
        2_097_152,
        unit="bytes",
        low=4_096,
        why="of memory for one session's subscriptions: their names, and 1,000 bytes for each, or in NetworkTables "
        "400 for each and for each name; then 403, wamp.error.unavailable, or they are ignored",
    )
    topic_chars: int = knob(
        255, unit="characters", low=8, high=1_024, why="of a channel; Centrifugo's value; then 405 or 403"
    )
    topic_segments: int = knob(
        16, unit="segments", low=1, high=255, why="of a channel; each is a step in matching; then 405 or 403"
    )
    audience_chars: int = knob(
        4_096, unit="characters", low=64, high=32_768, why="of all names in the audience of a publish; then 400"
    )
    queue_events: int = knob(1_000, unit="events", low=1, why="queued for one session; Mercure's value; then it ends")
    queue_bytes: int = knob(
        1_048_576, unit="bytes", low=1_024, why="of events queued for one session; Centrifugo's value; then it ends"
    )
    conflated_topics: int = knob(
        10_000,
        unit="topics",
        low=0,
        zero="values are queued as other events",
        why="of which the newest NetworkTables value is kept when a session's queue is full; then the session ends",
    )
    conflated_bytes: int = knob(1_048_576, unit="bytes", low=1_024, why="of these values; as nt4.queue_bytes")
    token_chars: int = knob(
        8_192, unit="characters", low=128, why="of a token; JWTs with many groups have 4,000; longer ones are refused"
    )
    waiting_bytes: int = knob(
        268_435_456,
        unit="bytes",
        low=1_024,
        why="of all events that are queued, on their way or not acknowledged, each counted once; "
        "then 503 until it is 5 % lower",
    )
    waiting_share: float = knob(
        0.25,
        unit="of waiting_bytes",
        low=0,
        high=1,
        zero="no shares",
        why="for one authid, or address without one, once half is used and others are there: its largest queues end; "
        "at waiting_bytes it gets 503 and others do not, up to one share more",
    )
    memory_share: float = knob(
        0.6,
        unit="of the memory",
        low=0,
        high=1,
        zero="no limit",
        why="of cgroup or machine, whichever has less; RabbitMQ's value; then 503",
    )
    channels: int = knob(
        100_000, unit="channels", low=1, why="known at the same time; idle ones are forgotten after three seconds"
    )


LIMITS = (
    *(limit.name for limit in fields(Limits) if limit.name not in ("exempt", "publish_burst")),
    *("callback_chars", "holds_per_browser", "max_interval_s", "policy_s"),  # of Bayeux
    *("hello_s", "message_bytes", "pings_per_s", "pong_s", "kill_s", "polls"),  # of WAMP, and of Bayeux over WebSocket
    *("waiting_calls", "wildcard_forms", "testaments", "retained_topics", "retained_bytes"),
    *("name_bytes", "topics", "publishers", "properties_bytes", "values_per_s"),  # of NetworkTables
    *("last_bytes", "elements", "control_bytes"),
    *("streams", "streams_per_address", "last_pages"),  # of events
    *("free_bytes", "inbox_bytes", "commit_s", "consumers", "read_s", "keys", "key_chars"),  # of the history
    "anonymous_share",
    "relayed",  # of the cluster
)
"""The settings for which a request can be refused, or something forgotten; under these names /metrics counts that."""
