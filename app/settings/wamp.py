"""Settings of WAMP v2: realms, users and authentication, and its own limits."""

from dataclasses import MISSING, dataclass
from typing import Literal

from app.settings.knob import knob

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
        10_000, unit="topics", low=0, zero="nothing is retained", why="that can have a retained event"
    )
    retained_bytes: int = knob(
        67_108_864, unit="bytes", low=1_024, why="of all retained events; beyond it the oldest are dropped"
    )
    retained_events: int = knob(
        1_000, unit="events", low=1, why="sent to one new subscription: the newest that its pattern matches"
    )
    testaments: int = knob(16, unit="testaments", low=0, zero="none", why="of one session")
