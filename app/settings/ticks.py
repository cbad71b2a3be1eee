"""Settings of the ticks: figures that the server publishes about itself at intervals."""

from dataclasses import dataclass

from app.settings.knob import knob


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
