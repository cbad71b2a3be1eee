"""Event history: the arguments of `get_events`, and its results from a real log (W35-W42)."""

from __future__ import annotations

from itertools import product

import cbor2
import orjson
import pytest
from support.log import SMALL, OpenLog
from support.wire import DEADLINE_S

from halley.broker.events import Audience, to_text
from halley.broker.names import Match
from halley.broker.policy import ANONYMOUS, Proof
from halley.broker.ports import Page, UnknownPublication
from halley.protocols.wamp.errors import InvalidArgument
from halley.protocols.wamp.events import to_payload
from halley.protocols.wamp.history import nothing, read, result
from halley.protocols.wamp.names import Grammar, to_pattern, to_topic
from halley.protocols.wamp.serializers import JSON, SERIALIZERS
from halley.settings import Limits

GRAMMAR = Grammar(chars=256, components=16, is_strict=False)
MOST, PAGE_BYTES = 300, 524_288
SUBSCRIPTION = 7
NOON_US = 1_782_907_200_000_000  # 2026-07-01T12:00:00Z


class Router:
    """Publishes events and serves `get_events` as a realm does, from a log on disk."""

    def __init__(self, log, space=""):
        self._log = log
        self._space = space

    def publish(self, uri, args=None, kwargs=None, **fields):
        return self.publish_row(uri, *to_payload(args, kwargs, JSON), **fields)

    def publish_row(self, uri, payload, shape, **fields):
        """Store a row with this payload and shape."""
        topic = to_topic(uri, self._space, GRAMMAR)
        return self._log.append_to(topic, orjson.Fragment(payload), shape=shape, protocol="wamp", **fields)

    def get_events(self, uri, match="exact", identity=ANONYMOUS, serializer=JSON, max_bytes=PAGE_BYTES, **kwargs):
        """Return the events and the information behind them, as the caller unpacks them."""
        assert self._log.history.written(DEADLINE_S)
        pattern = to_pattern(uri, {each.value: each for each in Match}[match], self._space, GRAMMAR)
        reading = read([SUBSCRIPTION], kwargs, self._space, GRAMMAR, MOST)
        query = reading.query(pattern, identity, self._log.history.head, max_bytes)
        if query is None:
            answer = nothing(is_complete=True)
        else:
            try:
                answer = result(self._log.history.read(query), reading, pattern, serializer)
            except UnknownPublication:
                answer = nothing(is_complete=False)
        return serializer.unpack(serializer.pack(answer), Limits())

    def found(self, uri, match="exact", **more):
        """Return the publication ids of `get_events`."""
        return [event["publication"] for event in self.get_events(uri, match, **more)[0]]

    def walk(self, uri, match="exact", **more):
        """Return the publication ids of all pages, each requested by `next` of the one before."""
        found, onward = [], "before_publication" if more.get("reverse") else "after_publication"
        for _ in range(10_000):
            events, said = self.get_events(uri, match, **more)
            found += [event["publication"] for event in events]
            assert said.keys() == {"is_limit_reached", "complete", "next"}
            if said["next"] is None:
                return found
            more[onward] = said["next"]
        raise AssertionError("no end")


@pytest.fixture
def router(tmp_path):
    with OpenLog(tmp_path / "log", **SMALL) as log:
        yield Router(log)


# Events


def test_the_specification_s_five_publications_have_its_three_histories(router):
    """W35: exact, prefix and wildcard subscriptions find their events, in the order of publishing."""
    log = "com.mycompany.log"
    ids = [router.publish(f"{log}.{each}", [each]) for each in ("auth", "basket", "basket", "basket", "checkout")]
    assert router.found(f"{log}.auth") == ids[:1]
    assert router.found(f"{log}.basket") == ids[1:4]
    assert router.found(log, "prefix") == ids
    assert router.found("com..log.basket", "wildcard") == ids[1:4]
    assert router.get_events(f"{log}.none") == [[], {"is_limit_reached": False, "complete": True, "next": None}]


