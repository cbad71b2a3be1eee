"""What other nodes of a cluster, or strangers with their rights, send: what is spoiled is refused, and no other error.

Each example draws a seed, and spoils a valid message by it many times (`inputs`).
"""

from __future__ import annotations

import json
import math
from contextlib import suppress
from random import Random
from zlib import crc32

import orjson
import pytest
from cluster.golden import FRAMES, HEARTBEAT, PAGE, QUERY, STATE, VALUE, sealed
from fuzz import inputs
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from halley.cluster import keeper as keeper_module
from halley.cluster import nt4_lease, pages
from halley.cluster.applied import AnotherVersion, Applied
from halley.cluster.consistency import StateHistory, differences
from halley.cluster.frames import BadFrame, event_of, unpack
from halley.cluster.keeper import Keeper
from halley.cluster.keeper_client import KeeperState, LivingKeeper
from halley.cluster.members import Members
from halley.cluster.requests import Unanswered
from halley.history.stored import row_of
from halley.nats import wire as wire_module
from halley.nats.jetstream import Connection
from halley.nats.wire import Message, Wire
from halley.settings import Cluster

SEEDS = st.integers(0, 2**32)
TIMES = 40
"""How many inputs an example makes."""

QUERY_SENT = pages.query_to_json(QUERY)
KIND = ["wamp", "args", None, None, None, None]


def use(frame):
    """Do with a frame what nodes do with it: count its events, and make rows of the history of them."""
    Applied(10, 10**9).apply(1, 1_800_000_000_000_000, frame)
    for row in frame.rows:
        event = event_of(row)
        event.time_us, event.publication = 1, 1
        stored = row_of(event, 1)
        assert stored.nt4_time_us is None or -(2**63) <= stored.nt4_time_us < 2**63
    if frame.is_plain:
        assert len(frame.events(0, frame.count, frame.topics)[1]) == frame.count


@given(SEEDS)
def test_a_frame_is_refused_or_all_nodes_can_use_it(seed):
    """A frame that is taken and cannot be stored would stop each node at the same place, whenever it is started."""
    choose = Random(seed)
    for _ in range(TIMES):
        head, _, body = choose.choice([VALUE, *(data for data, _ in FRAMES)])[:-8].partition(b"\n")
        version, *columns = orjson.loads(head)
        at = choose.randrange(len(columns))
        columns[at] = inputs.spoiled(choose, columns[at], choose.choice((0, 1, 1, 2)))
        body = inputs.scrambled(choose, body) if choose.random() < 0.2 else body
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


@given(SEEDS)
def test_facts_of_other_nodes(seed):
    choose = Random(seed)
    options = Cluster(node="a")
    members = Members(options, Connection(options), 0.0)
    for number in range(TIMES):
        members.receive(
            inputs.text_of(choose, inputs.spoiled(choose, json.loads(HEARTBEAT), choose.choice((1, 2, 3)))), number
        )
        members.look(number)
    others = members.others()
    orjson.dumps(differences(others, StateHistory().deviating(others)))
    for keeper in filter(None, map(LivingKeeper.of, others)):
        assert {type(each) for each in (keeper.head, *keeper.starts, *keeper.consumers.values())} <= {int, bool}


@given(SEEDS)
def test_the_state_of_a_keeper(seed):
    choose = Random(seed)
    told = {"node": "b", "log_id": "l", "publication_key": "7", "first": 1, "applied": json.loads(STATE), "erased": 0}
    for _ in range(TIMES):
        with suppress(Unanswered, AnotherVersion):
            state = KeeperState.of(inputs.text_of(choose, inputs.spoiled(choose, told, choose.choice((0, 1, 2)))))
            Applied(10, 100).restore(state.applied)


@given(SEEDS)
def test_pages_and_leases(seed):
    """A lease without an end would keep NetworkTables from all other nodes."""
    choose = Random(seed)
    for _ in range(TIMES):
        with suppress(ValueError, TypeError, AttributeError):
            pages.unpack(inputs.text_of(choose, inputs.spoiled(choose, json.loads(PAGE), choose.choice((0, 1, 2)))))
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

    written = 1
    starts = (1,)

    async def read(self, query):
        assert all(type(each) in (int, bool) for each in (query.first, query.last, query.limit, query.max_bytes))
        return pages.unpack(PAGE)[0]

    async def some_rows(self, first, last):
        return [], first

    async def erased(self, first, last):
        return []


@given(seed=SEEDS)
async def test_requests_to_a_keeper(no_waits, seed):
    """Each is answered, or refused with a word; none is a fault of the keeper."""
    choose = Random(seed)
    options = Cluster(node="a")
    nats = Asked(options)
    keeper = Keeper(options, nats, Kept())
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
