"""Frames, and what all nodes make of them, against a model that knows every frame that was ever sent."""

from __future__ import annotations

import orjson
import pytest
from cluster.golden import sealed
from hypothesis import given
from hypothesis import strategies as st

from halley.broker.events import Audience, Event, SessionFilter
from halley.broker.names import Match, Pattern, escaped
from halley.broker.ports import Erasure
from halley.cluster.applied import MOST_RUNS, KeyEntry, StreamState, document, due_erasures
from halley.cluster.bounds import are_topics
from halley.cluster.frames import (
    BadFrame,
    KeeperAnnouncement,
    KeeperDismissal,
    Row,
    SharedFields,
    events_of,
    may_have_control,
    pack,
    row_of,
    unpack,
)
from halley.protocols.wamp.names import space_of

KEYS, KEY_AGE_US = 3, 5_000_000
SECOND_US = 1_000_000

names = st.text(st.characters(exclude_categories=("C", "Z"), include_characters=" "), max_size=6)
audiences = st.none() | st.builds(
    Audience,
    st.none() | st.lists(names, max_size=2).map(tuple),
    st.none() | st.lists(names, max_size=2).map(tuple),
    st.lists(names, max_size=2).map(tuple),
    st.lists(names, max_size=2).map(tuple),
)
kinds = st.builds(
    SharedFields,
    st.sampled_from(["bayeux", "wamp"]),
    st.sampled_from(["bare", "none"]),
    st.none() | names.map(lambda name: orjson.dumps({"x": name}).decode()),
    audiences,
    st.none() | st.sampled_from("ab"),
    st.none() | names,
)
rows = st.builds(
    Row,
    names.map(escaped),
    names.map(orjson.dumps),
    kinds,
    st.none() | st.sampled_from(["k1", "k2", "k3", "k4", "k5", "k6"]),
    st.none(),
    st.none(),
    st.none() | st.sampled_from([b"11111111", bytes(8)]),
).map(lambda row: row._replace(digest=row.key and row.digest))


class Model:
    """The history that the nodes should come to, in as few words as possible: of events it forgets nothing."""

    def __init__(self, keys):
        self.keys = keys
        self.counted: dict[str, int] = {}
        self.events: list[tuple[Row, int]] = []  # with the clock by which its key ages
        self.used: list[tuple[tuple[str | None, str], int]] = []  # each key once, with its event's offset, by use
        self.time_us = self.clock_us = 0
        self.rules = 1

    def apply(self, stream_us, run, number, rows, version):
        if number != self.counted.get(run, 0) + 1:
            return None
        self.counted[run] = number
        self.rules = max(self.rules, version)
        is_step = self.time_us - SECOND_US < stream_us < self.time_us
        before_us, self.time_us = self.time_us, self.time_us if is_step else stream_us
        pause_us = sorted((0, self.time_us - before_us, SECOND_US))[1]
        self.clock_us = self.clock_us + pause_us if self.rules > 1 else self.time_us
        return [self.offset_of(row) for row in rows]

    def offset_of(self, row):
        name = (row.kind.authid, row.key)
        first = dict(self.used).get(name) if row.key else None
        if first is not None and not self.is_old(first):
            return first
        self.events.append((row, self.clock_us))
        if row.key:
            self.used = [each for each in self.used if each[0] != name] + [(name, len(self.events))]
            if len(self.used) > self.keys:
                self.used.remove(self.loses())
        return len(self.events)

    def is_old(self, offset):
        return self.clock_us - self.events[offset - 1][1] > KEY_AGE_US

    def loses(self):
        """The key that goes when there are too many."""
        anonymous = [each for each in self.used if each[0][0] is None]
        if self.rules < 3 or self.is_old(self.used[0][1]) or len(anonymous) <= self.keys // 10:
            return self.used[0]
        return anonymous[0]