def test_an_event_of_the_history_is_what_its_subscriber_got(router):
    """W40: an event has the args and kwargs that were sent, and EVENT's `details`, with `topic` for patterns only."""
    details = '{"publisher":5,"publisher_authid":"ann","ppt_scheme":"x_x","trustlevel":2}'
    first = router.publish("com.a.b", [1, {"x": "é"}], {"k": [2]}, time_us=NOON_US, details=details)
    second = router.publish("com.a.b", time_us=NOON_US + 1)
    shown = {"timestamp": "2026-07-01T12:00:00.000000Z", "subscription": SUBSCRIPTION, "publication": first}
    shown |= {"details": orjson.loads(details), "args": [1, {"x": "é"}], "kwargs": {"k": [2]}}
    empty = {"timestamp": "2026-07-01T12:00:00.000001Z", "subscription": SUBSCRIPTION, "publication": second}
    assert router.get_events("com.a.b")[0] == [shown, empty | {"details": {}}]
    shown["details"]["topic"] = "com.a.b"
    for uri, match in (("com.a", "prefix"), (".a.", "wildcard")):
        assert router.get_events(uri, match)[0] == [shown, empty | {"details": {"topic": "com.a.b"}}]


@pytest.mark.parametrize("serializer", SERIALIZERS.values())
def test_every_serializer_has_the_payloads(router, serializer):
    """W25, W64: the elements that were sent are returned, an empty list too; binary serializers get bytes."""
    sent = [([1], None), (None, None), ([], None), ([1, 2], None), ([], {"a": None})]
    for args, kwargs in sent:
        router.publish("a.b", args, kwargs)
    events, _ = router.get_events("a.b", serializer=serializer)
    assert [(event.get("args"), event.get("kwargs")) for event in events] == sent
    router.publish_row("a.e", b'{"args":[1],"kwargs":{}}', "args+kwargs")  # as versions before have stored it
    [event], _ = router.get_events("a.e", serializer=serializer)
    assert (event["args"], event["kwargs"]) == ([1], {})
    router.publish("a.c", ["\0AP8="])
    [event], _ = router.get_events("a.c", serializer=serializer)
    assert event["args"] == ["\0AP8=" if serializer is JSON else b"\x00\xff"]


def test_other_protocols_events_are_one_argument(router):
    """W65: an event of another protocol is found by its URI, and has one argument."""
    router._log.append_to("chat/room", {"n": 1}, protocol="bayeux")
    [event], _ = router.get_events("chat.room")
    assert (event["args"], event["details"], "kwargs" in event) == ([{"n": 1}], {}, False)


def test_a_realm_has_a_history_of_its_own(tmp_path):
    """No realm finds another realm's events, not even by a prefix that matches everything."""
    with OpenLog(tmp_path / "log", **SMALL) as log:
        first, second = Router(log), Router(log, ":two")
        here, there = first.publish("a.b", [1]), second.publish("a.b", [2])
        for uri, match in (("a.b", "exact"), ("", "prefix"), ("a.", "prefix"), (".b", "wildcard")):
            assert first.found(uri, match) == [here]
            assert second.found(uri, match) == [there]
        assert second.found("", "prefix", topic="a.b") == [there]


# Filters


@pytest.fixture
def ten(router):
    """A router with ten publications to two topics in turn, a second apart, and their ids."""
    ids = [router.publish(f"t.{n % 2}", [n], time_us=NOON_US + n * 1_000_000) for n in range(10)]
    return router, ids


def time_of(number):
    return to_text(NOON_US + number * 1_000_000)


