"""Settings of the server as a program: listeners, TLS, drain, log, and the ticks that it publishes about itself."""

import ipaddress
from dataclasses import dataclass
from typing import Literal

from halley.settings.knob import knob


def is_loopback(host: str) -> bool:
    """Whether a host name or address can only mean this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class Tls:
    """https instead of http, for clients; the operations listener stays plain."""

    cert: str = knob("", why="PEM file of the certificate and its chain; empty: http")
    key: str = knob("", why="PEM file of the private key; empty: it is in the certificate's file")
    min_version: Literal["1.2", "1.3"] = knob(
        "1.2", why="older versions are forbidden (RFC 8996); 1.3 excludes old clients"
    )


@dataclass(frozen=True, slots=True)
class Operations:
    """The listener for health checks and metrics, apart from the public one."""

    host: str = knob("127.0.0.1", why="only this machine can read metrics unless another host is set")
    port: int = knob(
        8081,
        low=0,
        high=65_535,
        zero="a free one is picked and printed",
        why="the port for health checks and metrics, next to the public one",
    )
    enabled: bool = knob(default=True, why="off: for programs that have their own health checks")


@dataclass(frozen=True, slots=True)
class Drain:
    """How the server shuts down after SIGTERM."""

    not_ready_s: float = knob(
        0.0, unit="s", low=0, zero="drain immediately", why="time for load balancers to notice that /health/ready fails"
    )
    spread_s: float = knob(
        5.0,
        unit="s",
        low=0,
        zero="all at the same time",
        why="clients are disconnected over this time, so that they do not all reconnect at once",
    )
    clients_per_s: float = knob(
        500.0, unit="clients/s", low=1, why="few clients are disconnected at this rate, in less time than spread_s"
    )
    grace_s: float = knob(
        15.0,
        unit="s",
        low=0,
        zero="running requests are cut",
        why="for running requests to end; with the rest, below the 30 s of Kubernetes",
    )


@dataclass(frozen=True, slots=True)
class Log:
    """The log, which is written to standard error."""

    level: Literal["debug", "info", "warning", "error"] = knob(
        "info", why="info: includes a line for the begin and the end of each session"
    )
    format: Literal["auto", "json", "console"] = knob("auto", why="auto: console on a terminal, JSON lines elsewhere")
    value_chars: int = knob(
        200, unit="characters", low=16, why="of a logged value that a client has sent; longer ones are cut"
    )


@dataclass(frozen=True, slots=True)
class Ticks:
    """The ticks `/halley/rates`, `/halley/topics`, `/halley/queues` for the console; free without subscribers."""

    every_s: float = knob(
        1.0,
        unit="s",
        low=0,
        zero="never",
        why="between two ticks; each costs a few milliseconds while it has subscribers",
    )
    topics: int = knob(500, unit="topics", low=1, why="in one /halley/topics; about 60 KB")
    sessions: int = knob(500, unit="sessions", low=1, why="in one /halley/queues; about 150 KB")
    remembered_topics: int = knob(
        5_000, unit="topics", low=2, why="whose events are counted, with 1 MB; beyond it idle ones are forgotten"
    )
