"""The log of a node, without NATS and with a writer that a test moves."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import fields, replace
from math import inf
from time import monotonic
from types import SimpleNamespace

import orjson
import pytest
from cluster.golden import sealed
from structlog.testing import capture_logs
from support.broker import Owner, event, join, payloads, session
from support.nats import nats_servers
from support.wire import DEADLINE_S, until

from halley.broker.broker import Broker
from halley.broker.errors import DiskFull, InboxFull, OutcomeUnknown, Unstorable
from halley.broker.events import Audience, Publications, new_key
from halley.broker.names import Match, Pattern, escaped
from halley.broker.outbox import Outbox
from halley.broker.ports import Durability, Page, Query
from halley.cluster import availability, bounds, broker_log, pages, store
from halley.cluster.applied import KeyEntry, StreamState
from halley.cluster.availability import Diverged, Healing, NatsAway
from halley.cluster.bounds import TEXT_CHARS, TOPIC_CHARS, TOPIC_SEGMENTS, EventTooLarge
from halley.cluster.broker_log import ClusterLog
from halley.cluster.frames import VERSION, KeeperAnnouncement, Row, SharedFields, Value, pack, unpack
from halley.cluster.front import Front
from halley.cluster.keeper_client import KeeperClient, KeeperState
from halley.cluster.members import Member, Members
from halley.cluster.missed import _OwnEvents
from halley.cluster.stream import describe, stream_config
from halley.history.folder import Identity
from halley.history.rules import Rules
from halley.history.stored import row_of
from halley.nats import subscriptions
from halley.nats.jetstream import Connection
from halley.nats.stream_position import Position
from halley.nats.wire import Message
from halley.settings import Cluster, History, Limits, Settings

NOW = 50.0


class Disk:
    """What the log needs of a data folder: a writer that writes when it is asked to, or fails."""

    log_id, publication_key, head, refusal = "log", new_key(), 0, None

    def __init__(self):
        self.queue, self.written, self.changes = [], [], []

    def change(self, change):
        self.changes.append((len(self.queue), change.sequence))

    def durability_of(self, topic):
        return Durability.NONE if topic == "none" else Durability.DURABLE

    def start_of(self, _pattern):
        return 1

    def append(self, entry):
        if self.refusal is not None:
            raise self.refusal
        self.queue.append(entry)


@pytest.fixture
def broker():
    return Broker(Limits(), History(inbox_bytes=65_536))


@pytest.fixture
def disk():
    return Disk()


def log_of(broker, store, **more):
    """A node's log that is not connected."""
    return log_with(Cluster(node="a", **more), StreamState(100, 10**9), broker, store)


def log_with(options, applied, broker, store):
    """The log of a node with these settings, which has applied so much."""
    nats = Connection(options)
    return ClusterLog(Members(nats, 0.0), store, broker.commits, applied, lambda: None, None)


@pytest.fixture
def log(broker, disk):
    log = log_of(broker, disk)
    log._nats.away_since, log.sender._is_running = None, True
    broker.commits.begin(log, 0, log.direct.share)
    return log


@pytest.fixture
def hearer(broker):
    joined = join(broker, "h")
    broker.subscribe(joined, Pattern(Match.DESCENDANTS, ""))
    return joined


def publish(broker, payload, topic="a", source=None):
    return broker.publish(event(payload, topic), NOW, source=source)


def write(log, disk, *, fails=False):
    """Let the writer take what is queued: in order, those with the next offset only, and none where it fails."""
    queue, disk.queue = disk.queue, []
    for each in queue:
        head = len(disk.written)
        if each.is_recorded and (fails or each.position != head + 1):
            log.writer.refused([each], DiskFull(), NOW)
            continue
        if each.is_recorded:
            disk.written.append(each.event.payload)
        log.writer.committed([each], head + 1, NOW)


def come_back(log):
    """Let the oldest frame under way come back from the stream."""
    return log._apply(Position(log.applied.sequence + 1, 1, 10**15, 0), unpack(log.sender._under_way[0].data))


async def test_an_event_has_its_turn_behind_those_of_its_publisher(broker, log, disk, hearer):
    """One that is not recorded is in no frame, and delivered behind the one that was published before it."""
    source = object()
    publish(broker, 1, source=source)
    publish(broker, 2, "none", source)
    log.sender._send()
    publish(broker, 3, "none", source)
    publish(broker, 4, source=source)
    log.sender._send()
    come_back(log)
    come_back(log)
    write(log, disk)
    assert payloads(hearer.outbox.take()) == [b"1", b"2", b"3", b"4"]
    assert disk.written == [b"1", b"4"]


