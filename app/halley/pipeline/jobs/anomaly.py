"""The usual rate of a channel, and deviations from it: spikes, silences, and their ends.

Each channel is examined by itself, in windows of ten seconds, and has no alerts before its usual rate is learnt.
Only arithmetic: nothing here uses Spark or a clock. States are tuples of plain values, since Spark stores them.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

WINDOW_US = 10_000_000
LEARNT_WINDOWS = 12
"""Two minutes: a channel observed for less has no usual rate."""

_WEIGHT = 0.1
"""The weight of the newest window in the usual rate."""

_WEIGHT_OF_SPIKES = 0.01
"""The same weight during a spike: a short spike must not become usual, a rate that lasts for minutes does."""

_STEADY = 0.8
"""The share of windows, lately, in which a steady channel has an event; it takes 16 in a row to get there."""

_CLOCK_US = 6 * WINDOW_US
"""An event older than the current window by more than this is not late: the clock was set back."""

Kind = Literal["spike", "silence", "recovered"]


class Thresholds(NamedTuple):
    """The bounds beyond which a rate is a spike or a silence: see `settings.Pipeline`."""

    spike_factor: float
    spike_events: int
    silence_us: int


class WindowPart(NamedTuple):
    """Some events of one channel in one window: their number, and the time and offset of the newest."""

    window_us: int
    events: int
    newest_us: int
    offset: int


class Alert(NamedTuple):
    """A deviation to report, and when it happened; rates are in events per second."""

    at_us: int
    kind: Kind
    rate: float
    usual: float
    offset: int


class ChannelState(NamedTuple):
    """The state of a channel.

    window_us, events     the start of the current window, and the events in it so far
    usual, busy, windows  recent events per window, the recent share of windows with any; the windows observed
    newest_us, offset     the time and offset of the newest event
    is_spiking, is_silent whether the last alert is a spike or a silence that has not ended
    """

    window_us: int
    events: int
    usual: float
    busy: float
    windows: int
    newest_us: int
    offset: int
    is_spiking: bool = False
    is_silent: bool = False

    @property
    def is_steady(self) -> bool:
        """Whether the channel publishes so regularly that its silence is an alert."""
        return self.busy >= _STEADY

    def alert(self, at_us: int, kind: Kind, events: int) -> Alert:
        """Return an alert about this channel; `events` are those of the window in question."""
        seconds = WINDOW_US / 1_000_000
        return Alert(at_us, kind, events / seconds, self.usual / seconds, self.offset)


def on_events(state: ChannelState | None, part: WindowPart, bounds: Thresholds) -> tuple[ChannelState, list[Alert]]:
    """Return the state after further events, and the alerts that they cause; parts come in the order of windows."""
    if state is None:
        return ChannelState(part.window_us, part.events, 0.0, 0.0, 0, part.newest_us, part.offset), []
    alerts: list[Alert] = []
    newest_us = max(state.newest_us, part.newest_us)
    if state.is_silent:
        state = state._replace(is_silent=False, window_us=part.window_us, events=0, offset=part.offset)
        alerts.append(state.alert(part.newest_us, "recovered", part.events))
    elif part.window_us > state.window_us:
        state, alerts = _closed(state, part.window_us, bounds)
    elif part.window_us < state.window_us - _CLOCK_US:
        state, newest_us = state._replace(window_us=part.window_us, events=0), part.newest_us
    elif part.window_us < state.window_us:
        return state, []  # slightly late: ignored
    state = state._replace(events=state.events + part.events, newest_us=newest_us, offset=part.offset)
    if not state.is_spiking and _is_spike(state, bounds):
        state = state._replace(is_spiking=True)
        alerts.append(state.alert(part.newest_us, "spike", state.events))
    return state, alerts


def on_silence(state: ChannelState, now_us: int, bounds: Thresholds) -> tuple[ChannelState, list[Alert]]:
    """Return the state of a channel without new events until `now_us`, and the alerts that this causes."""
    alerts: list[Alert] = []
    until_us = now_us - now_us % WINDOW_US
    if state.is_spiking and until_us > state.window_us:
        state, alerts = _closed(state, until_us, bounds)
    silent_us = state.newest_us + bounds.silence_us
    if state.is_steady and not state.is_silent and now_us >= silent_us:
        state = state._replace(is_silent=True)
        alerts.append(state.alert(silent_us, "silence", 0))
    return state, alerts


def _is_spike(state: ChannelState, bounds: Thresholds) -> bool:
    return (
        state.windows >= LEARNT_WINDOWS
        and state.events >= bounds.spike_events
        and state.events >= bounds.spike_factor * state.usual
    )


def _closed(state: ChannelState, window_us: int, bounds: Thresholds) -> tuple[ChannelState, list[Alert]]:
    """Return the state and the alerts when a later window begins; the windows between were empty."""
    empty = (window_us - state.window_us) // WINDOW_US - 1
    alerts = []
    was_spiking = state.is_spiking
    if was_spiking and (empty or not _is_spike(state, bounds)):
        state = state._replace(is_spiking=False)
        alerts.append(state.alert(window_us, "recovered", 0 if empty else state.events))
    weight = _WEIGHT_OF_SPIKES if was_spiking else _WEIGHT
    usual = state.usual + weight * (state.events - state.usual) if state.windows else float(state.events)
    forgotten = (1 - _WEIGHT) ** empty
    busy = state.busy + _WEIGHT * (1 - state.busy)
    return state._replace(
        window_us=window_us,
        events=0,
        usual=usual * forgotten,
        busy=busy * forgotten,
        windows=state.windows + 1 + empty,
    ), alerts
