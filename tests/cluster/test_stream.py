"""What leaves the stream of a cluster and when, and who says what about it: the rules, and a node that follows them."""

from __future__ import annotations

import math

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halley.cluster.applied import StreamState
from halley.cluster.frames import KeeperAnnouncement, KeeperDismissal, pack, unpack
from halley.cluster.members import Members
from halley.cluster.stream import (
    CannotJoin,
    KeeperProgress,
    StreamBounds,
    StreamTrimmer,
    apply_settings,
    describe,
    trimming,
)
from halley.history.folder import Identity
from halley.nats.jetstream import ApiError, Connection
from halley.settings import Cluster, Settings

HOUR_S = 3_600.0
HERE = 0.0


def trimmed(keepers, share=0.5, *, first=1, last=100, old=100):
    """Return up to where the stream is trimmed, and the names of the keepers that are left behind."""
    extent = StreamBounds(first, last, round(share * 1_000), 1_000)
    to, left = trimming(extent, {name: KeeperProgress(*each) for name, each in keepers.items()}, old, HOUR_S)
    return to, "".join(sorted(left))


@pytest.mark.parametrize(
    ("keepers", "more", "expected"),
    [
        ({"a": (80, HERE), "b": (60, HERE)}, {}, (60, "")),
        ({"a": (80, HERE), "b": (60, HERE)}, {"old": 50}, (50, "")),  # what is younger stays in any case
        ({"a": (80, HERE), "b": (60, HERE)}, {"share": 0.85, "old": 50}, (50, "")),
        ({"a": (80, HERE), "b": (60, 100)}, {}, (60, "")),  # one that is away is waited for,
        ({"a": (80, HERE), "b": (60, HOUR_S + 1)}, {}, (80, "b")),  # for a while,
        ({"a": (80, HERE), "b": (60, 100)}, {"share": 0.8}, (80, "b")),  # and while there is room
        ({"a": (80, HERE), "b": (60, HERE)}, {"share": 0.8}, (60, "")),
        ({"a": (80, HERE), "b": (None, 100)}, {}, (0, "")),  # what it has is unknown to a node that has just started
        ({"a": (80, HERE), "b": (None, HOUR_S + 1)}, {}, (80, "b")),
        ({"a": (80, HERE), "old": (None, HERE)}, {}, (0, "")),  # a version of Halley that does not say
        ({"a": (80, HERE), "old": (None, HERE)}, {"share": 0.95}, (80, "old")),
        ({"a": (80, HERE), "b": (9, 1)}, {"first": 11}, (80, "b")),  # it has to copy in any case
        ({"a": (80, HERE), "b": (10, 1)}, {"first": 11}, (10, "")),  # that would be the stream's end before the first
        ({"a": (80, 1), "b": (60, 1)}, {"share": 0.99}, (0, "")),  # what no keeper that is there has saved stays
        ({"a": (80, 1), "b": (60, HERE)}, {"share": 0.99}, (60, "")),
        ({"a": (10, HERE)}, {"share": 0.99}, (10, "")),
        ({"a": (80, HERE), "b": (60, HERE)}, {"share": 0.9, "old": 0}, (50, "")),  # half of it, if that is enough
        ({"a": (80, HERE), "b": (60, HERE)}, {"share": 0.9, "old": 70}, (60, "")),
        ({"a": (80, HERE), "b": (3, HERE)}, {"share": 0.9, "old": 0}, (3, "")),
        ({"a": (80, HERE), "b": (3, HERE)}, {"first": 4, "share": 0.9, "old": 0}, (52, "b")),  # it stands still
        ({"a": (80, HERE), "b": (3, HERE)}, {"first": 4, "share": 0.8, "old": 0}, (0, "")),
        ({"a": (101, HERE)}, {}, (0, "")),  # that is of another stream
        ({}, {"share": 0.99}, (0, "")),
    ],
)
def test_what_leaves_the_stream(keepers, more, expected):
    assert trimmed(keepers, **more) == expected