async def test_what_the_disk_has_not_taken_is_written_again_in_order(broker, log, disk, hearer):
    """An event in the stream must get onto every disk: nothing is delivered before, and nothing overtakes it."""
    source = object()
    for number in (1, 2):
        publish(broker, number, source=source)
        publish(broker, f"{number}5", "none", source)
        log.sender._send()
    come_back(log)
    write(log, disk, fails=True)
    assert len(hearer.outbox) == 0
    log.writer.check()
    come_back(log)
    write(log, disk)
    log.writer.check()
    write(log, disk)
    assert payloads(hearer.outbox.take()) == [b"1", b"15", b"2", b"25"]
    assert (disk.written, len(broker.commits.pending)) == ([b"1", b"2"], 0)


async def test_what_is_saved_is_never_ahead_of_what_is_written(broker, log, disk):
    """Each frame's change goes to the disk behind its events, and behind those that it has not taken."""
    publish(broker, 1)
    log.sender._send()
    come_back(log)
    assert disk.changes == [(1, 1)]
    write(log, disk, fails=True)
    log.sender.command(KeeperAnnouncement("a"))
    log.sender._send()
    come_back(log)
    assert disk.changes == [(1, 1)]
    log.writer.check()
    assert disk.changes == [(1, 1), (1, 2)]
    log._apply(Position(3, 1, 10**15, 0), None)
    assert disk.changes[2:] == [(1, 3)], "a message that is no frame has its place too"


async def test_what_waits_for_the_stream_is_bounded(broker, log):
    """Beyond `history.inbox_bytes` a publish is refused, and counted at that limit."""
    most = 65_536 // event(0).nbytes
    for _ in range(most):
        publish(broker, 0)
    with pytest.raises(InboxFull):
        publish(broker, 0)
    assert broker.hits["inbox_bytes"] == 1


async def test_a_run_that_all_nodes_have_forgotten_is_begun_again(broker, log, disk, hearer):
    """A node that was cut off for more than a day sends what is under way under a new name."""
    publish(broker, 1)
    log.sender._send()
    come_back(log)
    publish(broker, 2)
    log.sender._send()
    log.applied._runs.clear()
    frame = unpack(log.sender._under_way[0].data)
    log._apply(Position(2, 1, 10**15, 0), frame)
    come_back(log)
    write(log, disk)
    assert payloads(hearer.outbox.take()) == [b"1", b"2"]


async def test_a_frame_that_came_before_its_turn_is_sent_again_under_its_number(broker, log, disk):
    """A copy of the frame before it may still come: under another name the same events would be stored twice."""
    publish(broker, 1)
    log.sender._send()
    publish(broker, 2)
    log.sender._send()
    second = unpack(log.sender._under_way[1].data)
    log._apply(Position(1, 1, 10**15, 0), second)
    assert unpack(log.sender._under_way[1].data).run == second.run


async def test_a_frame_fits_into_a_message(broker, log):
    """However long the names are that its events have."""
    for number in range(60):
        publish(broker, number, f"{'n' * 1_000}/{number}")
    log._nats._wire.info["max_payload"] = 20_000
    while log.sender._inbox:
        log.sender._send()
        assert len(log.sender._under_way.popleft().data) <= 20_000


async def test_events_past_the_stream_fit_into_messages(broker, log, monkeypatch):
    """However long their names and audiences are: the server would end the connection."""
    sent = []
    monkeypatch.setattr(log._nats, "publish", lambda _subject, data: sent.append(data))
    for number in range(100):
        each = event(number, "none")
        each.publication = 1
        each.audience = Audience(tuple(f"{'x' * 200}{number}.{name}" for name in range(200)), None, (), ())
        log.direct.share(each)
    log.direct._send()
    assert all(len(data) <= log._nats.max_payload for data in sent)
    assert [row.payload for data in sent for row in unpack(data).rows] == [b"%d" % number for number in range(100)]


