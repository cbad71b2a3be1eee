"""What other nodes of a cluster, or strangers with their rights, send: what is spoiled is refused, and no other error.

Each example draws a seed, and spoils a valid message by it many times (`inputs`).
"""

from __future__ import annotations

import asyncio
import json
import math
from contextlib import suppress
from random import Random
from zlib import crc32

import orjson
import pytest
from cluster.golden import FRAMES, HEARTBEAT, PAGE, QUERY, ROWS, STATE, VALUE, sealed
from cluster.test_broker_log import Disk, come_back
from fuzz import inputs
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from halley.broker.broker import Broker
from halley.broker.events import BARE, Event, EventRange
from halley.broker.names import Match, Pattern, patterns_over
from halley.cluster import bounds, nt4_lease, pages
from halley.cluster import keeper as keeper_module
from halley.cluster.applied import AnotherVersion, StreamState
from halley.cluster.arrivals import EventFactory
from halley.cluster.bounds import TOPIC_CHARS, TOPIC_SEGMENTS
from halley.cluster.broker_log import ClusterLog
from halley.cluster.consistency import StateHistory, differences
from halley.cluster.exchange import NodeExchange
from halley.cluster.frames import BadFrame, events_of, pack, unpack
from halley.cluster.keeper import Keeper
from halley.cluster.keeper_client import KeeperState, LivingKeeper
from halley.cluster.members import Members
from halley.cluster.requests import RequestRefused
from halley.cluster.status import ClusterStatus
from halley.cluster.stream import StreamTrimmer
from halley.cluster.values import ClusterValues
from halley.history.rules import Rules
from halley.history.stored import row_of
from halley.nats import wire as wire_module
from halley.nats.jetstream import Connection
from halley.nats.wire import Message, Wire
from halley.protocols.bayeux import messages as bayeux
from halley.protocols.shapes import ARGS, ARGS_AND_KWARGS, NONE, has_shape
from halley.protocols.wamp import events as wamp
from halley.protocols.wamp.serializers import Format
from halley.settings import Cluster, History, Limits

SEEDS = st.integers(0, 2**32)
TIMES = 40
"""How many inputs an example makes."""

FORMS = [Format(f"wamp.2.{name}", bytes) for name in ("json", "msgpack", "cbor")]
EVERYTHING = Pattern(Match.DESCENDANTS, "")
QUERY_SENT = pages.query_to_json(QUERY)
KIND = ["wamp", "args", None, None, None, None]


def use(frame):
    """Do with a frame what nodes do with it: count its events, and make rows and messages of them."""
    made = []
    for is_front in (True, False):
        applied = StreamState(10, 10**9)
        assert applied.admit(1, 1_800_000_000_000_000, frame) == (frame.number == 1)
        entries = EventFactory(applied, 1, is_front=is_front).others(frame)
        events = [
            event
            for each in entries
            for event in (each.events(each.topics) if isinstance(each, EventRange) else [each.event])
        ]
        made.append([row_of(event, event.position) for event in events])
    assert made[0] == made[1]
    for event in [*events, *events_of(frame.rows)]:
        event.publication = event.publication or 1
        assert row_of(event, 1).is_intact
        orjson.loads(bayeux.event_frame(event))
        orjson.loads(bayeux.replay_frame(event))
        for form in FORMS:
            wamp.event_frame(event, 1, EVERYTHING, form)
        patterns = [*patterns_over(event.topic)]
        assert sum(len(each.topic) for each in patterns) <= TOPIC_CHARS * (TOPIC_SEGMENTS + 2)


@given(SEEDS)
def test_a_frame_is_refused_or_all_nodes_can_use_it(seed):
    """A frame that is taken and cannot be stored would stop each node at the same place, whenever it is started."""
    choose = Random(seed)
    for _ in range(TIMES):
        head, _, body = choose.choice([VALUE, *(data for data, _ in FRAMES)])[:-8].partition(b"\n")
        version, *columns = orjson.loads(head)
        at = choose.randrange(len(columns))
        columns[at] = inputs.spoiled(choose, columns[at], choose.choice((0, 1, 1, 2)))
        body = inputs.scrambled(choose, body) if choose.random() < 0.4 else body
        whole = json.dumps([version, *columns]).encode("utf-8", "surrogatepass") + b"\n" + body
        try:
            frame = unpack(whole + b"%08x" % crc32(whole))
        except BadFrame:
            continue
        use(frame)


