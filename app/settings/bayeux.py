"""Settings of the Bayeux protocol, and of browsers that speak it."""

from dataclasses import dataclass
from typing import Literal

from app.settings.knob import knob


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
        "auto",
        why="publishing without a session (curl); auto: on loopback, and with access rules where one allows it",
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
    timestamp: bool = knob(default=False, why="the timestamp extension; it costs an encoding for each receiver")
    replay_in_data: bool = knob(
        default=True,
        why="Salesforce's clients read an event's position in its data; only sessions that use replay get it",
    )
    policy_s: float = knob(
        10.0, unit="s", low=0.01, why="a policy that has not returned by then denies; a service then sends no reply"
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