@st.composite
def streams(draw):
    """Two to four runs send their frames, each again as often as they like, late, out of turn, or not at all."""
    sent = []
    for run in draw(st.lists(st.sampled_from(["a-1", "a-2", "b-1", "c-1"]), min_size=1, max_size=4, unique=True)):
        frames = draw(st.lists(st.lists(rows, max_size=4), max_size=6))
        sent += [(run, number, each) for number, each in enumerate(frames, 1)]
    if not sent:
        return []
    picks = draw(st.lists(st.integers(0, len(sent) - 1), max_size=40))
    order = [sent[pick] for pick in picks]
    if draw(st.booleans()):  # the usual case: in turn, and some of it again
        order = sorted(order, key=lambda frame: frame[1])
    steps = draw(st.lists(st.integers(-2 * SECOND_US, 3 * SECOND_US), min_size=len(order), max_size=len(order)))
    # from there on nodes write version 2, and then 3, but for one that has not noticed it yet
    second, third = sorted(draw(st.tuples(st.integers(0, 40), st.integers(0, 40))))
    stream_us, stream = 1_800_000_000_000_000, []
    for place, (frame, step) in enumerate(zip(order, steps, strict=True)):
        stream_us += step
        version = 1 + (place >= second) + (place >= third)
        stream.append((stream_us, *frame, 1 if frame[0] == "c-1" else version))
    return stream


def told(numbered):
    return None if numbered is None else [each.offset for each in numbered]


@given(stream=streams(), stop=st.integers(0, 40), back=st.integers(0, 10), keys=st.sampled_from([KEYS, 10, 12]))
def test_all_nodes_come_to_the_same_history(stream, stop, back, keys):
    """Every interleaving, resend and loss: as the model. A node that is killed goes on to the same end.

    One of the version before, which passes over what was sent with keys, comes to the same.
    """
    model, node, before = Model(keys), StreamState(keys, KEY_AGE_US), StreamState(keys, KEY_AGE_US)
    values = node.values()
    states = [node.saved()]
    for sequence, (stream_us, run, number, each, version) in enumerate(stream, 1):
        found = node.apply(sequence, stream_us, frame := unpack(pack(run, number, each, None, version)))
        assert told(found) == model.apply(stream_us, run, number, each, version)
        frame.digests = {}
        before.apply(sequence, stream_us, frame)
        assert before.saved() == node.saved()
        digests = {offset: model.events[offset - 1][0].digest for _, offset in model.used}
        assert node.digests == {offset: digest for offset, digest in digests.items() if digest is not None}
        states.append(node.saved())
        changed = node.changed()
        assert (changed.after, changed.sequence, changed.offset) == (sequence - 1, sequence, node.offset)
        values = {**values, **changed.values}
        kept = {name: value for name, value in values.items() if value is not None}
        assert document(kept) == node.saved(), "what is changed with each message comes to the whole"
    assert node.offset == len(model.events)
    saved = states[max(0, min(stop, len(stream)) - back)]  # it had saved its state some frames before it was killed
    again = StreamState(keys, KEY_AGE_US)
    again.restore(orjson.loads(orjson.dumps(saved)))
    for sequence, (stream_us, run, number, each, version) in enumerate(stream, 1):  # what it has seen is not seen again
        again.apply(sequence, stream_us, unpack(pack(run, number, each, None, version)))
    assert again.saved() == node.saved()


@given(realm=st.text(min_size=1), words=st.lists(st.text(min_size=1), min_size=1, max_size=4))
def test_topics_that_clients_can_have_are_taken(realm, words):
    """Whatever their characters are, also in a realm of its own: its name is spelled otherwise."""
    try:
        topic = "/".join(map(escaped, words))
    except UnicodeEncodeError:
        return
    assert are_topics([topic, f"{space_of(realm)}/{topic}"])


@given(run=names, number=st.integers(1, 2**60), each=st.lists(rows, max_size=8))
def test_a_frame_is_read_as_it_was_packed(run, number, each):
    """Topics, kinds, keys and payloads come out as they went in."""
    frame = unpack(pack(run, number, each))
    assert (frame.run, frame.number, frame.rows) == (run, number, each)