async def test_frames_that_the_stream_has_lost_are_waited_for(broker, log, monkeypatch):
    """The node must not number what follows: the others have given those offsets to what is missing."""
    log.reader._in_consumer = 1
    assert log.reader._is_next(Position(1, 1, 0, 0), None)
    assert not log.reader._is_next(Position(2, 1, 0, 0), None)
    assert (log.reader.needed, log.is_diverged) == (1, False)
    assert not log.reader._is_next(Position(1, 1, 0, 0), None), "nothing is read until a keeper has helped"
    monkeypatch.setattr(availability, "AWAY_S", 0.0)
    await log._check(NOW)
    with pytest.raises(Healing):
        publish(broker, 1)
    await log.close()


async def test_a_frame_of_a_later_version_stops_the_node(broker, log):
    """It cannot know which offsets the other nodes have given to what follows."""
    log.reader._in_consumer = 0
    for data in (b"garbage", sealed([VERSION + 1, "b-1", 1, "other columns"])):
        assert not log.is_diverged
        message = Message("subject", f"$JS.ACK.halley.c.1.{log.applied.sequence + 1}.1.5000.0", b"", data)
        log.reader._in_consumer = 0
        log.reader._delivered(message)
    assert (log.is_diverged, log.availability.is_stream_replaced, log.foreign, log.applied.sequence) == (
        True,
        False,
        1,
        1,
    )
    with pytest.raises(Diverged):
        publish(broker, 1)


def delivered(log, data):
    """Have the next message of the stream delivered."""
    log.reader._in_consumer = 0
    return log.reader._delivered(
        Message("subject", f"$JS.ACK.halley.c.1.{log.applied.sequence + 1}.1.5000.0", b"", data)
    )


async def test_an_error_while_applying_stops_the_node_and_says_why(broker, log, disk):
    """Half of a frame may be applied. The other nodes go on: it is not told them that the stream is another."""
    kind = SharedFields("bayeux", "bare", None, None, None, None)
    disk.refusal = KeyError("<script>")
    with capture_logs() as logged:
        assert delivered(log, pack("b-1", 1, [Row("a", b"1", kind)])) is None
        assert delivered(log, pack("b-1", 2, [Row("a", b"2", kind)])) is None
    whys = [each["why"] for each in logged if each["event"] == "cluster_diverged"]
    assert whys == ["an error while applying the stream: KeyError"]
    assert (log.is_diverged, log.availability.is_stream_replaced, log.applied.sequence) == (True, False, 1)
    with pytest.raises(Diverged):
        publish(broker, 1)


async def test_an_error_behind_a_wait_stops_the_node_too(broker, log, disk):
    """The disk took nothing for a while, and the error comes when it does."""
    kind = SharedFields("bayeux", "bare", None, None, None, None)
    disk.refusal = DiskFull()
    rest = delivered(log, pack("b-1", 1, [Row("a", b"1", kind)]))
    disk.refusal, disk.queue = None, None  # it has no `append`
    await rest
    assert (log.is_diverged, log.availability.is_stream_replaced) == (True, False)


async def test_an_event_that_can_never_be_written_stops_the_node(broker, log, disk):
    """Else all behind it would be tried again and again, and the node would seem to be well."""
    publish(broker, 1)
    log.sender._send()
    come_back(log)
    log.writer.refused(disk.queue, Unstorable(), NOW)
    assert (log.is_diverged, log.availability.is_stream_replaced) == (True, False)


async def test_positions_that_were_passed_over_in_delivering_stop_the_node(broker, log, disk):
    """An error of one subscriber does not, nor of the keeper of values."""
    row = Row("a", b"1", SharedFields("bayeux", "bare", None, None, None, None))
    reported = []
    broker.commits.report = lambda what, _: reported.append(what)

    def fail(*_):
        raise KeyError

    def arrive(number, rows):
        assert delivered(log, pack("b-1", number, rows)) is None
        queue, disk.queue = disk.queue, []
        log.writer.committed(queue, number, NOW)

    class Failing(Owner):
        def overflow(self, session, event, now):
            fail()

    slow = session("slow", Failing(), Outbox(0, 0))
    broker.open(slow, inf, NOW)
    broker.subscribe(slow, Pattern(Match.EXACT, "a"))
    broker.commits.value_arrived = fail
    arrive(1, [row._replace(value=Value("double", 7)), row])
    assert (reported, slow.closed, log.is_diverged) == (["values", "overflow"], "fault", False)
    broker.commits._fan_out = fail
    arrive(2, [row, row])
    assert log.is_diverged


