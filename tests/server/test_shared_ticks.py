"""The figures of several nodes as those of one, without any network."""

import pytest

from halley.broker.flow import Delays
from halley.server.other_nodes import OtherNodes
from halley.server.shared_ticks import SharedTicks, merge_flow, merge_queues, merge_rates, merge_topics, sparse
from halley.settings import Settings, Ticks


def rates(count, *delays_ms, protocols=("bayeux",)):
    """The figures of a node: each number is `count`."""
    delays = Delays()
    for ms in delays_ms:
        delays.note(ms * 1_000)
    names = ("sessions", "published", "delivered", "published_per_s", "delivered_per_s")
    one = {**dict.fromkeys(names, count), "delay_ms": None}
    totals = ("sessions", "subscriptions", "holds", "queued", "put_back")
    more = ("conflated", "overflows", "dropped", "memory_bytes")
    return {
        "every_s": 1.0,
        "protocols": dict.fromkeys(protocols, one),
        **dict.fromkeys((*totals, *more), count),
        "limits_hit": {"queue_events": count},
        "history": {"first": 1, "head": count, "lost": count},
        "delays": dict.fromkeys(protocols, sparse(delays)),
    }


def test_rates_are_added_up_and_delays_are_of_all_events():
    """The quantiles are those of one histogram; the history is that of the node which is asked."""
    merged = merge_rates(rates(1, *[10] * 99), rates(2, *[1_000] * 99, protocols=("bayeux", "wamp")), 0)
    assert (merged["queued"], merged["limits_hit"], merged["history"]["head"]) == (3, {"queue_events": 3}, 1)
    assert merged["history"]["lost"] == 3
    bayeux = merged["protocols"]["bayeux"]
    assert (bayeux["sessions"], merged["protocols"]["wamp"]["sessions"]) == (3, 2)
    assert bayeux["delay_ms"]["p50"] == pytest.approx(10, rel=0.13)
    assert bayeux["delay_ms"]["p99"] == pytest.approx(1_000, rel=0.13)
    assert merge_rates(rates(1), rates(1), 0)["protocols"]["bayeux"]["delay_ms"] is None


def test_throughput_is_added_up_by_itself():
    """It is what each node sends even without subscribers, for the past of the whole cluster."""

    def flow(rate, *delays_ms):
        delays = Delays()
        for ms in delays_ms:
            delays.note(ms * 1_000)
        one = {"published_per_s": rate, "delivered_per_s": 0.0, "delay_ms": None}
        return {"protocols": {"bayeux": one}, "delays": {"bayeux": sparse(delays)}}

    merged = merge_flow(flow(1.5), flow(2.0, 10), 0)["protocols"]["bayeux"]
    assert (merged["published_per_s"], merged["delivered_per_s"]) == (3.5, 0.0)
    assert merged["delay_ms"]["p50"] == pytest.approx(10, rel=0.13)


def topic(name, published, last):
    return {"channel": name, "published": published, "per_s": 1.5, "subscribers": 1, "last": last}


def test_topics_are_added_up_and_the_latest_are_listed():
    one = {"topics": [topic("/a", 3, "03"), topic("/b", 1, "01")], "others": 5}
    two = {"topics": [topic("/c", 1, "04"), topic("/a", 4, "02")], "others": 6}
    merged = merge_topics(one, two, 2)
    both = {"channel": "/a", "published": 7, "per_s": 3.0, "subscribers": 2, "last": "03"}
    assert merged == {"topics": [topic("/c", 1, "04"), both], "others": 12}


def test_sessions_with_the_longest_queues_are_listed_first():
    def session(name, queued, age_s):
        return {"session": name, "queued": queued, "age_s": age_s}

    one = {"sessions": [session("a", 2, 9), session("b", 0, 9)], "others": 1}
    two = {"sessions": [session("c", 3, 9), session("d", 0, 1)], "others": 1}
    merged = merge_queues(one, two, 3)
    assert [each["session"] for each in merged["sessions"]] == ["c", "a", "d"]
    assert merged["others"] == 3


def test_figures_stay_as_they_were_sent():
    """They are encoded after they were merged: two nodes that begin at once would send each other no delays."""
    others, cluster = OtherNodes("a", Settings), Cluster()
    shared = SharedTicks(others, Ticks(), lambda _: True, {"t": (merge_rates, 0)})
    others.join(cluster, cluster, None)
    shared.send("t", own := rates(1, 10))
    assert "delays" not in shared.merged("t", own, 0.0)
    assert "delays" in cluster.sent[0][1]["figures"]


class Cluster:
    """Stands for the way to two other nodes, b and c."""

    def __init__(self):
        self.answers = {}
        self.heartbeat = {}
        self.sent = []

    def others(self):
        return [type("Member", (), {"name": name, "heartbeat": {"hears": ["t"]}}) for name in ("b", "c")]

    def answer(self, kind, answer):
        self.answers[kind] = answer

    def report(self, name, value):
        self.heartbeat[name] = value

    def notify(self, kind, body):
        self.sent.append((kind, body))


@pytest.mark.parametrize("strange", [{}, {"topics": None, "others": 1}, {"topics": [1], "others": 1}, None])
def test_figures_of_another_form_are_left_out(strange):
    """They are those of another version."""
    others, cluster = OtherNodes("a", Settings), Cluster()
    shared = SharedTicks(others, Ticks(), lambda _: True, {"t": (merge_topics, 5)})
    others.join(cluster, cluster, None)
    assert shared.has_subscribers("t")
    assert cluster.heartbeat["hears"]() == ["t"]
    own = {"topics": [topic("/a", 1, "01")], "others": 0}
    shared.send("t", own)
    assert cluster.sent == [("figures", {"topic": "t", "figures": own})]
    cluster.answers["figures"]("b", {"topic": "t", "figures": strange})
    cluster.answers["figures"]("c", {"topic": "t", "figures": own})
    cluster.answers["figures"]("d", {"topic": "t", "figures": own})
    _, (at, _) = max(shared._received.items())
    merged = shared.merged("t", own, at)
    assert (merged["topics"][0]["published"], merged["nodes"]) == (2, ["a", "c"])
    assert shared.merged("t", own, at + 3)["nodes"] == ["a"]