@given(each=st.lists(rows.map(lambda row: row._replace(key=None, digest=None)), max_size=4), data=st.data())
def test_events_that_nobody_needs_are_counted_alike(each, data):
    """A node that passes over a frame comes to the same as one that takes it apart, and can make its events later."""
    frame = unpack(pack("a-1", 1, each))
    one, other = StreamState(KEYS, KEY_AGE_US), StreamState(KEYS, KEY_AGE_US)
    assert frame.is_plain
    assert (other.admit(1, 5, frame), other.skip(frame)) == (True, 1)
    assert [numbered.row for numbered in one.apply(1, 5, frame)] == each
    assert other.saved() == one.saved()
    assert not other.admit(2, 6, frame)
    first, last = sorted((data.draw(st.integers(0, len(each))), data.draw(st.integers(0, len(each)))))
    topics = {row.topic for row in each[::2]}
    expected = [(place, row) for place, row in enumerate(each) if first <= place < last and row.topic in topics]
    indexes, events = frame.events(first, last, topics)
    assert [*zip(indexes, map(row_of, events), strict=True)] == expected


@given(each=st.lists(rows, min_size=1, max_size=8))
def test_a_frame_with_keys_is_not_plain(each):
    """Its events must be looked at: one may repeat another."""
    assert unpack(pack("a-1", 1, each)).is_plain == all(row.key is None for row in each)