async def test_an_event_that_other_nodes_would_not_take_is_refused(broker, log):
    """Sent all the same it would never come back, and nothing behind it."""
    with pytest.raises(EventTooLarge):
        publish(broker, 1, topic="a" * (TOPIC_CHARS + 1))
    each = event(1)
    each.authid = "x" * (TEXT_CHARS + 1)
    with pytest.raises(EventTooLarge):
        broker.publish(each, NOW)
    log.direct.share(each)  # it would take the others of its frame with it
    assert not (log.sender._inbox)
    assert not (log.direct._rows)
    each.authid = "x" * TOPIC_CHARS
    broker.publish(each, NOW)
    log.sender._send()
    assert unpack(log.sender._under_way[0].data).kinds[0].authid == each.authid


def test_settings_allow_nothing_that_other_nodes_refuse():
    """A character of a name takes up to twelve in a topic, and the topic may be in a realm."""
    highs = {each.name: each.metadata["high"] for each in (*fields(Limits), *fields(History))}
    assert len(escaped("🙂")) * highs["topic_chars"] < TOPIC_CHARS
    assert highs["topic_segments"] < TOPIC_SEGMENTS
    assert highs["audience_chars"] + highs["key_chars"] < TEXT_CHARS
    assert highs["nesting"] < bounds._NESTING


async def test_a_node_stops_where_most_others_have_made_something_else_of_the_stream(broker, log):
    """The others go on."""
    log.applied.apply(1, 5, None)
    log.states.note(log.applied)
    facts = {"sequence": 1, "state": "1-5-"}
    log.compare([Member("b", "bbbb", facts, 0.0)])
    assert not log.is_diverged
    log.compare([Member("b", "bbbb", facts, 0.0), Member("c", "cccc", facts, 0.0)])
    assert (log.is_diverged, log.availability.is_stream_replaced) == (True, False)


async def test_nodes_share_what_frames_there_may_be(log):
    """A node sends as many as the others leave, and its share where they leave less."""
    log.sender.share_stream(4, log.frames_in)
    assert log.sender._frame_s == 1 / 500
    for others, frames_per_s in ((100, 400), (100, 400), (450, 125), (2_000, 125), (0, 500)):
        log.frames_in += others + 7
        log.sender.frames += 7
        log.sender.share_stream(4, log.frames_in)
        assert log.sender._frame_s == 1 / frames_per_s


async def test_what_comes_next_waits_for_a_writer_that_takes_nothing(broker, log, disk, hearer, monkeypatch):
    """A full disk: events of the stream keep their order, and what is behind them is not done before."""
    monkeypatch.setattr(store, "_RETRY_S", 0.0)
    publish(broker, 1)
    log.sender._send()
    disk.refusal = DiskFull()
    rest = asyncio.ensure_future(come_back(log))
    for _ in range(5):
        await asyncio.sleep(0)
    assert (rest.done(), log.writer.is_stalled, disk.queue) == (False, True, [])
    disk.refusal = None
    await rest
    write(log, disk)
    assert (log.writer.is_stalled, disk.written, payloads(hearer.outbox.take())) == (False, [b"1"], [b"1"])


@pytest.mark.slow
async def test_what_was_dropped_while_the_writer_took_nothing_comes_again(broker, disk, tmp_path, monkeypatch, capsys):
    """The node sees by the numbers of its consumer that messages are missing, and begins another behind the last."""
    monkeypatch.setattr(subscriptions, "_WAITING_BYTES", 20_000)
    async with nats_servers(tmp_path) as servers:
        options = Cluster(urls=(servers.urls,), node="a", settled_by="keeper")
        described = describe(Settings(cluster=options), replace(Identity.new(), log_id=Disk.log_id), 0)
        other, applied = Connection(replace(options, node="b")), StreamState(100, 10**9)
        applied.stream = described["stream"]
        await other.open()
        await other.ask(f"STREAM.CREATE.{options.space}", stream_config(Settings(cluster=options), described))
        log = log_with(options, applied, broker, disk)
        broker.commits.begin(log, 0, log.direct.share)
        disk.refusal = DiskFull()
        log.begin()
        for number in range(1, 201):
            row = Row("/a", b"%d" % number, SharedFields("bayeux", "json", None, None, None, None))
            await other.request(f"{options.space}.f.b", pack("b-1", number, [row]))
        await until(lambda: log.writer.is_stalled and "too much waits" in capsys.readouterr().out)
        disk.refusal = None
        await until(lambda: len(disk.queue) == 200)
        assert [entry.event.payload for entry in disk.queue] == [b"%d" % number for number in range(1, 201)]
        await log.close()
        await other.close()


