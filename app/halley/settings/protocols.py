"""Settings of the protocols: Bayeux and what browsers need, WAMP with its realms and users, and NetworkTables."""

from dataclasses import MISSING, dataclass
from typing import Literal

from halley.settings.knob import knob

FORWARDED_FIELDS = 16
"""The most fields of `ext` that are forwarded; each has up to 1 KiB, and a node of a cluster takes 64 KiB of them."""

KEPT_FIELDS = ("ack", "after", "audience", "authentication", "idempotency_key", "latest", "lazy", "nt4", "position")
"""What in `ext` is for the server alone, or its own in an event; so is all that begins with `replay`."""


@dataclass(frozen=True, slots=True)
class Bayeux:
    """How the Bayeux server behaves towards its clients."""

    paths: tuple[str, ...] = knob(["/bayeux", "/cometd"], why="the paths that clients of Faye and CometD usually use")
    hold_s: float = knob(
        25.0,
        unit="s",
        zero="connects are never held",
        low=0,
        why="how long a poll is held; below the 30 s after which proxies end a request",
    )
    max_interval_s: float = knob(
        10.0, unit="s", low=0.1, why="a session without a connect for this long ends; CometD's default"
    )
    interval_s: float = knob(
        0.0,
        unit="s",
        low=0,
        zero="clients reconnect immediately",
        why="the pause between two polls; it would delay events",
    )
    max_client_interval_s: float = knob(
        60.0,
        unit="s",
        low=0,
        zero="client intervals are ignored",
        why="the longest interval between polls that a client can announce",
    )
    answer_bytes: int = knob(
        524_288,
        unit="bytes",
        low=65_536,
        why="of one answer, as written; what waits beyond it comes with the next; CometD's Java client reads 1 MiB",
    )
    refused_interval_s: float = knob(
        2.0,
        unit="s",
        low=0,
        zero="clients try again immediately",
        why="the pause after a connect that is refused while its session lives; Faye's client repeats it as it was",
    )
    holds_per_browser: int = knob(
        1,
        unit="connects",
        low=-1,
        zero="no connect is held",
        minus_one="no limit",
        why="browsers open six connections to a host; if all tabs held polls, none would be left for pages",
    )
    browser_interval_s: float = knob(
        2.0,
        unit="s",
        low=0,
        zero="further tabs are refused",
        why="how often a tab polls while another tab of the same browser has the held poll",
    )
    broadcast_to_publisher: bool = knob(
        default=True, why="subscribers receive their own events too, as Bayeux specifies"
    )
    connect_delivery_only: bool = knob(
        default=False,
        why="false: other replies than that to a connect carry events too, which is faster; true: strict order",
    )
    handshake_delivery: bool = knob(
        default=False, why="events in a handshake reply (x-messages), which few clients understand"
    )
    anonymous_publish: Literal["auto", "on", "off"] = knob(
        "auto", why="publishing without a session (curl); auto: on loopback, and with access rules where one allows it"
    )
    callback_polling: bool = knob(default=True, why="JSONP, for pages that can load only scripts")
    callback_polling_without_referer: bool = knob(
        default=False,
        why="JSONP for pages that send no Referer, such as a file on the disk; any page can omit it, so all are served",
    )
    callback_chars: int = knob(
        64, unit="characters", low=1, why="of a JSONP callback's name; a longer one is refused as an attack"
    )
    superseded_status: int = knob(
        200,
        unit="HTTP status",
        low=200,
        high=599,
        why="of a held connect that a newer one replaces; 200: with a reply; 400 to 599: without, as CometD",
    )
    forwarded_ext: tuple[str, ...] = knob(
        ["binary"],
        why="the fields of a publish's ext that its subscribers get, and that are recorded; binary is CometD's",
    )
    bytes: Literal["text", "z85"] = knob(
        "text",
        why="bytes of other protocols in data; text: a zero character and base64, as in WAMP; z85: as CometD's clients",
    )
    lazy_s: float = knob(
        5.0,
        unit="s",
        low=0,
        zero="ext.lazy of a publish has no effect",
        why="how long lazy events may wait for others, to need fewer replies; CometD's default",
    )
    activity: Literal["off", "client", "client_server"] = knob(
        "off",
        why="ends sessions whose clients only connect: client: that send nothing else; client_server: nor get events",
    )
    activity_s: float = knob(600.0, unit="s", low=0.1, why="after which such a session's next connect ends it")
    timestamp: bool = knob(default=False, why="the timestamp extension; it costs an encoding for each receiver")
    hello_s: float = knob(
        10.0, unit="s", low=0.1, why="a WebSocket that has no session by then, or no more for so long, is closed"
    )
    ping_s: float = knob(
        20.0, unit="s", low=0.1, why="a WebSocket that is silent for this long is pinged; as in the websockets library"
    )
    pong_s: float = knob(20.0, unit="s", low=0.1, why="a WebSocket that does not reply to a ping by then is closed")
    pings_per_s: float = knob(20.0, unit="pings/s", low=1, why="of one client; then it is closed with 1008")
    kill_s: float = knob(
        1.0, unit="s", low=0, zero="cut immediately", why="time for a client that is disconnected to read the reason"
    )
    turned_away_per_s: float = knob(
        50.0,
        unit="WebSockets/s",
        low=0,
        zero="answered 503",
        why="opened and closed at once while the server drains or is full: 503 is final for CometD's Jetty client",
    )
    message_bytes: int = knob(
        262_144, unit="bytes", low=1_024, why="of one WebSocket message; then the connection is closed with 1009"
    )
    replay_in_data: bool = knob(
        default=True,
        why="Salesforce's clients read an event's position in its data; only sessions that use replay get it",
    )
    policy_s: float = knob(
        10.0, unit="s", low=0.01, why="a policy that has not returned by then denies; a service then sends no reply"
    )


