"""How many events a cluster of many nodes delivers, by arithmetic from the costs that were measured with a few.

Each node has a core, and uses all of it. It publishes its share of the events, takes all frames of the stream apart,
and delivers its share of the deliveries. The keeper and NATS have cores of their own; a stream has one keeper that
settles events, which has one core for that, so it bounds the rate.
"""

from __future__ import annotations

from typing import NamedTuple

FRAMES_PER_S = 500.0
"""The most frames that all nodes together send (`cluster/broker_log.py`): of more events, a frame has several."""

_US = 1_000_000


class Costs(NamedTuple):
    """What is measured, in microseconds of CPU.

    publish   a publish at its own node, with its way through the stream
    deliver   a delivery by a held poll
    applied   an event of another node for which there is a subscriber here, with one delivery among many in a poll
    passed    an event of another node for which there is none
    frame     a frame of another node, besides its events
    keeper    an event at the keeper
    nats      an event in NATS, for each node that gets it
    """

    publish: float
    deliver: float
    applied: float
    passed: float
    frame: float
    keeper: float
    nats: float


class Scaled(NamedTuple):
    """What a number of nodes does.

    `share` is the deliveries to those of as many single nodes; `keeper_cores` and `nats_cores` are used besides.
    """

    nodes: int
    events_per_s: float
    deliveries_per_s: float
    share: float
    keeper_cores: float
    nats_cores: float


def scaled(costs: Costs, nodes: int, subscribers: int) -> Scaled:
    """What `nodes` do at most, if each event has that number of subscribers anywhere."""
    events, one = _events_per_s(costs, nodes, subscribers), _events_per_s(costs, 1, subscribers)
    return Scaled(
        nodes,
        events,
        events * subscribers,
        events / one / nodes,
        events * costs.keeper / _US,
        events * costs.nats * (nodes + 1) / _US,  # the keeper gets them too
    )


def _events_per_s(costs: Costs, nodes: int, subscribers: int) -> float:
    """Return the events per second with which each node uses its core, or with which the keeper does."""
    others = 1 - 1 / nodes
    wanted = 1 - others**subscribers  # how likely it is that any of the subscribers is at one certain node
    own = (costs.publish + subscribers * costs.deliver) / nodes
    each = own + others * (wanted * costs.applied + (1 - wanted) * costs.passed)
    frame = others * costs.frame
    events = _US / (each + frame)  # with one event in each frame
    if events > FRAMES_PER_S:
        events = max((_US - FRAMES_PER_S * frame) / each, FRAMES_PER_S)
    return min(events, _US / costs.keeper)