@pytest.mark.slow
async def test_a_node_with_another_log_than_the_stream_takes_no_events(broker, disk, tmp_path, capsys):
    """It says so, and the others go on."""
    async with nats_servers(tmp_path) as servers:
        options = Cluster(urls=(servers.urls,), node="a", settled_by="keeper")
        described = describe(Settings(cluster=options), Identity.new(), 0)
        other, applied = Connection(replace(options, node="b")), StreamState(100, 10**9)
        applied.stream = described["stream"]
        await other.open()
        await other.ask(f"STREAM.CREATE.{options.space}", stream_config(Settings(cluster=options), described))
        log = log_with(options, applied, broker, disk)
        broker.commits.begin(log, 0, log.direct.share)
        log.begin()
        await until(lambda: "that of a log with another id" in capsys.readouterr().out)
        assert (log.is_diverged, log.availability.is_stream_replaced, type(log.refusal)) == (True, False, Diverged)
        await log.close()
        await other.close()


async def test_without_nats_what_is_in_no_frame_is_refused(broker, log, disk, hearer):
    """It is stored nowhere. What is in one may be; and what is not durable stays behind that."""
    source, news = object(), []
    told = SimpleNamespace(settled=lambda event, refusal, _now: news.append((event.payload, type(refusal))))
    publish(broker, 1, source=source).waiters.append(told)
    log.sender._send()
    publish(broker, 2, source=source).waiters.append(told)
    publish(broker, 3, "none", source)
    log._nats.away_since = monotonic() - 0.9
    await log._check(monotonic())
    assert news == []
    log._nats.away_since -= 0.2
    await log._check(monotonic())
    assert news == [(b"2", NatsAway)]
    assert len(hearer.outbox) == 0
    with pytest.raises(NatsAway):
        publish(broker, 4)
    log._nats.away_since = None
    publish(broker, 5, source=source)
    log.sender._send()
    come_back(log)
    come_back(log)
    write(log, disk)
    assert payloads(hearer.outbox.take()) == [b"1", b"3", b"5"]
    assert (disk.written, log.sender._waiting_bytes) == ([b"1", b"5"], 0)


async def test_while_another_node_says_that_the_stream_went_back_none_takes_events(broker, log):
    """They might get the offsets of events that the other one has."""
    log.availability.is_disputed = True
    with pytest.raises(Diverged):
        publish(broker, 1)
    log.availability.is_disputed = False
    publish(broker, 1)


async def test_an_offset_is_of_another_log_only_if_the_stream_has_no_more(broker, log, disk, monkeypatch):
    """Behind a lost connection NATS answers before frames come: a reader with such an offset would get events twice."""
    publish(broker, 1)
    log.sender._send()
    come_back(log)
    write(log, disk)
    ends_with = log.applied.sequence + 1

    async def stream_info():
        if ends_with is None:
            raise TimeoutError
        return {"state": {"last_seq": ends_with}}

    monkeypatch.setattr(broker_log, "_REACH_S", 0.05)
    monkeypatch.setattr(log._nats, "stream_info", stream_info)
    assert await log.reach(1)
    assert not await log.reach(2)
    ends_with = None
    assert not await log.reach(2)
    ends_with = log.applied.sequence
    assert await log.reach(2)
    publish(broker, 2)
    log.sender._send()
    come_back(log)
    ends_with = log.applied.sequence
    assert not await log.reach(3)  # the disk has not taken what came
    write(log, disk)
    assert await log.reach(2)
    log.availability.diverge("another stream")
    assert not await log.reach(3)


async def test_a_control_is_a_frame_of_its_own(broker, log, disk):
    """So that it stays in the stream when frames with erased events are deleted."""
    publish(broker, 1)
    sent = log.sender.command(KeeperAnnouncement("a"))
    log.sender._send()
    log.sender._send()
    frames = [unpack(each.data) for each in log.sender._under_way]
    assert [(frame.control, len(frame.rows)) for frame in frames] == [(KeeperAnnouncement("a"), 0), (None, 1)]
    log._apply(Position(1, 1, 10**15, 0), frames[0])
    assert await sent == 1