@pytest.mark.parametrize(
    ("columns", "payloads"),
    [
        pytest.param([["t"], [KIND], [0, 0], [0, 0], [1, 1], {}, None, None], "é", id="half-a-character"),
        pytest.param([{"t": 0}, [KIND], [0], [0], [1], {}, None, None], "1", id="topics-by-name"),
        pytest.param(
            [["t"], [KIND], [0], [0], [1], {}, None, {"0": ["int", 2**63, []]}, None], "1", id="a-time-of-64-bits"
        ),
    ],
)
def test_columns_that_fit_and_cannot_be_stored(columns, payloads):
    with pytest.raises(BadFrame):
        unpack(sealed([1, "n1-0123456789ab", 1, *columns], payloads.encode()))


SHREDS = (b"1", b"[1", b"2]", b"1,2", b"", b"null", b'"a', b'b"', b'{"a":1', b"}", b"1e999", b'{"a":1}', b"[]", b"\xff")
ARGUMENTS = [
    *(
        b'{"args":[%b],"kwargs":{%b}}' % (args, kwargs)
        for args in (b"", *SHREDS)
        for kwargs in (b"", b'"a":1', b'"a":')
    ),
    *(b'{"args":1,"kwargs":{}}', b'{"args":[1],"kwargs":[]}', b'{"args": [1],"kwargs":{}}', b'{"kwargs":{},"args":[]}'),
    *(
        b'{"args":[1],"args":[2],"kwargs":{}}',
        b'{"args":[],"a":{"b":[],"kwargs":{}},"kwargs":{}}',
        b'{"args":[],"kwargs":{}',
    ),
    *(
        b'{"args":[{"a":[],"kwargs":{}}],"kwargs":{}}',
        b'{"args":[1],"kwargs":{},"kwargs":{}}',
        b'{"args":["],"kwargs":{}}',
    ),
    *(b"[" * levels + b"]" * levels for levels in (253, 254, 255, 256)),
]
PAYLOADS = st.tuples(
    st.sampled_from([*SHREDS, *ARGUMENTS]), st.sampled_from([BARE, NONE, ARGS, ARGS_AND_KWARGS, "json"])
)


def published(payload, shape):
    event = Event("t", payload)
    event.shape = shape
    return event


@given(st.lists(PAYLOADS, max_size=6))
def test_payloads_that_are_read_together_are_judged_one_by_one(payloads):
    """One that is two values makes up for two that are one, as far as counting goes."""
    events = [published(*each) for each in payloads]
    bounds.keep_payloads(events)
    for event, (payload, shape) in zip(events, payloads, strict=True):
        kept = payload if levels_of(payload) <= 254 else b"null"
        assert (event.payload, event.shape) == (kept, shape if has_shape(kept, shape) else BARE)


def levels_of(payload):
    """How many levels of nesting a JSON value has; infinite for what is none."""
    try:
        level, count = [orjson.loads(payload)], 0
    except ValueError:
        return math.inf
    while containers := [each for each in level if isinstance(each, dict | list)]:
        level = [each for one in containers for each in (one.values() if isinstance(one, dict) else one)]
        count += 1
    return count


@given(seed=SEEDS)
async def test_messages_of_the_stream(seed):
    """Whatever is delivered to the consumer of a node, it goes on behind that, or says that it does not."""
    choose = Random(seed)
    broker = Broker(Limits(), History())
    options = Cluster(node="a", front=choose.random() < 0.5)
    nats, applied = Asked(options), StreamState(100, 10**9)
    log = ClusterLog(Members(nats, 0.0), Disk(), broker.commits, applied, lambda: None, None)
    log._nats.away_since, log.sender._is_running = None, True
    broker.commits.begin(log, 0, log.direct.share)
    with capture_logs() as logged:
        for number in range(1, TIMES):
            data = pack(f"z-{number}", 1, choose.choice((ROWS, ROWS[:1])))
            reply = f"$JS.ACK.halley.c.1.{log.applied.sequence + 1}.{log.reader._in_consumer + 1}.5000.0"
            if choose.random() < 0.5:
                data = inputs.scrambled(choose, data)
            elif choose.random() < 0.3:
                reply = inputs.scrambled(choose, reply.encode()).decode("latin-1")
            rest = log.reader._delivered(Message("halley.d.x", reply, b"", data))
            assert rest is None
            if log.reader._received_at == 0.0:  # another consumer would be begun
                log.reader._in_consumer = 0
    stops = [each["why"] for each in logged if each["event"] == "cluster_diverged"]
    assert log.is_diverged == bool(stops)
    assert [each for each in logged if each["event"] == "fault"] == []
    if not stops and not log.reader.needed:  # else it gets from a keeper what it has missed
        event = Event("a", b"1")
        event.publication = event.time_us = 1
        broker.publish(event, 1.0)
        log.sender._send()
        await asyncio.sleep(0)
        before = log.applied.offset
        come_back(log)
        assert log.applied.offset == before + 1


