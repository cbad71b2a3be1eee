"""Settings of WAMP v2: realms, users and authentication, and its own limits."""

from dataclasses import MISSING, dataclass
from typing import Literal

from app.settings.knob import knob

KEY_BYTES = 32
"""Of a user's key, before it is base64; clients are told, and derive as many."""


@dataclass(frozen=True, slots=True)
class Realm:
    """One realm, a table [[realm]]. The first is the space that all protocols share; every other has topics and a
    history of its own. Without any there is `realm1`.
    """  # noqa: D205 - two sentences that belong together

    name: str = knob(MISSING, why="the URI that clients say HELLO with")
    strict_uris: bool = knob(default=False, why="true: components of [0-9a-z_] alone, as the specification advises")
    disclose: Literal["allow", "always", "never"] = knob(
        "allow", why="whether events name their publisher: when it asks for that, always, or never"
    )


@dataclass(frozen=True, slots=True)
class User:
    """Somebody who proves by WAMP-CRA who they are, a table [[user]], as `halley user` prints it."""

    id: str = knob(MISSING, why="the authid")
    role: str = knob(MISSING, why="what access rules know them by")
    key: str = knob(MISSING, why="base64 of PBKDF2-SHA256 of the secret; the secret itself is kept by its owner only")
    salt: str = knob(MISSING, why="sent to clients that authenticate as this user")
    iterations: int = knob(100_000, unit="rounds", low=1_000, why="what guessing a secret costs who has stolen a key")


@dataclass(frozen=True, slots=True)
class Wamp:
    """How the WAMP router behaves towards its clients."""

    paths: tuple[str, ...] = knob(["/wamp", "/ws"], why="where WebSocket clients and long-polling ones knock")
    anonymous: bool = knob(default=True, why="sessions without authentication; access rules say what they may")
    strict_request_ids: bool = knob(
        default=False, why="true: ids other than 1, 2, 3 ... end the session, as the specification has it since 2021"
    )
    hello_s: float = knob(10.0, unit="s", low=0.1, why="a connection without a session for so long is aborted")
    ping_s: float = knob(20.0, unit="s", low=0.1, why="a WebSocket that is silent for so long is asked; websockets'")
    pong_s: float = knob(20.0, unit="s", low=0.1, why="and closed if it has not answered by then")
    pings_per_s: float = knob(20.0, unit="pings/s", low=1, why="of a peer; beyond it is closed with 1008")
    message_bytes: int = knob(262_144, unit="bytes", low=1_024, why="of one message; then closed with 1009")
    batch_messages: int = knob(1_000, unit="messages", low=1, why="in one batch; more are a violation")
    poll_s: float = knob(10.0, unit="s", low=0.1, why="an idle receive ends before autobahn-js' own 12 s")
    poll_gone_s: float = knob(30.0, unit="s", low=0.1, why="a long-poll session without a receive for so long has left")
    polls: int = knob(1_000, unit="connections", low=1, why="long-poll ones; each may have a session; then 503")
    kill_s: float = knob(1.0, unit="s", low=0, zero="cut at once", why="time for a peer that is sent away to read why")
    subscriptions: int = knob(1_000, unit="subscriptions", low=1, why="of one session; then wamp.error.unavailable")
    patterns: int = knob(100, unit="patterns", low=0, zero="no patterns", why="prefixes and wildcards among them")
    wildcard_forms: int = knob(
        256, unit="forms", low=1, why="of all wildcards, by where they are empty; each costs a look-up for a new topic"
    )
    publishes_per_s: float = knob(
        20_000.0, unit="publishes/s", low=0, zero="no limit", why="of one session; then wamp.error.unavailable"
    )
    publish_burst: int = knob(40_000, unit="publishes", low=1, why="at once, by one that was silent before")
    waiting_calls: int = knob(16, unit="requests", low=1, why="of one session that wait for a policy or the disk")
    retained_topics: int = knob(10_000, unit="topics", low=0, zero="nothing is retained", why="that have an event kept")
    retained_bytes: int = knob(67_108_864, unit="bytes", low=1_024, why="of all retained events; the oldest go first")
    retained_events: int = knob(
        1_000, unit="events", low=1, why="sent to one new subscription; the youngest of what its pattern matches"
    )
    testaments: int = knob(16, unit="testaments", low=0, zero="none", why="of one session")
