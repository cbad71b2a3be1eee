"""Settings of the figures that the server publishes about itself at intervals."""

from dataclasses import dataclass

from app.settings.knob import knob


@dataclass(frozen=True, slots=True)
class Ticks:
    """`/halley/rates`, `/halley/topics`, `/halley/queues`: the console's figures; free without subscribers."""

    every_s: float = knob(
        1.0,
        unit="s",
        low=0,
        zero="never",
        why="what people can follow; each costs a few milliseconds while it has subscribers",
    )
    topics: int = knob(500, unit="topics", low=1, why="in one /halley/topics: 60 KB")
    sessions: int = knob(500, unit="sessions", low=1, why="in one /halley/queues: 150 KB")
    remembered_topics: int = knob(
        5_000, unit="topics", low=2, why="whose events are counted, 1 MB; beyond it those that rest are forgotten"
    )