FILTERS = {
    "from_time": (time_of(3), {3, 4, 5, 6, 7, 8, 9}),
    "after_time": (time_of(3), {4, 5, 6, 7, 8, 9}),
    "before_time": (time_of(7), {0, 1, 2, 3, 4, 5, 6}),
    "until_time": (time_of(7), {0, 1, 2, 3, 4, 5, 6, 7}),
    "from_publication": (2, {2, 3, 4, 5, 6, 7, 8, 9}),
    "after_publication": (2, {3, 4, 5, 6, 7, 8, 9}),
    "before_publication": (8, {0, 1, 2, 3, 4, 5, 6, 7}),
    "until_publication": (8, {0, 1, 2, 3, 4, 5, 6, 7, 8}),
    "topic": ("t.1", {1, 3, 5, 7, 9}),
}


@pytest.mark.parametrize("is_reverse", [False, True])
@pytest.mark.parametrize("limit", [None, 2])
def test_every_filter_alone_and_with_every_other(ten, is_reverse, limit):
    """W38: any two filters are combined by AND, in the log's order; then `reverse` is applied, then `limit`."""
    router, ids = ten
    for one, other in product(FILTERS, repeat=2):
        given = {name: FILTERS[name][0] for name in (one, other)}
        given = {name: ids[value] if name.endswith("publication") else value for name, value in given.items()}
        expected = sorted(FILTERS[one][1] & FILTERS[other][1], reverse=is_reverse)[:limit]
        if limit is not None:
            given["limit"] = limit
        assert router.found("t", "prefix", reverse=is_reverse, **given) == [ids[number] for number in expected]


def test_five_rounds_to_four_topics(router):
    """WD13: twenty publications to four topics: limits by subscription, and each filter alone at the fifth."""
    topics = ("nexus.test.exact", "nexus.prefix.a", "nexus.b.wildcard", "nexus.other")
    ids = [router.publish(topic, [n], time_us=NOON_US + n) for n in range(5) for topic in topics]
    assert router.found(topics[0], limit=3) == ids[0:12:4]
    assert router.found("nexus.prefix.", "prefix", limit=4) == ids[1:17:4]
    assert router.found("nexus..wildcard", "wildcard", limit=4) == ids[2:18:4]
    assert router.found("nexus", "prefix", limit=1_000) == ids
    fifth = {bound: {f"{bound}_publication": ids[4]} for bound in ("from", "after", "before", "until")}
    counts = {bound: len(router.found("nexus", "prefix", **given)) for bound, given in fifth.items()}
    assert counts == {"from": 16, "after": 15, "before": 4, "until": 5}
    hour_us = 3_600_000_000
    before, after = to_text(NOON_US - hour_us), to_text(NOON_US + hour_us)
    for low, high in (("from", "until"), ("after", "before")):
        assert router.found("nexus", "prefix", **{f"{low}_time": before, f"{high}_time": after}) == ids
        assert router.found("nexus", "prefix", **{f"{low}_time": after}) == []
        assert router.found("nexus", "prefix", **{f"{high}_time": before}) == []
    assert router.found("nexus", "prefix", topic="nexus.other") == ids[3::4]
    assert router.found("nexus", "prefix", reverse=True, limit=3) == ids[:-4:-1]


def test_limit_is_counted_from_the_start_of_the_traversal(ten):
    """W38, WD13: the limit keeps the oldest events, or in reverse the newest."""
    router, ids = ten
    assert router.found("t", "prefix", limit=3) == ids[:3]
    assert router.found("t", "prefix", limit=4, reverse=True) == ids[:5:-1]
    assert router.found("t", "prefix", limit=4, after_publication=ids[7]) == ids[8:]
    assert router.found("t", "prefix", limit=1_000) == ids
    assert router.found("t", "prefix", limit=10.0) == ids


def test_the_result_says_whether_the_limit_has_cut_it(ten):
    """W40: `is_limit_reached` is true only if more events follow."""
    router, ids = ten
    said = {"is_limit_reached": True, "complete": True, "next": ids[8]}
    assert router.get_events("t", "prefix", limit=9)[1] == said
    said = {"is_limit_reached": False, "complete": True, "next": None}
    assert router.get_events("t", "prefix", limit=10)[1] == said


