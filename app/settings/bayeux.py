"""Settings of the Bayeux protocol, and of browsers that speak it."""

from dataclasses import dataclass
from typing import Literal

from app.settings.knob import knob


@dataclass(frozen=True, slots=True)
class Bayeux:
    """How the Bayeux server behaves towards its clients."""

    paths: tuple[str, ...] = knob(["/bayeux", "/cometd"], why="Faye's and CometD's usual mount points")
    hold_s: float = knob(
        25.0, unit="s", zero="connects are never held", low=0, why="below the 30 s after which proxies cut a request"
    )
    max_interval_s: float = knob(
        10.0, unit="s", low=0.1, why="a session without a connect for so long ends; CometD's default"
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
        default=False, why="few clients understand events after a handshake reply (x-messages)"
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
        why="Salesforce's clients read an event's position in its data; only sessions that replay get that",
    )
    policy_s: float = knob(
        10.0, unit="s", low=0.01, why="a policy that has not answered by then denies; a service sends no answer"
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