class Nothing:
    """NetworkTables at a node that is not the home."""

    def serves(self, now):
        return False


@given(seed=SEEDS)
async def test_news_and_facts_of_other_nodes(seed):
    """Each is taken or counted; none is a fault, and none changes what this node says of itself."""
    choose = Random(seed)
    options = Cluster(node="a")
    nats = Asked(options)
    members = Members(nats, 0.0)
    exchange = NodeExchange(members)
    broker = Broker(Limits(), History())
    values = ClusterValues(exchange, broker, Nothing(), lambda: None)
    values._is_stale, values._term, values._changes = False, 7, 0
    applied = StreamState(10, 10**9)
    stream = StreamTrimmer(members, applied)
    status = ClusterStatus(members, stream, applied, StateHistory(), lambda: None)
    beat = json.loads(HEARTBEAT) | {"nt4": [7, 0, 1.5]}
    with capture_logs() as logged:
        for number in range(TIMES):
            times = choose.choice((0, 1, 2))
            news = {"node": "n1", "news": [["nt4", [7, values._changes + 1, "nt/a", True]], ["x", 1]]}
            exchange._received(Message("q", "r", b"", inputs.text_of(choose, inputs.spoiled(choose, news, times))))
            members.receive(inputs.text_of(choose, inputs.spoiled(choose, beat, times)), number)
            orjson.dumps(status.figures())
            found = values._home_fields()
            assert found is None or [isinstance(each, int | float) for each in found] == [True] * 3
    assert [each for each in logged if each["event"] == "fault"] == []


@given(SEEDS)
def test_facts_of_other_nodes(seed):
    choose = Random(seed)
    options = Cluster(node="a")
    members = Members(Connection(options), 0.0)
    for number in range(TIMES):
        members.receive(
            inputs.text_of(choose, inputs.spoiled(choose, json.loads(HEARTBEAT), choose.choice((1, 2, 3)))), number
        )
        members.check(number)
    others = members.others()
    orjson.dumps(differences(others, StateHistory().deviating(others)))
    for keeper in filter(None, map(LivingKeeper.of, others)):
        assert {type(each) for each in (keeper.head, *keeper.starts, *keeper.consumers.values())} <= {int, bool}


@given(SEEDS)
def test_the_state_of_a_keeper(seed):
    choose = Random(seed)
    told = {"node": "b", "log_id": "l", "publication_key": "7", "first": 1, "applied": json.loads(STATE), "erased": 0}
    for _ in range(TIMES):
        with suppress(RequestRefused, AnotherVersion):
            state = KeeperState.of(inputs.text_of(choose, inputs.spoiled(choose, told, choose.choice((0, 1, 2)))))
            StreamState(10, 100).restore(state.applied)


@given(SEEDS)
def test_pages_and_leases(seed):
    """A lease without an end would keep NetworkTables from all other nodes."""
    choose = Random(seed)
    for _ in range(TIMES):
        with suppress(ValueError, TypeError, AttributeError):
            sent = inputs.text_of(choose, inputs.spoiled(choose, json.loads(PAGE), choose.choice((0, 1, 2))))
            page, starts = pages.unpack(sent)
            assert {*map(type, starts)} == {int}
            for event in page.events:
                orjson.loads(wamp.event_frame(event, 1, EVERYTHING, FORMS[0]))
        told = {"node": "b", "run": "x", "number": 1, "lease_s": choose.choice((5.0, "nan", "inf", -1, 1e300))}
        lease = nt4_lease._lease_of(
            3, inputs.text_of(choose, inputs.spoiled(choose, told, choose.choice((0, 0, 1)))), 1.0
        )
        assert 0 <= lease.lease_s <= nt4_lease._LONGEST_S