# Own events among those that the stream no longer has


class Reply:
    """Who waits for what becomes of a publish."""

    def __init__(self):
        self.settled_as = []

    def settled(self, event, refusal, now):
        self.settled_as.append(event.position if refusal is None else type(refusal))


def publishes(broker, *payloads, key=None):
    """Publish events that wait; return their replies."""
    replies = []
    for payload in payloads:
        published = event(payload, "a")
        published.idempotency_key = key
        broker.publish(published, NOW)
        replies.append(Reply())
        broker.commits.pending[-1].waiters.append(replies[-1])
    return replies


def missed_rows(*payloads):
    """The rows that a keeper has of events with these payloads."""
    found = []
    for offset, payload in enumerate(payloads, 1):
        each = event(payload, "a")
        each.time_us, each.publication = 1, offset
        found.append(row_of(each, offset))
    return found


def settled(broker, log, rows, number=1):
    """Let a node find its own events among missed rows, and answer their publishers."""
    own, found = _OwnEvents(log.sender), StreamState(100, 10**9)
    found._runs[log.sender.run] = number, 1
    found.offset = len(rows)
    own.begin(log.applied, found)
    for row in rows:
        own.without(row)
    own.resolve(found, Publications(new_key()), broker.commits, NOW)


async def test_own_events_that_are_missed_are_known_by_what_is_in_them(broker, log):
    """Also equal ones, if there are as many rows; those in frames that are not stored stay under way."""
    replies = publishes(broker, 1, 2, 2)
    log.sender._send()
    later = publishes(broker, 3)
    log.sender._send()
    settled(broker, log, missed_rows(7, 2, 1, 2))
    assert [reply.settled_as for reply in (*replies, *later)] == [[3], [2], [4], []]
    assert [frame.number for frame in log.sender._under_way] == [2]
    assert len(broker.commits.pending) == 1


async def test_an_own_event_like_one_of_another_node_has_an_unknown_outcome(broker, log):
    """Nobody can say which of the rows is whose; it is not sent again, nor delivered again."""
    replies = publishes(broker, 1, 2)
    log.sender._send()
    settled(broker, log, missed_rows(1, 2, 1))
    assert [reply.settled_as for reply in replies] == [[OutcomeUnknown], [2]]
    assert (len(log.sender._under_way), len(broker.commits.pending)) == (0, 0)


async def test_an_own_event_with_a_key_is_known_by_it(broker, log):
    """It may be an earlier one that counts."""
    (reply,) = publishes(broker, 1, key="k")
    log.sender._send()
    own, found = _OwnEvents(log.sender), StreamState(100, 10**9)
    found._runs[log.sender.run] = 1, 1
    found._keys.anonymous[None, "k"] = KeyEntry(5, 1, "a", 1)
    own.begin(log.applied, found)
    own.resolve(found, Publications(new_key()), broker.commits, NOW)
    assert reply.settled_as == [5]


async def test_frames_of_a_run_that_is_forgotten_are_not_sent_again(broker, log, disk):
    """Whether they have counted is unknown, unless their rows are found."""
    publish(broker, 0)
    log.sender._send()
    come_back(log)
    write(log, disk)
    replies = publishes(broker, 1, 2)
    log.sender._send()
    settled(broker, log, missed_rows(2), number=0)
    assert [reply.settled_as for reply in replies] == [[OutcomeUnknown], [1]]
    assert len(log.sender._under_way) == 0


# A front


STATE = KeeperState("k", "log", new_key(), 1, {"offset": 0}, 0)


@pytest.fixture
def keepers():
    options = Cluster(node="a")
    nats = Connection(options)
    return KeeperClient(Members(nats, 0.0), Rules([], []), STATE)


@pytest.fixture
def front(broker, keepers):
    """The log of a front that waits until a keeper has what the stream has."""
    store = Front(
        STATE,
        Rules([], []),
        keepers,
        lambda report: log.writer.committed(report.entries, report.first, NOW),
        lambda: False,
        is_waiting=True,
        inbox_bytes=10_000_000,
    )
    log = log_of(broker, store, front=True)
    broker.commits.begin(log, 0, log.direct.share)
    return log