@dataclass(frozen=True, slots=True)
class Lazy:
    """One rule of lazy events, a table [[lazy]]. The first rule whose pattern matches an event's channel decides."""

    pattern: str = knob(MISSING, why="a channel, without those below it, or a pattern such as /chat/*, /chat/** or /**")
    lazy_s: float = knob(
        -1.0,
        unit="s",
        low=-1,
        zero="not lazy",
        minus_one="bayeux.lazy_s",
        why="how long events may wait for others; a poll's end takes them along too",
    )


@dataclass(frozen=True, slots=True)
class Cookie:
    """The cookie that ties a session to one browser."""

    name: str = knob("BAYEUX_BROWSER", why="CometD's name, for which load balancers are configured")
    path: str = knob("/", why="all paths, since they share the browser's sessions")
    domain: str = knob("", why="empty: only the host that set it")
    max_age_s: int = knob(
        -1, unit="s", low=-1, zero="deleted immediately", minus_one="until the browser closes", why="CometD's default"
    )
    http_only: bool = knob(default=True, why="scripts do not need it; one that steals it could take over the session")
    same_site: Literal["Lax", "Strict", "None", ""] = knob(
        "Lax", why="requests of other sites do not carry it; None (with https): for pages of other sites that need it"
    )
    secure: Literal["auto", "on", "off"] = knob("auto", why="auto: if the request used https")
    partitioned: bool = knob(default=False, why="for pages of other sites, in browsers that block third-party cookies")


@dataclass(frozen=True, slots=True)
class Cors:
    """The other sites whose pages are allowed to use this server."""

    origins: tuple[str, ...] = knob(
        [],
        why="such as https://app.example.com; always allowed: the server's own, and on loopback all loopback origins",
    )
    max_age_s: int = knob(
        7200, unit="s", low=0, zero="not cached", why="how long browsers cache a preflight; Chromium's maximum"
    )


KEY_BYTES = 32
"""The size of a user's key, before base64; the challenge contains it, and clients derive a key of this size."""


@dataclass(frozen=True, slots=True)
class Realm:
    """One realm of WAMP, a table [[realm]].

    All protocols share the topics of the first one; each further one has its own topics and history. Without any table
    there is `realm1`.
    """

    name: str = knob(MISSING, why="the URI that clients name in HELLO")
    strict_uris: bool = knob(
        default=False, why="true: URIs can have components of [0-9a-z_] only, as the specification advises"
    )
    disclose: Literal["allow", "always", "never"] = knob(
        "allow", why="whether events name their publisher; allow: if the publisher requests it"
    )


