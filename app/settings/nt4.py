"""Settings of NetworkTables 4.1: its listener, what it shares with the other protocols, and its own bounds."""

from dataclasses import dataclass

from app.settings.knob import knob


@dataclass(frozen=True, slots=True)
class Nt4:
    """How the NetworkTables server behaves towards its clients."""

    enabled: bool = knob(default=False, why="robots and dashboards use no password, so it must be turned on explicitly")
    host: str = knob("127.0.0.1", why="only this machine can connect unless another host is set")
    port: int = knob(
        5810,
        low=0,
        high=65_535,
        zero="a free one is picked and printed",
        why="the port that every client knows; plain, as they come: wss is the main port's, on /nt/NAME",
    )
    origins: tuple[str, ...] = knob(
        ["file://"], why="pages that may connect in addition to cors.origins; AdvantageScope's come from its own files"
    )
    bridge_out: tuple[str, ...] = knob(
        ["/"], why="names beginning so are topics of all protocols, and recorded; empty: NetworkTables keeps to itself"
    )
    bridge_in: tuple[str, ...] = knob(
        [],
        why="names beginning so become topics when another protocol publishes there, not only when a client here does",
    )
    record_every_s: float = knob(
        0.1, unit="s", low=0, zero="every value", why="of a topic the newest value is recorded so often, the others not"
    )
    save_every_s: float = knob(1.0, unit="s", low=0.05, why="how soon persistent topics are saved; ntcore's")
    visitor_topic_s: float = knob(
        600.0, unit="s", low=1, why="a topic that only requests without a session publish goes after so long in silence"
    )
    ping_s: float = knob(0.2, unit="s", low=0.05, why="clients of 4.1 are asked so often, as the specification has it")
    pong_s: float = knob(1.0, unit="s", low=0.1, why="a client of 4.1 that has sent nothing for so long is closed")
    pings_per_s: float = knob(50.0, unit="pings/s", low=1, why="of a peer; beyond it is closed with 1008")
    kill_s: float = knob(1.0, unit="s", low=0, zero="cut at once", why="time for a peer that is sent away to read why")
    message_bytes: int = knob(
        2_097_152, unit="bytes", low=1_024, why="of one message (ntcore's); then closed with 1009"
    )
    nodes: int = knob(100_000, unit="JSON values", low=64, why="in one text message; more and it is ignored")
    elements: int = knob(
        262_144,
        unit="elements",
        low=65_535,
        why="of an array: as many doubles as a message has; a longer one is ignored",
    )
    name_bytes: int = knob(1_024, unit="bytes", low=8, why="of a name or type; a longer one is ignored")
    properties_bytes: int = knob(
        8_192, unit="bytes", low=64, why="of a topic's properties; what would add more is not done"
    )
    topics: int = knob(10_000, unit="topics", low=1, why="at once; further ones are not announced")
    publishers: int = knob(10_000, unit="publishers", low=1, why="of one client; further ones are ignored")
    subscriptions: int = knob(
        10_000, unit="names", low=1, why="in all subscriptions of one client; further are ignored"
    )
    values_per_s: float = knob(
        200_000.0,
        unit="values/s",
        low=0,
        zero="no limit",
        why="of one client; beyond it values are dropped and counted",
    )
    value_burst: int = knob(400_000, unit="values", low=1, why="at once, by one that was silent before")
    max_period_s: float = knob(60.0, unit="s", low=0.1, why="the longest `periodic` that is heeded")
    last_bytes: int = knob(67_108_864, unit="bytes", low=1_024, why="of all last values; beyond it a topic keeps none")
    persistent_bytes: int = knob(
        67_108_864, unit="bytes", low=1_024, why="of the file of persistent topics; a longer one is not written or read"
    )
    queue_bytes: int = knob(
        1_048_576, unit="bytes", low=1_024, why="of values that wait for one client; then only the newest of each topic"
    )
    control_bytes: int = knob(
        8_388_608, unit="bytes", low=65_536, why="of what was written and a client does not read; then it is closed"
    )
