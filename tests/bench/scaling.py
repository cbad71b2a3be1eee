"""What a cluster of many nodes does, by arithmetic from the costs that were measured with a few.

Each node has a core. It publishes its share of the events, takes all frames of the stream apart, and delivers its share
of the deliveries. The keeper and NATS have cores of their own; a stream has one keeper that settles events, which has
one core for that, so it bounds the rate.
"""

from __future__ import annotations

from typing import NamedTuple

FRAMES_PER_S = 500.0
"""The most frames that all nodes together send (`cluster/sender.py`): of more events, a frame has several."""

WANTED = 0.05
"""For which part of the others' events a node has a subscriber, where the rate is given."""

_US = 1_000_000


class Costs(NamedTuple):
    """What is measured, in microseconds of CPU.

    publish     a publish at its own node, with its way through the stream
    deliver     a delivery by a held poll
    applied     an event of another node for which there is a subscriber here, with one delivery among many in a poll
    passed      an event of another node for which there is none
    frame       a frame of another node, besides its events
    row         an event at the keeper, at the rate at which it was measured
    row_behind  an event at a keeper that is behind, and so commits many at once
    nats        an event in NATS, for each node that gets it
    """

    publish: float
    deliver: float
    applied: float
    passed: float
    frame: float
    row: float
    row_behind: float
    nats: float


class AtMost(NamedTuple):
    """What a number of nodes does that use all of their cores.

    `share` is the deliveries to those of as many single nodes, `keeper_share` the events to the most that the keeper
    records. `nats_cores` are used besides.
    """

    nodes: int
    events_per_s: float
    deliveries_per_s: float
    share: float
    keeper_share: float
    nats_cores: float


def at_most(costs: Costs, nodes: int, subscribers: int) -> AtMost:
    """What `nodes` do at most, if each event has that number of subscribers anywhere."""
    events, one = _most_events_per_s(costs, nodes, subscribers), _most_events_per_s(costs, 1, subscribers)
    return AtMost(
        nodes,
        events,
        events * subscribers,
        events / one / nodes,
        events * costs.row_behind / _US,
        events * costs.nats * (nodes + 1) / _US,  # the keeper gets them too
    )


def _most_events_per_s(costs: Costs, nodes: int, subscribers: int) -> float:
    """Return the events per second with which each node uses its core, or with which the keeper does."""
    others = 1 - 1 / nodes
    wanted = 1 - others**subscribers  # how likely it is that any of the subscribers is at one certain node
    own = (costs.publish + subscribers * costs.deliver) / nodes
    each = own + others * (wanted * costs.applied + (1 - wanted) * costs.passed)
    frame = others * costs.frame
    events = _US / (each + frame)  # with one event in each frame
    if events > FRAMES_PER_S:
        events = max((_US - FRAMES_PER_S * frame) / each, FRAMES_PER_S)
    return min(events, _US / costs.row_behind)


class AtRate(NamedTuple):
    """What a given rate of events leaves of each node's core for deliveries.

    `publishes`, `frames`, `others` and `left` are shares of a core: for the node's own publishes, the others' frames
    and the events in them, and what is left. `deliveries_per_s` are those of all nodes by what is left, and `share` is
    those to the deliveries of as many single nodes, each with as many publishes of its own and no frames of others.
    """

    nodes: int
    publishes: float
    frames: float
    others: float
    left: float
    deliveries_per_s: float
    share: float


def at_rate(costs: Costs, nodes: int, events_per_s: float) -> AtRate:
    """What is left at each of `nodes` that publish `events_per_s` together, and take `WANTED` of the others' events."""
    of_others = (1 - 1 / nodes) / _US
    publishes = events_per_s / nodes * costs.publish / _US
    frames = of_others * min(FRAMES_PER_S, events_per_s) * costs.frame
    others = of_others * events_per_s * (WANTED * costs.applied + (1 - WANTED) * costs.passed)
    left = max(1 - publishes - frames - others, 0.0)
    share = left / (1 - publishes) if left else 0.0
    return AtRate(nodes, publishes, frames, others, left, nodes * left * _US / costs.deliver, share)