@dataclass(frozen=True, slots=True)
class User:
    """One user, who authenticates with WAMP-CRA, a table [[user]], as `halley user` prints it."""

    id: str = knob(MISSING, why="the authid")
    role: str = knob(MISSING, why="the role by which access rules grant rights to the user")
    key: str = knob(MISSING, why="base64 of PBKDF2-SHA256 of the secret; only the user has the secret itself")
    salt: str = knob(MISSING, why="sent to clients that authenticate as this user")
    iterations: int = knob(
        100_000, unit="rounds", low=1_000, why="of PBKDF2; more make it costlier to guess the secret from a stolen key"
    )


@dataclass(frozen=True, slots=True)
class Wamp:
    """How the WAMP router behaves towards its clients."""

    paths: tuple[str, ...] = knob(["/wamp", "/ws"], why="the paths for WebSockets and long-polling")
    anonymous: bool = knob(
        default=True, why="allows sessions without authentication; access rules decide what they can do"
    )
    strict_request_ids: bool = knob(
        default=False,
        why="true: request ids other than 1, 2, 3 ... end the session, as the specification requires since 2021",
    )
    hello_s: float = knob(10.0, unit="s", low=0.1, why="a connection that has no session by then is aborted")
    ping_s: float = knob(
        20.0, unit="s", low=0.1, why="a WebSocket that is silent for this long is pinged; as in the websockets library"
    )
    pong_s: float = knob(20.0, unit="s", low=0.1, why="a WebSocket that does not reply to a ping by then is closed")
    pings_per_s: float = knob(20.0, unit="pings/s", low=1, why="of one client; then it is closed with 1008")
    message_bytes: int = knob(
        262_144, unit="bytes", low=1_024, why="of one message; then the connection is closed with 1009"
    )
    batch_messages: int = knob(1_000, unit="messages", low=1, why="in one batch; more are a protocol violation")
    poll_s: float = knob(10.0, unit="s", low=0.1, why="how long an idle receive is held; below the 12 s of autobahn-js")
    poll_gone_s: float = knob(
        30.0, unit="s", low=0.1, why="a long-polling session without a receive for this long ends"
    )
    polls: int = knob(
        1_000, unit="connections", low=1, why="with long-polling, each of which can have a session; then 503"
    )
    kill_s: float = knob(
        1.0, unit="s", low=0, zero="cut immediately", why="time for a client that is disconnected to read the reason"
    )
    subscriptions: int = knob(1_000, unit="subscriptions", low=1, why="of one session; then wamp.error.unavailable")
    patterns: int = knob(
        100,
        unit="patterns",
        low=0,
        zero="no patterns",
        why="of one session's subscriptions, those to prefixes and wildcards",
    )
    wildcard_forms: int = knob(
        256,
        unit="forms",
        low=1,
        why="of all wildcards, by the places of their empty components; each costs a look-up per new topic",
    )
    publishes_per_s: float = knob(
        20_000.0, unit="publishes/s", low=0, zero="no limit", why="of one session; then wamp.error.unavailable"
    )
    publish_burst: int = knob(40_000, unit="publishes", low=1, why="that a session can send at once after a silence")
    waiting_calls: int = knob(16, unit="requests", low=1, why="of one session that wait for a policy or for the disk")
    retained_topics: int = knob(
        10_000,
        unit="topics",
        low=0,
        zero="nothing is retained",
        why="that can have a retained event; beyond it those of the anonymous go first",
    )
    retained_bytes: int = knob(
        67_108_864, unit="bytes", low=1_024, why="of all retained events; beyond it those of the anonymous go first"
    )
    retained_events: int = knob(
        1_000, unit="events", low=1, why="sent to one new subscription: the newest that its pattern matches"
    )
    testaments: int = knob(16, unit="testaments", low=0, zero="none", why="of one session")


@dataclass(frozen=True, slots=True)
class Events:
    """Streams of events over HTTP: server-sent events, and lines of JSON."""

    streams: int = knob(10_000, unit="streams", low=1, why="at the same time; an idle one takes about 5 KB; then 503")
    streams_per_address: int = knob(
        100,
        unit="streams",
        low=1,
        why="so that one machine cannot take all; an IPv6 /64 counts as one address; then 503",
    )
    alive_s: float = knob(
        15.0, unit="s", low=0.1, why="the longest silence of a stream; proxies close it after 60 s of silence"
    )
    retry_s: float = knob(1.0, unit="s", low=0, zero="immediately", why="when a browser whose stream ended comes back")
    last_pages: int = knob(
        20,
        unit="pages",
        low=1,
        why="of some 20,000 rows, that are read to find the last events of a stream; then it begins there, with a gap",
    )
    query_token: bool = knob(
        default=False,
        why="takes a token as ?access_token=, since EventSource sends no headers; queries are in many logs",
    )