def test_topic_filters_exact_subscriptions_too(ten):
    """W38: an exact subscription's own topic as filter changes nothing, another topic finds nothing."""
    router, ids = ten
    assert router.found("t.1", topic="t.1") == ids[1::2]
    assert router.get_events("t.1", topic="t.0") == [[], {"is_limit_reached": False, "complete": True, "next": None}]
    assert router.found("t", "prefix", topic="u.1") == []


def test_events_of_the_same_time_and_of_a_clock_set_back_keep_the_log_s_order(router):
    """W35: filters by time hold for each event, but the order is always the log's."""
    times = [5, 5, 5, 9, 2, 5]
    ids = [router.publish("a.b", [n], time_us=NOON_US + second * 1_000_000) for n, second in enumerate(times)]
    assert router.found("a.b") == ids
    assert router.found("a.b", from_time=time_of(5), until_time=time_of(5)) == [ids[0], ids[1], ids[2], ids[5]]
    assert router.found("a.b", after_time=time_of(2)) == [*ids[:4], ids[5]]
    assert router.found("a.b", before_time=time_of(9), reverse=True) == [ids[5], ids[4], *ids[2::-1]]
    assert router.found("a.b", after_time=time_of(5), before_time=time_of(5)) == []
    assert router.found("a.b", after_publication=ids[3]) == ids[4:]


@pytest.mark.parametrize(
    ("time", "is_found"),
    [
        ("2026-07-01T12:00:00Z", True),
        ("2026-07-01t14:00:00.000000000+02:00", True),
        ("2026-07-01T12:00:00.000000001Z", False),
        ("2026-06-30T23:59:60Z", True),
    ],
)
def test_times_are_compared_as_moments(router, time, is_found):
    """W39: times are compared exactly, with any offset and up to nine digits."""
    publication = router.publish("a.b", time_us=NOON_US)
    assert (router.found("a.b", from_time=time) == [publication]) is is_found


def test_a_returned_timestamp_is_a_bound_that_drops_no_neighbour(router):
    """W39: timestamps have microseconds, so that events of one millisecond can be distinguished."""
    ids = [router.publish("a.b", [n], time_us=NOON_US + n) for n in range(3)]
    first = router.get_events("a.b")[0][0]
    assert router.found("a.b", after_time=first["timestamp"]) == ids[1:]


# Pages


@pytest.mark.parametrize("is_reverse", [False, True])
@pytest.mark.parametrize("most_rows", [20_000, 1])
def test_paging_visits_every_event_once(router, monkeypatch, is_reverse, most_rows):
    """W38, W40: each event is returned once, even if pages are cut short by the limit of rows to read."""
    monkeypatch.setattr("halley.history.query.MOST_ROWS", most_rows)
    mine = Audience(eligible_authids=("ann",))
    ids = [router.publish(f"t.{n % 40}", [n], audience=mine if n % 7 else None) for n in range(130)]
    ann = Proof("ann", "user")
    onwards = -1 if is_reverse else 1
    for limit in (1, 7, 130):
        assert router.walk("t.", "prefix", identity=ann, limit=limit, reverse=is_reverse) == ids[::onwards]
    assert router.walk("t.", "prefix", limit=2, reverse=is_reverse) == ids[::7][::onwards]
    assert router.walk("t.5", limit=1, reverse=is_reverse, identity=ann) == ids[5::40][::onwards]


def test_pages_by_the_last_event_s_publication_meet(ten):
    """W38: a page begins behind the event given by `after_publication`, or in reverse `before_publication`."""
    router, ids = ten
    assert router.found("t", "prefix", limit=3, after_publication=ids[2]) == ids[3:6]
    assert router.found("t", "prefix", limit=3, before_publication=ids[7], reverse=True) == [ids[6], ids[5], ids[4]]


