"""The settings of Halley: every number and switch with its unit, what zero means, and the reason for its default.

This room only declares them: `halley/configuration/` fills these classes from the defaults, a TOML file, the
environment and flags (in that order), and each room takes the part that it needs. It imports the standard library only,
so that every room can import its types.
"""

from dataclasses import dataclass, field

from halley.settings.access import Access, Jwt, Token, Verb
from halley.settings.cluster import Cluster
from halley.settings.history import History, Lift, Pipeline, Record
from halley.settings.knob import knob
from halley.settings.limits import LIMITS, Limits
from halley.settings.protocols import Bayeux, Cookie, Cors, Events, Lazy, Nt4, Realm, User, Wamp
from halley.settings.server import Drain, Log, Operations, Ticks, Tls, is_loopback

__all__ = [
    "LIMITS",
    "Access",
    "Bayeux",
    "Cluster",
    "Cookie",
    "Cors",
    "Drain",
    "Events",
    "History",
    "Jwt",
    "Lazy",
    "Lift",
    "Limits",
    "Log",
    "Nt4",
    "Operations",
    "Pipeline",
    "Realm",
    "Record",
    "Settings",
    "Ticks",
    "Tls",
    "Token",
    "User",
    "Verb",
    "Wamp",
    "is_loopback",
]


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings; the tables of the settings file are the fields of the same name."""

    host: str = knob("127.0.0.1", why="only this machine can connect unless another host is set")
    port: int = knob(
        8080, low=0, high=65_535, zero="a free one is picked and printed", why="the usual port of local servers"
    )
    hosts: tuple[str, ...] = knob(
        [], why="allowed values of the Host header; empty: any, but on loopback only loopback names (DNS rebinding)"
    )
    open: bool = knob(
        default=False,
        why="without access rules, a listener that other machines can reach starts only with this setting",
    )
    proxies: tuple[str, ...] = knob(
        [], why="addresses or networks whose X-Forwarded-For and -Proto are trusted; from others they are ignored"
    )
    data_dir: str = knob(
        "halley-data", why="the folder for data that outlives the server; relative to the folder where it is started"
    )
    load: tuple[str, ...] = knob([], why="MODULE:FUNCTION to call with the embedding API before serving")
    short_way: bool = knob(default=True, why="does not parse a head again that came before; off: the same, but slower")
    gzip_bodies: bool = knob(
        default=False,
        why="takes request bodies that are compressed by gzip, inflated up to limits.body_bytes; off: they get 415",
    )
    permessage_deflate: bool = knob(
        default=False,
        why="compresses the messages of WebSockets whose clients offer it (RFC 7692); for slow networks: it costs CPU",
    )
    sweep_s: float = knob(0.25, unit="s", low=0.01, why="how often deadlines are checked; each check costs very little")
    bayeux: Bayeux = field(default_factory=Bayeux)
    wamp: Wamp = field(default_factory=Wamp)
    nt4: Nt4 = field(default_factory=Nt4)
    events: Events = field(default_factory=Events)
    realm: tuple[Realm, ...] = ()
    user: tuple[User, ...] = ()
    cookie: Cookie = field(default_factory=Cookie)
    cors: Cors = field(default_factory=Cors)
    limits: Limits = field(default_factory=Limits)
    access: tuple[Access, ...] = ()
    tokens: tuple[Token, ...] = ()
    lazy: tuple[Lazy, ...] = ()
    record: tuple[Record, ...] = ()
    lift: tuple[Lift, ...] = ()
    history: History = field(default_factory=History)
    cluster: Cluster = field(default_factory=Cluster)
    pipeline: Pipeline = field(default_factory=Pipeline)
    jwt: Jwt = field(default_factory=Jwt)
    tls: Tls = field(default_factory=Tls)
    operations: Operations = field(default_factory=Operations)
    drain: Drain = field(default_factory=Drain)
    ticks: Ticks = field(default_factory=Ticks)
    log: Log = field(default_factory=Log)
