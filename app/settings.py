"""Every number and switch of Halley, each with its unit, what zero means, and why it has this value.

Nothing here reads or changes anything: `configuration/` fills these classes from defaults, a TOML file, the
environment and flags (in that order), and the rooms take the part that is theirs. Standard library only, so that every
room may import the types.
"""

import ipaddress
from dataclasses import MISSING, dataclass, field, fields
from datetime import datetime
from typing import Any, Literal

Verb = Literal["publish", "subscribe", "export", "erase"]
"""All that access rules speak of: to publish and to hear, to read the whole log and to purge it."""


def is_loopback(host: str) -> bool:
    """Whether a host name or address can only mean this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def knob(
    default: Any,
    *,
    why: str,
    unit: str = "",
    zero: str = "",
    minus_one: str = "",
    low: float | None = None,
    high: float | None = None,
) -> Any:
    """One setting: its `default`, the reason for it, its unit, and the least and the greatest allowed value.

    `MISSING` as the default means that it must be given, as some must in each entry of a list of tables. `zero` and
    `minus_one` say what these values mean where that is something special.
    """
    documented = {"why": why, "unit": unit, "zero": zero, "minus_one": minus_one, "low": low, "high": high}
    if default is MISSING:
        return field(metadata=documented)
    if isinstance(default, list | tuple):
        return field(default=tuple(default), metadata=documented)
    return field(default=default, metadata=documented)


@dataclass(frozen=True, slots=True)
class Bayeux:
    """How the Bayeux server behaves towards its clients."""

    paths: tuple[str, ...] = knob(["/bayeux", "/cometd"], why="Faye's and CometD's usual mount points")
    hold_s: float = knob(
        25.0, unit="s", zero="connects are never held", low=0, why="below the 30 s after which proxies cut a request"
    )
    max_interval_s: float = knob(
        10.0, unit="s", low=0.1, why="a client that sends no connect for so long has left; CometD's default"
    )
    interval_s: float = knob(
        0.0, unit="s", low=0, zero="clients reconnect at once", why="long-polling is only instant without a pause"
    )
    max_client_interval_s: float = knob(
        60.0, unit="s", low=0, zero="client intervals are ignored", why="how long a client may announce to sleep"
    )
    holds_per_browser: int = knob(
        1,
        unit="connects",
        low=-1,
        zero="no connect is held",
        minus_one="no limit",
        why="browsers open six connections to a host; tabs that all poll would starve the page",
    )
    browser_interval_s: float = knob(
        2.0,
        unit="s",
        low=0,
        zero="further tabs are refused",
        why="how often a tab polls while another tab of the same browser holds the connect",
    )
    broadcast_to_publisher: bool = knob(default=True, why="Bayeux sends subscribers their own events too")
    connect_delivery_only: bool = knob(
        default=False, why="events also ride on other replies, which saves a wake-up; true keeps strict order"
    )
    handshake_delivery: bool = knob(
        default=False, why="few clients understand events beside a handshake reply (x-messages)"
    )
    anonymous_publish: Literal["auto", "on", "off"] = knob(
        "auto",
        why="publishing without a session (curl): auto means on loopback, and with access rules where one allows it",
    )
    callback_polling: bool = knob(default=True, why="JSONP, for pages that can load nothing but scripts")
    callback_chars: int = knob(64, unit="characters", low=1, why="a JSONP callback longer than this is an attack")
    superseded_status: int = knob(
        200,
        unit="HTTP status",
        low=200,
        high=599,
        why="a held connect that a newer one replaces gets its own reply; from 400 on, as CometD does, a bare status",
    )
    timestamp: bool = knob(default=False, why="the timestamp extension costs an encoding for each receiver")
    replay_in_data: bool = knob(
        default=True,
        why="Salesforce's clients read an event's position in its data; only who asks for replay gets that",
    )
    policy_s: float = knob(
        10.0, unit="s", low=0.01, why="a policy or service that has not answered by then counts as no"
    )


@dataclass(frozen=True, slots=True)
class Cookie:
    """The cookie that ties a session to one browser."""

    name: str = knob("BAYEUX_BROWSER", why="CometD's name, which load balancers are configured for")
    path: str = knob("/", why="one browser is one browser on every path")
    domain: str = knob("", why="empty: the host that set it, and no other")
    max_age_s: int = knob(
        -1, unit="s", low=-1, zero="deleted at once", minus_one="until the browser closes", why="CometD's"
    )
    http_only: bool = knob(default=True, why="scripts have no use for it; stolen by them it would open the session")
    same_site: Literal["Lax", "Strict", "None", ""] = knob(
        "Lax", why="other sites' requests do not carry it; None (with https) serves cross-site pages that need it"
    )
    secure: Literal["auto", "on", "off"] = knob("auto", why="auto: exactly when the request came over https")
    partitioned: bool = knob(default=False, why="cross-site cookies in browsers that block third-party ones need it")


@dataclass(frozen=True, slots=True)
class Cors:
    """Which other sites' pages may speak to this server."""

    origins: tuple[str, ...] = knob(
        [], why="like https://app.example.com; the own origin always may, and on loopback every loopback origin"
    )
    max_age_s: int = knob(7200, unit="s", low=0, zero="asked every time", why="Chromium's own upper bound")


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what clients can make the server do or keep."""

    head_bytes: int = knob(16_384, unit="bytes", low=512, why="h11's and nginx' order of size; then 431")
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
    body_s: float = knob(10.0, unit="s", low=0.1, why="likewise a body; then 408")
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
    queue_events: int = knob(1_000, unit="events", low=1, why="waiting for one session (Mercure's); then it ends")
    queue_bytes: int = knob(1_048_576, unit="bytes", low=1_024, why="likewise (Centrifugo's)")
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
    *("free_bytes", "inbox_bytes", "commit_s", "read_s", "key_chars"),  # of the history
)
"""The settings that say no to somebody; under these names /metrics counts how often each has."""


@dataclass(frozen=True, slots=True)
class Access:
    """One rule, a table [[access]]: the first that speaks of role, verb and topic decides. Once there is one, what no
    rule allows is denied.
    """  # noqa: D205 - two sentences that belong together

    role: str = knob(MISSING, why='whom it speaks of: a token\'s role, "anonymous", or "*" for everyone')
    verb: Literal["*", Verb] = knob(MISSING, why='what of: one verb, or "*" for all')
    pattern: str = knob(MISSING, why="where: a channel, or a pattern such as /chat/*, /chat/** or /**")
    allow: bool = knob(default=True, why="false makes an exception from what a later rule allows")


@dataclass(frozen=True, slots=True)
class Token:
    """One static token, a table [[tokens]], as `halley token` prints it."""

    id: str = knob(MISSING, why="whose it is: the authid of sessions that show it")
    role: str = knob(MISSING, why="what access rules know its bearer by")
    hash: str = knob(MISSING, why="sha256: and 64 digits; the token itself is kept by its owner only")
    expires: datetime | None = knob(  # noqa: RUF009 - a field, as everywhere
        None, why="when it ends; without it the token is good until it is taken out"
    )


@dataclass(frozen=True, slots=True)
class Jwt:
    """JSON Web Tokens (RFC 7519) that others sign; accepted as soon as one of the two files is named."""

    issuer: str = knob("", why="the only `iss` that is believed; needed")
    audience: str = knob("", why="what `aud` must name, lest tokens for other services count here; needed")
    jwks: str = knob("", why="file of public keys (JWKS) for RS256 and ES256; read again when it changes")
    secret: str = knob("", why="file with the secret for HS256, at least 32 bytes; read again when it changes")
    algorithms: tuple[str, ...] = knob(
        ["RS256", "ES256", "HS256"], why="the ones that are believed at all; each key serves its own only"
    )
    role_claim: str = knob("role", why="the claim that names the bearer's role")
    role: str = knob("", why="the role where that claim is absent; empty: such a token is refused")
    leeway_s: float = knob(10.0, unit="s", low=0, high=300, zero="clocks must agree", why="clocks differ a little")
    keys_check_s: float = knob(
        1.0, unit="s", low=0.1, why="how often files are looked at, and at most read for a key that is not known"
    )


@dataclass(frozen=True, slots=True)
class Record:
    """One rule, a table [[record]]: the first whose pattern covers a topic says whether and how long its events are
    kept. Behind those that are written stand two of the house: the server's own topics for 72 h, not durable, and
    everything else for 72 h, durable. `/service/**` is recorded only by a rule that names it.
    """  # noqa: D205 - as above

    pattern: str = knob(MISSING, why="where: a channel, or a pattern such as /chat/*, /chat/** or /**")
    age: str = knob("72h", why='how long events can be replayed, such as 90s, 30m, 72h, 7d; "0": not recorded at all')
    durable: bool = knob(default=True, why="on disk before it is delivered or acknowledged; false: written afterwards")


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
        why="of the youngest events, kept in memory for who resumes",
    )
    readers: int = knob(2, unit="threads", low=1, high=64, why="reads of the disk at once; the others wait")
    page_events: int = knob(300, unit="events", low=1, high=1_000, why="in one page of a replay or a query")
    page_bytes: int = knob(524_288, unit="bytes", low=65_536, why="likewise; one event always fits")
    read_s: float = knob(10.0, unit="s", low=0.1, why="a page that is not there by then: the reply comes without it")
    keys: int = knob(100_000, unit="keys", low=0, zero="repeats are not noticed", why="idempotency keys remembered")
    key_age_s: float = knob(600.0, unit="s", low=1, why="how long each is remembered")
    key_chars: int = knob(128, unit="characters", low=16, why="longer idempotency keys are refused")


@dataclass(frozen=True, slots=True)
class Tls:
    """https instead of http, for clients; the operations listener stays plain."""

    cert: str = knob("", why="PEM file of the certificate and those that vouch for it; empty: http")
    key: str = knob("", why="PEM file of the private key; empty: it stands in the certificate's file")
    min_version: Literal["1.2", "1.3"] = knob(
        "1.2", why="older ones are forbidden (RFC 8996); 1.3 shuts old clients out"
    )


@dataclass(frozen=True, slots=True)
class Operations:
    """The listener for health checks and metrics, apart from the public one."""

    host: str = knob("127.0.0.1", why="metrics are nobody else's business unless told so")
    port: int = knob(8081, low=0, high=65_535, zero="a free one is picked and printed", why="beside the public port")
    enabled: bool = knob(default=True, why="off for programs that bring their own")


@dataclass(frozen=True, slots=True)
class Drain:
    """How the server leaves after SIGTERM."""

    not_ready_s: float = knob(
        0.0, unit="s", low=0, zero="drain at once", why="time for load balancers to see /health/ready fall"
    )
    spread_s: float = knob(5.0, unit="s", low=0, zero="all at once", why="reconnects arrive elsewhere spread out")
    clients_per_s: float = knob(
        500.0, unit="clients/s", low=1, why="few clients are sent away in less time than the whole spread"
    )
    grace_s: float = knob(
        15.0,
        unit="s",
        low=0,
        zero="requests under way are cut",
        why="for requests under way; below Kubernetes' 30 s together with the rest",
    )


@dataclass(frozen=True, slots=True)
class Log:
    """What is written to standard error."""

    level: Literal["debug", "info", "warning", "error"] = knob("info", why="one line for each session's begin and end")
    format: Literal["auto", "json", "console"] = knob("auto", why="auto: console on a terminal, JSON lines elsewhere")
    value_chars: int = knob(200, unit="characters", low=16, why="longer values from outside are cut")


@dataclass(frozen=True, slots=True)
class Settings:
    """All of it; the tables of the settings file are the fields of the same name."""

    host: str = knob("127.0.0.1", why="only this machine can connect until told otherwise")
    port: int = knob(
        8080, low=0, high=65_535, zero="a free one is picked and printed", why="the usual port of local servers"
    )
    hosts: tuple[str, ...] = knob(
        [], why="names that the Host header may carry; empty: any, but on loopback only loopback names (DNS rebinding)"
    )
    open: bool = knob(default=False, why="a listener that others can reach needs access rules or this word")
    proxies: tuple[str, ...] = knob(
        [], why="addresses or networks whose X-Forwarded-For and -Proto are believed; from others these are forgeries"
    )
    data_dir: str = knob("halley-data", why="the folder of what outlives the server; relative to where it was started")
    load: tuple[str, ...] = knob([], why="MODULE:FUNCTION to call with the embedding API before serving")
    short_way: bool = knob(default=True, why="hot requests without ASGI cost a quarter; off serves the same, slower")
    sweep_s: float = knob(0.25, unit="s", low=0.01, why="how precisely deadlines are kept; costs a heap peek")
    bayeux: Bayeux = field(default_factory=Bayeux)
    cookie: Cookie = field(default_factory=Cookie)
    cors: Cors = field(default_factory=Cors)
    limits: Limits = field(default_factory=Limits)
    access: tuple[Access, ...] = ()
    tokens: tuple[Token, ...] = ()
    record: tuple[Record, ...] = ()
    history: History = field(default_factory=History)
    jwt: Jwt = field(default_factory=Jwt)
    tls: Tls = field(default_factory=Tls)
    operations: Operations = field(default_factory=Operations)
    drain: Drain = field(default_factory=Drain)
    log: Log = field(default_factory=Log)