class Asked(Connection):
    """A connection that keeps what is published."""

    def __init__(self, options):
        super().__init__(options)
        self.sent = []

    def publish(self, subject, data, reply="", _head=b""):
        self.sent.append(data)

    async def drained(self):
        pass


class Kept:
    """A history of one event."""

    head = start = 1
    rules = Rules()

    def read(self, query):
        assert all(type(each) in (int, bool) for each in (query.first, query.last, query.limit, query.max_bytes))
        return pages.unpack(PAGE)[0]

    def rows(self, first, last):
        return iter(())

    def erased(self, first, last):
        return []


async def at_once(_reader, work):
    return work()


@given(seed=SEEDS)
async def test_requests_to_a_keeper(no_waits, seed):
    """Each is answered, or refused with a word; none is a fault of the keeper."""
    choose = Random(seed)
    options = Cluster(node="a")
    nats = Asked(options)
    keeper = Keeper(nats, Kept(), at_once, None)
    wishes = (
        {"what": "read", "query": QUERY_SENT | {"last": 1}, "within_s": 5.0},
        {"what": "rows", "first": 1, "last": 2},
        {"what": "erased", "first": 1, "last": 2},
        {"what": "read", "query": QUERY_SENT, "within_s": choose.choice(("nan", "-inf", -1, 0))},
    )
    with capture_logs() as log:
        for _ in range(TIMES):
            wish = inputs.spoiled(choose, choose.choice(wishes), choose.choice((0, 1, 2)))
            await keeper._answer(Message("halley.k", "r", b"", inputs.text_of(choose, wish)))
    assert len(nats.sent) >= TIMES
    assert log == []


@pytest.mark.parametrize(("named", "sharer"), [("user ada", "user ada"), (None, "nodes"), ("", "nodes")])
async def test_a_page_is_read_in_the_turn_of_the_one_that_it_is_for(named, sharer):
    """A front names it; one of an earlier version does not, and the nodes themselves share a turn."""
    readers = []

    async def in_thread(reader, work):
        readers.append(reader.sharer)
        return work()

    keeper = Keeper(Asked(Cluster(node="a")), Kept(), in_thread, None)
    wish = {"what": "read", "query": QUERY_SENT | {"last": 1}, "within_s": 5.0}
    wish |= {} if named is None else {"sharer": named}
    await keeper._answer(Message("halley.k", "r", b"", json.dumps(wish).encode()))
    await keeper._answer(Message("halley.k", "r", b"", json.dumps({"what": "rows", "first": 1, "last": 1}).encode()))
    assert readers == [sharer, "nodes"]


@pytest.fixture(scope="module")
def no_waits():
    """Have a keeper wait for nothing that it does not have: many requests are for events that never come."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keeper_module, "_LONGEST_S", 0.0)
        yield


@pytest.fixture(scope="module")
def no_turns():
    """Have all that has arrived handled at once, however slow the machine is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire_module, "_TURN_S", math.inf)
        yield


@given(seed=SEEDS)
def test_bytes_from_a_nats_server(no_turns, seed):
    """They are messages, or the connection is given up; nothing is raised in the event loop."""
    choose = Random(seed)
    whole = b'INFO {"max_payload":10}\r\nPING\r\n+OK\r\nMSG a.b 1 3\r\nabc\r\n-ERR x\r\n'
    whole += b"HMSG a 2 r 12 14\r\nNATS/1.0\r\n\r\nxy\r\n"
    for _ in range(TIMES):
        wire, messages = Wire(lambda _: None), []
        transport = Transport()
        wire.connection_made(transport)
        wire.take = lambda _, message, messages=messages: messages.append(message)
        data = inputs.scrambled(choose, whole * choose.choice((1, 3)))
        while data and not transport.is_aborted:
            size = choose.choice((1, 7, 1_000))
            wire.data_received(data[:size])
            data = data[size:]
        for message in messages:
            assert (type(message.subject), type(message.status), type(message.header("A"))) == (str, str, str)


class Transport:
    """What a wire needs of one."""

    is_aborted = False

    def write(self, data):
        assert data == b"PONG\r\n"

    def abort(self):
        self.is_aborted = True