@dataclass(frozen=True, slots=True)
class Nt4:
    """How the NetworkTables server behaves towards its clients."""

    enabled: bool = knob(default=False, why="off by default, since robots and dashboards use no passwords")
    host: str = knob("127.0.0.1", why="only this machine can connect unless another host is set")
    port: int = knob(
        5810,
        low=0,
        high=65_535,
        zero="a free one is picked and printed",
        why="the port that all clients use, without TLS; the main port serves /nt/NAME too, with TLS as wss",
    )
    origins: tuple[str, ...] = knob(
        ["file://"], why="origins that can connect in addition to cors.origins; file:// is that of AdvantageScope"
    )
    bridge_out: tuple[str, ...] = knob(
        ["/"],
        why="topics whose names begin like this are also topics of the other protocols, and recorded; empty: none",
    )
    bridge_in: tuple[str, ...] = knob(
        [], why="a publish of another protocol to a name that begins like this creates a topic in NetworkTables"
    )
    record_every_s: float = knob(
        0.1,
        unit="s",
        low=0,
        zero="every value",
        why="at most one value of a topic is recorded in this time, the newest",
    )
    save_every_s: float = knob(
        1.0, unit="s", low=0.05, why="how often changed persistent topics are saved; ntcore's value"
    )
    visitor_topic_s: float = knob(
        600.0,
        unit="s",
        low=1,
        why="a topic that only requests without a session publish is deleted after this long without a value",
    )
    ping_s: float = knob(
        0.2, unit="s", low=0.05, why="how often clients of 4.1 are pinged, as the specification requires"
    )
    pong_s: float = knob(
        1.0, unit="s", low=0.1, why="a client of 4.1 that has sent nothing for this long is disconnected"
    )
    pings_per_s: float = knob(50.0, unit="pings/s", low=1, why="of one client; then it is disconnected with 1008")
    kill_s: float = knob(
        1.0, unit="s", low=0, zero="cut immediately", why="time for a client that is disconnected to read the reason"
    )
    message_bytes: int = knob(
        2_097_152,
        unit="bytes",
        low=1_024,
        why="of one message; ntcore's value; a client that sends more is disconnected with 1009",
    )
    nodes: int = knob(100_000, unit="JSON values", low=64, why="in one text message; one with more is ignored")
    elements: int = knob(
        262_144,
        unit="elements",
        low=65_535,
        why="of an array: the number of doubles that fits into a message; a longer one is ignored",
    )
    name_bytes: int = knob(1_024, unit="bytes", low=8, why="of a name or type; a longer one is ignored")
    properties_bytes: int = knob(
        8_192, unit="bytes", low=64, why="of a topic's properties; a change that would exceed this is ignored"
    )
    topics: int = knob(10_000, unit="topics", low=1, why="that exist at the same time; further ones are not announced")
    publishers: int = knob(10_000, unit="publishers", low=1, why="of one client; further ones are ignored")
    subscriptions: int = knob(
        10_000, unit="names", low=1, why="in all subscriptions of one client; further ones are ignored"
    )
    values_per_s: float = knob(
        200_000.0,
        unit="values/s",
        low=0,
        zero="no limit",
        why="of one client; beyond it values are dropped and counted",
    )
    value_burst: int = knob(400_000, unit="values", low=1, why="that one client can send at once after a silence")
    max_period_s: float = knob(
        60.0, unit="s", low=0.1, why="the longest `periodic` of a subscription; longer ones are shortened to it"
    )
    last_bytes: int = knob(
        67_108_864,
        unit="bytes",
        low=1_024,
        why="of the last values of all topics; beyond it a topic's last value is not kept",
    )
    persistent_bytes: int = knob(
        67_108_864,
        unit="bytes",
        low=1_024,
        why="of the file of persistent topics; a larger one is neither written nor read",
    )
    queue_bytes: int = knob(
        1_048_576,
        unit="bytes",
        low=1_024,
        why="of values queued for one client; beyond it only the newest of each topic is kept",
    )
    control_bytes: int = knob(
        8_388_608, unit="bytes", low=65_536, why="of output that a client has not read; then it is disconnected"
    )