STANDINGS = st.builds(
    KeeperProgress, st.none() | st.integers(0, 100), st.sampled_from([HERE, 1.0, HOUR_S - 1, HOUR_S + 1, 10 * HOUR_S])
)


@given(
    st.dictionaries(st.sampled_from("abcd"), STANDINGS), st.integers(0, 1_000), st.integers(1, 101), st.integers(0, 100)
)
def test_what_no_keeper_has_saved_never_leaves_the_stream(keepers, nbytes, first, old):
    """Nor what another one needs that may still come and get it; nor what is young, while there is room."""
    extent = StreamBounds(first, 100, nbytes, 1_000)
    to, left = trimming(extent, keepers, old, HOUR_S)
    assert to <= max((each.saved or 0 for each in keepers.values() if not each.away_s), default=0)
    if extent.share < 0.9:
        assert to <= old
        assert all(each.away_s or (each.saved or 0) + 1 < first for name, each in keepers.items() if name in left)
    for name, each in keepers.items():
        if name not in left and to >= first:
            assert (each.saved or 0) >= to


class Nats(Connection):
    """A connection to a stream that is in memory."""

    def __init__(self, options, described):
        super().__init__(options)
        self.state = {"first_seq": 1, "last_seq": 0, "bytes": 0}
        self.config = {"name": "halley", "max_bytes": 1_000, "description": orjson.dumps(described).decode()}
        self.purged = []
        self.is_refusing = self.is_silent = False

    async def stream_info(self):
        return {"state": dict(self.state), "config": self.config}

    async def ask(self, what, body=None):
        if self.is_silent:
            raise TimeoutError
        if self.is_refusing:
            raise ApiError({"description": "no rights"})
        assert what == "STREAM.PURGE.halley"
        self.purged.append(body["seq"])
        self.state["first_seq"] = body["seq"]
        return {}


class Life:
    """A keeper `b` and what it hears of others, with its own time."""

    def __init__(self, *keepers):
        self.options = Cluster(node="b", space="halley")
        described = describe(Settings(), Identity.new(), 0)
        self.nats = Nats(self.options, described)
        self.applied = StreamState(0, 0)
        self.applied.stream = described["stream"]
        for sequence, name in enumerate(keepers, 1):
            self.applied.apply(sequence, 1, unpack(pack(f"{name}-1", 1, [], KeeperAnnouncement(name))))
        self.members = Members(self.nats, 0.0)
        self.life = StreamTrimmer(self.members, self.applied)
        self.now = float(math.ceil(self.life._began_at))
        self.of(0)

    def of(self, saved, **more):
        """Let this node have saved so much."""
        self.members.heartbeat |= {"kept": lambda: {"takes": True} | more, "saved": lambda: saved}

    def tell(self, name, saved, **more):
        """Let another node say what it has saved; without it, it is a front."""
        kept = {} if saved is None else {"kept": {"takes": True} | more, "saved": saved}
        self.members.receive(orjson.dumps({"node": name, "id": f"id{name}", "key": "k", **kept}), self.now)

    def leave(self, name):
        self.members.receive(orjson.dumps({"node": name, "left": True}), self.now)

    async def pass_(self, seconds, last=None, nbytes=100):
        """Let time pass, with a look each second."""
        for _ in range(seconds):
            self.now += 1
            self.nats.state |= {"last_seq": last or self.nats.state["last_seq"], "bytes": nbytes}
            self.applied.sequence = self.nats.state["last_seq"]
            await self.life.check(self.now)

    def away(self):
        return [each["node"] for each in self.life.standings() if each["away_s"]]