def test_paging_while_events_are_published_has_neither_hole_nor_double(router):
    """W42: paging forwards includes events published meanwhile, paging in reverse does not."""
    ids = [router.publish("a.b", [n]) for n in range(4)]
    found, after = [], {}
    for n in range(20):
        events, said = router.get_events("a.b", limit=1, **after)
        found += [event["publication"] for event in events]
        after = {"after_publication": found[-1]}
        if said["next"] is None:
            break
        if n < 5:
            ids.append(router.publish("a.b", [n]))
    assert found == ids
    events, said = router.get_events("a.b", limit=2, reverse=True)
    router.publish("a.b")
    assert router.walk("a.b", limit=1, reverse=True, before_publication=said["next"]) == ids[-3::-1]


def test_a_page_cut_short_by_its_bytes_says_so(router):
    """W41: `complete` is false and `next` is where to continue; one event always fits."""
    ids = [router.publish("a.b", ["x" * 600]) for _ in range(4)]
    events, said = router.get_events("a.b", max_bytes=1_300)
    assert [event["publication"] for event in events] == ids[:2]
    assert said == {"is_limit_reached": False, "complete": False, "next": ids[1]}
    assert router.walk("a.b", max_bytes=1) == ids


def test_a_page_without_an_event_says_where_to_go_on(router, monkeypatch):
    """W40: `next` can be a publication that is hidden from the caller; it reveals only a number."""
    monkeypatch.setattr("halley.history.query.MOST_ROWS", 50)
    staff = Audience(eligible_roles=("staff",))
    ids = [router.publish(f"t.{n % 90}", [n], audience=staff) for n in range(600)]
    ids.append(router.publish("t.1", ["all"]))
    events, said = router.get_events("t.", "prefix")
    assert (events, said["is_limit_reached"], said["complete"]) == ([], False, False)
    assert said["next"] in ids[:-1]
    assert router.walk("t.", "prefix") == ids[-1:]


def test_a_publication_that_is_not_there_finds_nothing_and_says_so(ten):
    """W41: an unknown publication as bound gives an empty, incomplete result and no error."""
    router, ids = ten
    unknown = next(each for each in range(1, 20) if each not in ids)
    for bound in ("from", "after", "before", "until"):
        answer = router.get_events("t", "prefix", **{f"{bound}_publication": unknown})
        assert answer == [[], {"is_limit_reached": False, "complete": False, "next": None}]


@pytest.mark.parametrize(
    ("page", "is_complete"),
    [
        (Page([], 9, is_end=True, gaps=[]), True),
        (Page([], 9, is_end=True, gaps=[(3, 4)]), False),
        (Page([], 9, is_end=True, gaps=[], is_cut_off=True), False),
        (Page([], 9, is_end=False, gaps=[], publication=5), False),
    ],
)
def test_what_is_missing_makes_a_page_incomplete(page, is_complete):
    """W40, W41: a page is not complete if events are damaged, deleted by age, or not searched yet."""
    _, said = result(page, read([7], {}, "", GRAMMAR, MOST), to_pattern("a", Match.EXACT, "", GRAMMAR), JSON)
    assert said == {"is_limit_reached": False, "complete": is_complete, "next": page.publication}


# Audience


def test_the_caller_s_audience_decides(router):
    """W37: the caller's authid and role decide which events `get_events` returns, in both directions."""
    everyone = router.publish("a.b", [0])
    staff = router.publish("a.b", [1], audience=Audience(eligible_roles=("staff",)))
    ann = router.publish("a.b", [2], audience=Audience(eligible_authids=("ann",)))
    not_ann = router.publish("a.b", [3], audience=Audience(excluded_authids=("ann",)))
    not_staff = router.publish("a.b", [4], audience=Audience(excluded_roles=("staff",)))
    nobody = router.publish("a.b", [5], audience=Audience(eligible_authids=()))
    for who, expected in (
        (Proof("ann", "staff"), [everyone, staff, ann]),
        (Proof("ann", "user"), [everyone, ann, not_staff]),
        (Proof("bob", "staff"), [everyone, staff, not_ann]),
        (ANONYMOUS, [everyone, not_ann, not_staff]),
    ):
        assert router.found("a.b", identity=who) == expected
        assert router.found("a", "prefix", identity=who, reverse=True) == expected[::-1]
        assert router.found("a.b", identity=who, from_publication=nobody) == []
        assert router.walk("a.b", identity=who, limit=1) == expected


