"""Settings of NetworkTables 4.1: its listener, what it shares with the other protocols, and its own limits."""

from dataclasses import dataclass

from app.settings.knob import knob


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
        [],
        why="a publish of another protocol to a name that begins like this creates a topic in NetworkTables",
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