async def test_a_keeper_trims_once_a_minute_behind_the_slowest():
    """What is older than five minutes; first it must know how old that is."""
    one = Life("b", "c")
    one.of(900)
    one.tell("c", 800)
    await one.pass_(299, last=1_000)
    assert one.nats.purged == []
    await one.pass_(2)
    assert one.nats.purged == [801]
    one.tell("c", 850)
    await one.pass_(58)
    assert one.nats.purged == [801]
    await one.pass_(2)
    assert one.nats.purged == [801, 851]
    one.of(2_000)
    one.tell("c", 2_000)
    await one.pass_(120, last=2_000)
    assert one.nats.purged == [801, 851, 1_001], "the rest is younger"


async def test_the_first_keeper_by_name_trims():
    """Of those that can write."""
    one = Life("a", "b")
    one.of(1_000)
    one.tell("a", 1_000)
    await one.pass_(400, last=1_000)
    assert one.nats.purged == []
    one.tell("a", 1_000, takes=False)
    await one.pass_(1)
    assert one.nats.purged == [1_001]
    assert one.away() == ["a"]


async def test_a_stream_of_another_log_is_not_trimmed():
    """Nor one that has less than this node has seen, or lacks what it needs."""
    one = Life("b")
    one.of(1_000)
    one.nats.config["description"] = orjson.dumps(describe(Settings(), Identity.new(), 0)).decode()
    await one.pass_(400, last=1_000)
    assert one.nats.purged == []


async def test_a_keeper_that_is_away_is_waited_for_and_then_left_behind():
    """For an hour; it is logged once. One that is dismissed is forgotten."""
    one = Life("b", "c")
    one.of(500)
    one.tell("c", 300)
    await one.pass_(400, last=500)
    assert one.nats.purged == [301]
    one.leave("c")
    one.of(900)
    await one.pass_(3_500, last=900)
    assert (one.nats.purged, one.away()) == ([301], ["c"])
    await one.pass_(300)
    assert one.nats.purged == [301, 901]
    assert one.life.standings()[1] == {"node": "c", "saved": 300, "away_s": 3_800, "is_left_behind": True}
    one.applied.apply(one.applied.sequence + 1, 1, unpack(pack("forget-1", 1, [], KeeperDismissal("c"))))
    await one.pass_(1)
    assert [each["node"] for each in one.life.standings()] == ["b"]


async def test_a_keeper_that_the_node_has_never_met_is_waited_for_from_its_start():
    """A keeper that is started again knows from the stream that there is another one, but not how far that is."""
    one = Life("b", "c")
    one.of(500)
    await one.pass_(3_590, last=500)
    assert one.nats.purged == []
    await one.pass_(100)
    assert one.nats.purged == [501]


async def test_a_stream_that_fills_is_trimmed_at_once():
    """At four fifths without the keepers that are away, at nine tenths whatever its age."""
    one = Life("b", "c")
    one.of(1_000)
    one.tell("c", 300)
    await one.pass_(1, last=1_000)
    one.leave("c")
    await one.pass_(400, nbytes=790)
    assert one.nats.purged == [301]
    await one.pass_(1, nbytes=800)
    assert one.nats.purged == [301, 1_001]
    one.of(2_000)
    await one.pass_(1, last=2_000, nbytes=890)
    assert one.nats.purged == [301, 1_001]
    await one.pass_(1, nbytes=900)
    assert one.nats.purged == [301, 1_001, 1_501]


async def test_what_is_not_trimmed_is_tried_again():
    one = Life("b")
    one.of(1_000)
    one.nats.is_refusing = True
    await one.pass_(400, last=1_000)
    one.nats.is_refusing = False
    await one.pass_(60)
    assert one.nats.purged == [1_001]


async def test_a_start_says_why_the_stream_keeps_its_settings():
    """Also if NATS says nothing."""
    life = Life()
    info = await life.nats.stream_info()
    life.nats.is_refusing = True
    with pytest.raises(CannotJoin, match=r"does not change the stream halley to .*: no rights$"):
        await apply_settings(life.nats, Settings(), info)
    life.nats.is_silent = True
    with pytest.raises(CannotJoin, match=r"does not change the stream halley to .*: no answer$"):
        await apply_settings(life.nats, Settings(), info)