# Arguments


@pytest.mark.parametrize(
    ("args", "kwargs", "name"),
    [
        ([], {}, "subscription"),
        ([None], {}, "subscription"),
        (["7"], {}, "subscription"),
        ([True], {}, "subscription"),
        ([0], {}, "subscription"),
        ([2**53 + 1], {}, "subscription"),
        ([7.5], {}, "subscription"),
        ([7], {"limit": 0}, "limit"),
        ([7], {"limit": -1}, "limit"),
        ([7], {"limit": True}, "limit"),
        ([7], {"limit": "5"}, "limit"),
        ([7], {"limit": 1.5}, "limit"),
        ([7], {"limit": float("inf")}, "limit"),
        ([7], {"reverse": 1}, "reverse"),
        ([7], {"reverse": "true"}, "reverse"),
        ([7], {"topic": 5}, "topic"),
        ([7], {"topic": "a..b"}, "topic"),
        ([7], {"topic": ""}, "topic"),
        ([7], {"topic": "a b"}, "topic"),
        *(([7], {f"{bound}_time": "2026-07-01T12:00:00"}, f"{bound}_time") for bound in ("from", "after")),
        *(([7], {f"{bound}_time": 1_782_907_200}, f"{bound}_time") for bound in ("before", "until")),
        *(([7], {f"{bound}_publication": 0}, f"{bound}_publication") for bound in ("from", "after")),
        *(([7], {f"{bound}_publication": 2**53 + 1}, f"{bound}_publication") for bound in ("before", "until")),
        ([7], {"from_publication": "1"}, "from_publication"),
        ([7], {"from_publication": True}, "from_publication"),
    ],
)
def test_what_is_wrong_is_named_and_never_repeated(args, kwargs, name):
    """W41: a wrong argument is reported by its name, in fixed words that do not repeat its value."""
    with pytest.raises(InvalidArgument) as caught:
        read(args, kwargs, "", GRAMMAR, MOST)
    assert str(caught.value).startswith(f"{name}: expected ")
    assert "a b" not in str(caught.value)


def test_absent_and_unknown_arguments_are_nothing():
    """W18, W41: null, CBOR's undefined and unknown keywords are treated as absent."""
    usual = read([7], {}, "", GRAMMAR, MOST)
    assert (usual.subscription, usual.limit, usual.is_reverse, usual.topic) == (7, 100, False, None)
    assert read([7, "more"], {"colour": "red"}, "", GRAMMAR, MOST) == usual
    absent = dict.fromkeys(["reverse", "limit", "topic", "from_time", "until_publication"], cbor2.undefined)
    assert read([7], absent | {"before_time": None}, "", GRAMMAR, MOST) == usual


def test_ids_and_limits_may_come_as_floats():
    """W13: ids and limits are accepted as floats, as JavaScript's encoders write large integers."""
    given = {"limit": 5.0, "from_publication": 4_503_599_627_370_497.0}
    reading = read([7.0], given, "", GRAMMAR, MOST)
    assert (reading.subscription, reading.limit) == (7, 5)
    assert reading.filters["from_publication"] == 4_503_599_627_370_497
    assert type(reading.filters["from_publication"]) is int


def test_a_limit_is_cut_to_what_a_page_may_have():
    """W41: a larger limit than a page allows is reduced to the maximum, 300 by default."""
    assert read([7], {"limit": 10**30}, "", GRAMMAR, MOST).limit == MOST