async def come(log, number, *rows):
    """Let a frame of another node come from the stream."""
    frame = unpack(pack("b-1", number, rows))
    log._apply(Position(log.applied.sequence + 1, 1, 10**15, 0), frame)


def rows_on(*topics, key=None):
    kind = SharedFields("bayeux", "bare", None, None, None, None)
    return [Row(topic, f"{number}".encode(), kind, key) for number, topic in enumerate(topics)]


async def test_a_front_makes_the_events_that_somebody_subscribes_to(broker, front, keepers):
    """Others are counted: positions and publications are those that they have at every node."""
    joined = join(broker, "s")
    broker.subscribe(joined, Pattern(Match.EXACT, "b"))
    await come(front, 1, *rows_on("a", "b", "a", "b"))
    await come(front, 2, *rows_on("b", key="k"))
    await come(front, 3, *rows_on(*["a"] * 450, "b"))
    assert len(joined.outbox) == 0  # until a keeper has them
    keepers.written = 456
    front._store.report_stored()
    taken = joined.outbox.take()
    assert [each.position for each in taken] == [2, 4, 5, 456]
    publications = Publications(front._store.publication_key)
    assert [publications.number_of(each.publication) for each in taken] == [2, 4, 5, 456]
    assert all(each.time_us == 10**15 for each in taken)
    assert (broker.commits.tail.head, broker.commits.recorded) == (456, 456)


async def test_who_subscribes_before_events_are_delivered_gets_them(broker, front, keepers):
    """What counts is who subscribes when a keeper has them, not when they came."""
    await come(front, 1, *rows_on("a", "b"))
    joined = join(broker, "s")
    broker.subscribe(joined, Pattern(Match.EXACT, "b"))
    keepers.written = 2
    front._store.report_stored()
    assert payloads(joined.outbox.take()) == [b"1"]


async def test_events_that_were_passed_over_are_in_the_tail(broker, front, keepers):
    """Sessions that replay read the newest events from memory, from any offset, with those before and behind."""
    await come(front, 1, *rows_on("a", "b", "c"))
    await come(front, 2, *rows_on("d", key="k"))
    await come(front, 3, *rows_on("e", "f"))
    keepers.written = 6
    front._store.report_stored()
    tail = broker.commits.tail
    for offset in range(7):
        found = tail.after(offset)
        assert [each.position for each in found] == [*range(offset + 1, 7)]
        assert [each.topic for each in found] == [*"abcdef"[offset:]]
    assert tail.after(7) == []
    tail.skip_to(6)
    assert tail.after(5) is None


async def test_the_tail_drops_whole_ranges(broker, front, keepers):
    """It reaches back as far as what is left: no part of a range is missing."""
    tail = broker.commits.tail
    count = 0
    for number in range(1, 20):
        await come(front, number, *rows_on(*["a"] * 100))
        count += 100
    keepers.written = count
    front._store.report_stored()
    reaches = next(offset for offset in range(count) if tail.after(offset) is not None)
    assert reaches % 100 == 0
    assert len(tail.after(reaches)) == count - reaches > 100


async def test_a_front_that_knows_one_keeper_waits_for_others_that_may_have_what_a_page_misses(keepers, monkeypatch):
    """One that has just started may know the damaged one alone, and no client is to see a gap then."""
    members = keepers._members

    def hear(name):
        kept = {"head": 9, "starts": [1], "takes": True, "bytes": 1, "consumers": {}}
        members.receive(orjson.dumps({"node": name, "id": f"{name}aaa", "key": "x", "age_s": 1, "kept": kept}), NOW)

    @asynccontextmanager
    async def answers(subject, *_):
        """A keeper's answer; that of the damaged one has a gap, and only then the other is heard for the first time."""
        is_damaged = subject.endswith("k1")
        if is_damaged:
            asyncio.get_running_loop().call_later(0.05, hear, "k2")
        page = pages.pack(Page([], 9, True, [(1, 4)] if is_damaged else []), [1])

        async def following():
            return Message("inbox", "", b"", b".00000000" + page)

        yield following

    monkeypatch.setattr(members.nats, "answers", answers)
    members._listens_since = monotonic()
    hear("k1")
    query = Query(((Pattern(Match.EXACT, "a"), 0),), 9)
    assert (await keepers.read(query, DEADLINE_S, "")).gaps == []
