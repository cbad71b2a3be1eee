"""Settings of the listeners, and of what operators see."""

import ipaddress
from dataclasses import dataclass
from typing import Literal

from app.settings.knob import knob


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