@given(each=st.lists(rows, min_size=1, max_size=3), data=st.data())
def test_a_damaged_frame_is_recognized(each, data):
    """Each flipped bit, cut end and foreign message: `BadFrame`, and nothing else."""
    whole = bytearray(pack("a-1", 1, each))
    at = data.draw(st.integers(0, len(whole) * 8 - 1))
    whole[at // 8] ^= 1 << at % 8
    for damaged in (bytes(whole), pack("a-1", 1, each)[: at // 8], data.draw(st.binary(max_size=40))):
        with pytest.raises(BadFrame):
            unpack(damaged)


KIND = SharedFields("bayeux", "bare", None, None, None, None)
HEAD = [1, "a-1", 1, ["t"], [["bayeux", "bare", None, None, None, None]], [0], [0], [2], {}, None, None]


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (0, 4),
        (1, None),
        (2, "1"),
        (3, [None]),
        (3, []),
        (4, [["bayeux"]]),
        (4, [["bayeux", "bare", None, [["x"]], None, None]]),
        (5, [1]),
        (5, [0, 0]),
        (5, [-1]),
        (5, [0.0]),
        (5, [1 << 40]),
        (6, [1]),
        (6, []),
        (7, [3]),
        (7, [-1]),
        (8, []),
        (8, {"1": "k"}),
        (8, {"-1": "k"}),
        (8, {"0": 1}),
        (9, [[1]]),
        (9, [["1", 1, None, []]]),
        (10, []),
        (10, {"keeps": 1}),
        (10, {"erase": ["exact", None, None]}),
        (10, {"erase": ["near", "t", None]}),
    ],
)
def test_a_frame_with_wrong_columns_is_refused(place, value):
    """The checksum is right, but another program has written it, or another version."""
    unpack(sealed(HEAD))
    with pytest.raises(BadFrame):
        unpack(sealed([*HEAD[:place], value, *HEAD[place + 1 :]]))


def test_a_payload_is_text():
    """A row of the history is text: other bytes would stop every node's writer."""
    with pytest.raises(BadFrame):
        unpack(sealed(HEAD, b"\xff\xfe"))


def test_a_message_that_is_no_frame_takes_its_place_in_the_stream():
    """It is passed over, by all nodes alike."""
    node = StreamState(KEYS, KEY_AGE_US)
    assert node.apply(1, 5, None) is None
    assert (node.sequence, node.offset, node.checksum) == (1, 0, "")


def test_a_run_is_forgotten_after_a_day():
    """Else a cluster that is restarted often would remember its first start forever."""
    node, row = StreamState(KEYS, KEY_AGE_US), Row("t", b"1", SharedFields("bayeux", "bare", None, None, None, None))
    node.apply(1, 0, unpack(pack("a-1", 1, [row])))
    node.apply(2, 86_400_000_001, unpack(pack("b-1", 1, [row])))
    assert (node.number_of("a-1"), node.number_of("b-1")) == (0, 1)


def test_a_repeat_names_its_first():
    """The same key from two nodes: one event, and the other publisher learns its offset and topic."""
    row = Row("t", b"1", SharedFields("bayeux", "bare", None, None, "me", None), "k1")
    node = StreamState(KEYS, KEY_AGE_US)
    node.apply(1, 10, unpack(pack("a-1", 1, [row])))
    (again,) = node.apply(2, 20, unpack(pack("b-1", 1, [row._replace(topic="other")])))
    assert (again.repeats, again.offset, node.offset) == (KeyEntry(1, 10, "t", 10), 1, 1)


DIGEST = b"12345678"


def test_what_was_sent_with_a_key_travels_with_it():
    """In the control, which is none: nobody looks for an erasure in such a frame."""
    row = Row("t", b'"{\\"digests\\":"', SharedFields("bayeux", "bare", None, None, "me", None), "k1", digest=DIGEST)
    data = pack("a-1", 1, [row._replace(key="k0", digest=None), row])
    assert b',{"digests":{"1":"3132333435363738"}}]\n' in data
    assert not may_have_control(data)
    frame = unpack(data)
    assert (frame.control, frame.rows[1], frame.rows[0].digest) == (None, row, None)
    (event,) = events_of(frame.rows[1:])
    assert (event.key_digest, row_of(event)) == (DIGEST, row)
    assert row_of(event, is_stamped=True).digest is None, "what is not recorded has no key at other nodes"


@pytest.mark.parametrize(
    "digests",
    [
        *(
            None,
            [],
            "1",
            {},
            {"0": None},
            {"0": "31323334353637"},
            {"0": "3132333435363738 "},
            {"0": "G" * 16},
            {"0": 1},
        ),
        *({"1": "3132333435363738"}, {"-1": "3132333435363738"}, {"x": "3132333435363738"}, {"\u0661": "3" * 16}),
        *({"9" * 5_000: "3132333435363738"}, {"0": ["3132333435363738"]}, {"0": "\u0663" * 16}),
    ],
)
def test_digests_that_are_none_are_passed_over(digests):
    """The other nodes take the frame, so this one must, too."""
    data = pack("a-1", 1, [Row("t", b"1", KIND, "k1")])
    head, _, payloads = data[:-8].partition(b"\n")
    changed = sealed([*orjson.loads(head)[:-1], {"digests": digests}], payloads)
    frame = unpack(changed)
    assert (frame.digests, [row.key for row in frame.rows]) == ({}, ["k1"])
    node = StreamState(KEYS, KEY_AGE_US)
    node.apply(1, 10, frame)
    assert (node.offset, node.digests) == (1, {})


def test_a_control_next_to_digests_is_found():
    """A later version may write both."""
    digests, erase = {"0": "3132333435363738"}, ["descendants", "private", None]
    for control in ({"digests": digests, "erase": erase}, {"erase": erase, "digests": digests}):
        data = sealed([*HEAD[:10], control])
        assert may_have_control(data)
        assert unpack(data).control == Erasure(Pattern(Match.DESCENDANTS, "private"), None)


def test_a_state_of_another_node_has_what_was_sent_with_keys():
    """Of the keys that are known; and not, where the other is of the version before."""
    row = Row("t", b"1", SharedFields("bayeux", "bare", None, None, "me", None), "k1", digest=DIGEST)
    node, again = StreamState(KEYS, KEY_AGE_US), StreamState(KEYS, KEY_AGE_US)
    node.apply(1, 10, unpack(pack("a-1", 1, [row, row._replace(key="k2")])))
    assert node.digests == {1: DIGEST, 2: DIGEST}
    again.restore(node.saved())
    assert again.digests == {}
    again.know({1: DIGEST, 3: DIGEST})
    assert again.digests == {1: DIGEST}
    again.restore({**node.saved(), "digests": {"2": DIGEST.hex(), "3": DIGEST.hex()}})
    assert again.digests == {2: DIGEST}
    again.apply(2, 20, unpack(pack("a-1", 2, [], Erasure(None, "me"))))
    assert again.digests == {}


HOUR_US = 3_600 * SECOND_US


class Stream:
    """Frames of one event each, at times of the stream's clock, applied by a node."""

    def __init__(self, version):
        self.node, self.version = StreamState(KEYS, KEY_AGE_US), version

    def put(self, stream_us, run, number, key=None):
        """Return the offset of the event; None if the frame does not count, 0 if it repeats another."""
        frame = unpack(pack(run, number, [Row("t", b"1", KIND, key)], None, self.version))
        found = self.node.apply(self.node.sequence + 1, stream_us, frame)
        return found and (0 if found[0].repeats else found[0].offset)


@pytest.mark.parametrize("ahead_us", [25 * HOUR_US, 11 * 60 * SECOND_US, -3 * HOUR_US])
def test_a_leaders_clock_decides_nothing(ahead_us):
    """Of the NATS servers another one leads, whose clock is wrong: no frame counts twice, and no key is forgotten."""
    stream, now_us = Stream(2), 1_800_000_000 * SECOND_US
    assert stream.put(now_us, "a-1", 1, "k") == 1
    for number, wrong_us in enumerate((ahead_us, 0, ahead_us), 1):
        assert stream.put(now_us + wrong_us + number, "b-1", number) == 1 + number
        assert stream.put(now_us + wrong_us + number, "a-1", 1, "k") is None
    assert stream.put(now_us, "c-1", 1, "k") == 0


def test_a_leaders_clock_lets_no_keeper_be_forgotten():
    """Those that are away would not be waited for."""
    node = StreamState(KEYS, KEY_AGE_US)
    for sequence, (name, stream_us) in enumerate([("a", 0), ("b", 25 * HOUR_US), ("c", 1)], 1):
        node.apply(sequence, stream_us, unpack(pack(f"{name}-1", 1, [], KeeperAnnouncement(name), 2)))
    assert [*node.keepers] == ["a", "b", "c"]


def test_in_a_busy_stream_a_key_is_forgotten_in_time():
    """Pauses of a second and less count in full."""
    stream = Stream(2)
    assert stream.put(0, "a-1", 1, "k") == 1
    for number in range(1, 6):
        assert stream.put(number * SECOND_US, "b-1", number) == number + 1
    assert stream.put(KEY_AGE_US, "c-1", 1, "k") == 0
    assert stream.put(KEY_AGE_US + 1, "c-1", 2, "k") == 7


def test_keys_from_before_the_rules_changed_have_their_age():
    """Up to then it is that by the stream's clock, in whatever form the state was saved."""
    stream = Stream(1)
    assert stream.put(0, "a-1", 1, "old") == 1
    assert stream.put(KEY_AGE_US, "a-1", 2, "new") == 2
    stream.version = 2
    assert stream.put(KEY_AGE_US, "a-1", 3) == 3
    again = StreamState(KEYS, KEY_AGE_US)
    again.restore(orjson.loads(orjson.dumps(stream.node.saved())))
    assert (again.saved(), again.rules) == (stream.node.saved(), 2)
    stream.node = again
    assert stream.put(9 * KEY_AGE_US, "b-1", 1, "new") == 0
    assert stream.put(9 * KEY_AGE_US, "b-1", 2, "old") == 4


def flooded(version, *, orders):
    """Return nodes that have applied the same: a member's orders, more keys of a stranger than there is room for."""
    member, stranger = SharedFields("bayeux", "bare", None, None, "ann", None), KIND
    keyed = [Row("orders", b"1", member, f"order {number}") for number in range(orders)]
    keyed += [Row("pub", b"1", stranger, f"k{number}") for number in range(150)]
    frames = [pack("a-1", number, [row], None, version) for number, row in enumerate(keyed, 1)]
    alive, stopped = StreamState(100, KEY_AGE_US), StreamState(100, KEY_AGE_US)
    for sequence, frame in enumerate(frames, 1):
        alive.apply(sequence, sequence, unpack(frame))
        stopped.apply(sequence, sequence, unpack(frame))
        if not sequence % 40:  # it is killed, and begins again with what it has saved
            saved, stopped = stopped.saved(), StreamState(100, KEY_AGE_US)
            stopped.restore(orjson.loads(orjson.dumps(saved)))
    return alive, stopped


@pytest.mark.parametrize(("version", "are_known"), [(1, False), (2, False), (3, True)])
def test_a_stranger_has_only_its_own_keys_forgotten(version, are_known):
    """By the rules of version 3, and at all nodes alike; while a node of the version before is there, as before."""
    for node in flooded(version, orders=20):
        assert [node.first_of("ann", f"order {number}") is not None for number in range(20)] == [are_known] * 20
        of_the_stranger = [number for number in range(150) if node.first_of(None, f"k{number}") is not None]
        assert of_the_stranger == [*range(70 if are_known else 50, 150)]
    alive, stopped = flooded(version, orders=95)
    assert stopped.saved() == alive.saved()
    assert sum(alive.first_of("ann", f"order {number}") is not None for number in range(95)) == (90 if are_known else 0)


def test_the_rules_for_keys_change_with_a_frame():
    """What is there is judged by the new ones from the next key on, also at a node that begins with what was saved."""
    alive, _ = flooded(2, orders=95)
    again = StreamState(100, KEY_AGE_US)
    again.restore(orjson.loads(orjson.dumps(alive.saved())))
    member = SharedFields("bayeux", "bare", None, None, "ann", None)
    for number in range(246, 446):
        frame = unpack(pack("a-1", number, [Row("orders", b"1", member, f"later {number}")], None, 3))
        for node in (alive, again):
            assert node.apply(number, number, frame) is not None
    assert again.saved() == alive.saved()
    assert {authid for authid, *_ in alive.saved()["keys"]} == {"ann"}


@pytest.mark.parametrize("version", [2, 3])
def test_a_key_that_is_too_old_makes_room_first(version):
    """Whosever it is: it is recognized no more, so no key of the anonymous need go for it."""
    node = StreamState(KEYS, KEY_AGE_US)
    for number, authid in enumerate(["ann", None, None, None], 1):
        row = Row("t", b"1", SharedFields("bayeux", "bare", None, None, authid, None), f"k{number}")
        pauses = 1 if number == 1 else 7
        for step in range(pauses):
            frame = unpack(pack("a-1", node.sequence + 1, [row] if step == pauses - 1 else [], None, version))
            assert node.apply(node.sequence + 1, node.sequence * SECOND_US, frame) is not None
    assert node.first_of("ann", "k1") is None
    assert all(node.first_of(None, f"k{number}") is not None for number in range(2, 5))


def test_runs_are_forgotten_when_there_are_too_many():
    """The one whose last frame is the oldest; and in what is saved too."""
    stream = Stream(2)
    stream.put(0, "a-1", 1)
    stream.put(0, "b-1", 1)
    stream.put(0, "a-1", 2)
    for number in range(MOST_RUNS - 1):
        stream.put(0, f"c-{number}", 1)
    assert [stream.node.number_of(run) for run in ("a-1", "b-1", "c-0")] == [2, 0, 1]
    assert stream.node.changed().values["run/b-1"] is None
    assert len(stream.node.saved()["runs"]) == MOST_RUNS


def test_an_erasure_is_due_with_its_place_in_the_stream():
    """It is saved with that, so that no node that is killed forgets it."""
    erasure = Erasure(Pattern(Match.DESCENDANTS, "private"), None)
    node = StreamState(KEYS, KEY_AGE_US)
    node.apply(1, 10, unpack(pack("a-1", 1, [Row("private/a", b"1", KIND)])))
    node.apply(2, 20, unpack(pack("a-1", 2, [], erasure)))
    values = node.changed().values
    assert [*due_erasures(orjson.loads(orjson.dumps(values, option=orjson.OPT_NON_STR_KEYS)))] == [(2, erasure, 1)]
    assert document({**node.values(), **values}) == node.saved(), "other nodes are not asked to erase it again"


@pytest.mark.parametrize(
    "control",
    [KeeperAnnouncement("a"), Erasure(Pattern(Match.DESCENDANTS, "private"), None), Erasure(None, "me")],
)
def test_a_control_is_read_as_it_was_packed(control):
    """It comes in the order of the stream, and takes no offset; one of a later version is passed over."""
    frame = unpack(pack("a-1", 1, [], control))
    assert (frame.control, frame.rows) == (control, [])
    assert may_have_control(pack("a-1", 1, [], control))
    assert not may_have_control(pack("a-1", 1, [Row("t", b'{"a":[{}]}', KIND)]))
    node = StreamState(KEYS, KEY_AGE_US)
    assert (node.apply(1, 5, frame), node.offset) == ([], 0)
    assert unpack(sealed([*HEAD[:10], {"later": 1}])).control is None


def test_a_node_with_a_folder_is_remembered_until_it_is_dismissed():
    """The stream keeps what it needs, and who erases names it; one that is gone for good is struck off."""
    node = StreamState(KEYS, KEY_AGE_US)
    node.apply(1, 0, unpack(pack("a-1", 1, [], KeeperAnnouncement("a"))))
    node.apply(2, 10 * 86_400_000_000, unpack(pack("b-1", 1, [], KeeperAnnouncement("b"))))
    assert [*node.keepers] == ["a", "b"]
    node.apply(3, 0, unpack(pack("forget-1", 1, [], KeeperDismissal("a"))))
    assert [*node.keepers] == ["b"]
    node.apply(4, 0, unpack(pack("forget-2", 1, [], KeeperDismissal("none"))))
    node.apply(5, 0, unpack(pack("a-2", 1, [], KeeperAnnouncement("a"))))
    assert [*node.keepers] == ["b", "a"], "it is back"


def test_the_keys_of_erased_events_are_forgotten():
    """They have names and topics in them, and are saved; each node's broker knows them for as long as it runs."""
    row = Row("private/room", b"1", SharedFields("bayeux", "bare", None, None, "me", None), "k1")
    node = StreamState(KEYS, KEY_AGE_US)
    node.apply(1, 10, unpack(pack("a-1", 1, [row, row._replace(topic="chat", key="k2")])))
    node.apply(2, 20, unpack(pack("a-1", 2, [], Erasure(Pattern(Match.CHILDREN, "private"), None))))
    assert [each[1] for each in node.saved()["keys"]] == ["k2"]
    node.apply(3, 30, unpack(pack("a-1", 3, [], Erasure(None, "me"))))
    assert node.saved()["keys"] == []


def test_a_value_of_networktables_travels_with_its_type():
    """And with the session that does not get it live, as its publisher wishes."""
    event = Event("robot/speed", b"2.5", protocol="wamp")
    event.nt4_type, event.nt4_time_us = "double", 7
    event.chosen = SessionFilter(None, frozenset({"me"}))
    data = pack("a-1", 1, [row_of(Event("t", b"1")), row_of(event)])
    plain, found = events_of(unpack(data).rows)
    assert (plain.nt4_type, plain.chosen) == (None, None)
    assert (found.nt4_type, found.nt4_time_us, found.chosen) == ("double", 7, event.chosen)
    assert not may_have_control(data)
    for values in ({"0": ["double", "7", []]}, {"1": ["double", 7, []]}, {"0": [1, 7, []]}, {"0": []}, 1):
        with pytest.raises(BadFrame):
            unpack(sealed([*HEAD[:10], values, None]))


def test_an_unrecorded_event_travels_with_its_stamps():
    """Time, publication and the chosen sessions come with it, since the stream does not give them."""
    event = Event("t", b"1", protocol="wamp", authid="me", role="user", idempotency_key="k")
    event.time_us, event.publication = 5, 7
    event.chosen = SessionFilter(frozenset({"b", "a"}), frozenset({"c"}))
    frame = unpack(pack("a-1", 0, [row_of(event, is_stamped=True)]))
    found = events_of(frame.rows)[0]
    assert (found.time_us, found.publication, found.chosen) == (5, 7, event.chosen)
    assert (found.topic, found.payload, found.authid, found.role) == ("t", b"1", "me", "user")
