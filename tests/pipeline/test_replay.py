"""`halley lake replay`: old events in their order, at their pace, for their audience, each published exactly once."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import signal
import time
from urllib.parse import urlsplit

import orjson
import pytest
from click.testing import CliRunner
from support.lakes import START_US, add, row
from support.messages import HANDSHAKE, connect, subscribe
from support.process import ended, launched, started
from support.server import brisk, serving
from support.wire import request

from halley.access.tokens import hash_of
from halley.broker.errors import HistoryUnavailable
from halley.broker.names import Match, Pattern
from halley.cli import main
from halley.client import Client
from halley.history import checksummed_json
from halley.history.writer import NotWritten
from halley.pipeline.errors import JobFailed, JobRejected
from halley.pipeline.queries import replay as room
from halley.pipeline.queries.events import Selection
from halley.pipeline.queries.replay import Plan, Replay
from halley.protocols.bayeux.names import to_channel
from halley.settings import Access, Record, Token

ALL = Selection(Pattern(Match.DESCENDANTS, ""))
TOKEN = "a-token-that-is-long-enough-for-halley"
KEEPING = {"enabled": True, "free_bytes": 0}


def show(done, of, note):
    """Ignore the progress."""


def has_position(lake):
    """Whether a replay of the lake was begun that has not come to its end."""
    return any((lake / "replays").iterdir())


async def replay(served, lake, plan, token=None, **options):
    """Begin or resume a replay and run it to its end."""
    work = Replay(lake, plan, **options)
    async with asyncio.timeout(60):
        async with Client(served.url, token=token) as client:
            return await work.run(client, show)


def at_full_speed(served, selection=ALL, prefix="/replay"):
    return Plan(selection, 0, prefix, served.url)


async def heard(served, channel="/replay/**"):
    """Return the channels and data that the server has recorded on `channel`."""
    wire, found, path = await served.wire(), [], f"/history{channel}?limit=300"
    while path:
        page = json.loads((await wire.request(request("GET", path))).body)
        found += [(each["channel"], each["data"]) for each in page["events"]]
        path = page["next"] and urlsplit(page["next"])._replace(scheme="", netloc="").geturl()
    return found


def make(lake, count, **fields):
    """Make a lake of `count` events on a few topics, in two files that overlap; return its rows."""
    topics = ["chat/lobby", "plc/temp", "caf!c3!a9", "a!21b"]
    rows = [row(n, topic=topics[n % 4], protocol=("bayeux", "nt4")[n % 2], **fields) for n in range(1, count + 1)]
    add(lake, "events", rows)
    return rows


def expected(rows, prefix="/replay"):
    return [(prefix + to_channel(each["topic"]), json.loads(each["payload"])) for each in rows]


async def test_events_come_again_in_their_order_below_the_prefix(tmp_path):
    """A channel, a pattern or a time can be replayed; replayed events are delivered and recorded like any others."""
    rows = make(tmp_path / "lake", 60)
    async with serving(brisk(data_dir=str(tmp_path), history=KEEPING)) as served:
        outcome = await replay(served, tmp_path / "lake", at_full_speed(served))
        assert (outcome.published, outcome.refused) == (60, 0)
        assert await heard(served) == expected(rows)
        selection = Selection(Pattern(Match.CHILDREN, "plc"), rows[9]["time_us"], rows[39]["time_us"])
        await replay(served, tmp_path / "lake", at_full_speed(served, selection, "/replay/again"))
        some = [each for each in rows[9:39] if each["topic"] == "plc/temp"]
        assert await heard(served, "/replay/again/**") == expected(some, "/replay/again")


async def test_each_event_keeps_its_trace(tmp_path):
    """It is as the publisher of then gave it, by whichever protocol."""
    one, two = (f"00-{digit * 32}-{digit * 16}-01" for digit in "12")
    details = [f'{{"traceparent":"{one}"}}', '{"binary":{}}', f'{{"publisher":7,"_traceparent":"{two}"}}', None]
    add(tmp_path / "lake", "events", [row(number, details=each) for number, each in enumerate(details, 1)])
    async with serving(brisk(data_dir=str(tmp_path), history=KEEPING)) as served:
        await replay(served, tmp_path / "lake", at_full_speed(served))
        page = json.loads((await (await served.wire()).request(request("GET", "/history/replay/**"))).body)
    assert [each.get("ext") for each in page["events"]] == [{"traceparent": one}, None, {"traceparent": two}, None]


async def test_each_event_keeps_its_audience(tmp_path):
    """Clients that were not in an event's audience receive it neither live nor from the history of the replay."""
    audiences = [None, [["ann"], None, [], []], [None, None, [], ["user"]], [None, ["user"], ["ann"], []]]
    rows = [
        row(n, audience=None if each is None else orjson.dumps(each).decode()) for n, each in enumerate(audiences, 1)
    ]
    add(tmp_path / "lake", "events", rows)
    everything = (Access("staff", "publish", "/replay/**"), Access("*", "*", "/**"))
    tokens = (
        Token(id="ann", role="user", hash=hash_of(TOKEN)),
        Token(id="rep", role="staff", hash=hash_of(TOKEN + "2")),
    )
    settings = brisk(data_dir=str(tmp_path), history=KEEPING, access=everything, tokens=tokens)
    async with serving(settings) as served:
        bearer = {"authorization": f"Bearer {TOKEN}"}
        wire = await served.wire()
        ann = (await wire.post(HANDSHAKE, **bearer)).messages[0]["clientId"]
        await wire.post(connect(ann))
        await wire.post(subscribe(ann, "/replay/**"))
        await replay(served, tmp_path / "lake", at_full_speed(served), token=TOKEN + "2")
        assert (await wire.post(connect(ann))).data == [{"n": 1}, {"n": 2}]
        answer = await wire.request(request("GET", "/history/replay/**", **bearer))
        assert [each["data"]["n"] for each in json.loads(answer.body)["events"]] == [1, 2]
        log = served.house.apis.archive().history
        stored = [each for batch in log.rows(1, log.head) for each in batch if each.topic.startswith("replay/")]
        assert [each.audience and json.loads(each.audience) for each in stored] == audiences


async def test_what_the_server_said_itself_is_never_replayed(tmp_path):
    """Statistics, alerts, sessions and replays are not replayed, even if requested: they would look like new ones."""
    topics = ["stats/10s/a", "alerts/a", "halley/sessions", "replay/a", "statistics/a"]
    add(tmp_path / "lake", "events", [row(n, topic=topic) for n, topic in enumerate(topics, 1)])
    async with serving(brisk(data_dir=str(tmp_path), history=KEEPING)) as served:
        await replay(served, tmp_path / "lake", at_full_speed(served))
        for topic in topics[:4]:
            selection = Selection(Pattern(Match.EXACT, topic))
            assert (await replay(served, tmp_path / "lake", at_full_speed(served, selection))).published == 0
        assert await heard(served) == [("/replay/statistics/a", {"n": 5})]


async def test_the_pace_is_that_of_then_divided_by_the_speed(tmp_path):
    """No event is published before it is due; a clock that was set back causes no wait."""
    moments_s = [0, 1, 1, -500, 3]
    add(tmp_path / "lake", "events", [row(n, time_us=START_US + s * 1_000_000) for n, s in enumerate(moments_s, 1)])
    came = []
    async with serving(brisk(data_dir=str(tmp_path), history=KEEPING)) as served:
        began = time.monotonic()
        work = Replay(tmp_path / "lake", Plan(ALL, 10, "/replay", served.url))
        async with Client(served.url) as client:
            await work.run(client, lambda done, of, _: came.append((done, of, time.monotonic() - began)))
        assert [data["n"] for _, data in await heard(served)] == [1, 2, 3, 4, 5]
    assert [came[0][:2], came[-1][:2]] == [(1, 5), (5, 5)]
    assert came[1][2] >= 0.1
    assert came[-1][2] >= 0.3


@pytest.mark.parametrize("stops", [1, 3])
async def test_it_can_be_stopped_anywhere_and_goes_on(tmp_path, monkeypatch, stops):
    """A replay that is cancelled, between or within batches, resumes with the same command and repeats no event."""
    rows = make(tmp_path / "lake", 300)
    chance = random.Random(stops)
    monkeypatch.setattr(room, "_BATCH_EVENTS", 7)
    async with serving(brisk(data_dir=str(tmp_path), history=KEEPING)) as served:
        published = itertools.count(1)
        reached = asyncio.Event()
        stop_at = 0

        def count(channel, data):
            if next(published) >= stop_at:
                reached.set()

        served.halley.local_session("stopwatch").subscribe("/replay/**", count)
        for _ in range(stops):
            stop_at += chance.randrange(5, 60)
            work = asyncio.create_task(replay(served, tmp_path / "lake", at_full_speed(served)))
            async with asyncio.timeout(30):
                await reached.wait()
            for _ in range(chance.randrange(20)):  # turns of the loop, of which one batch takes a few
                await asyncio.sleep(0)
            work.cancel()
            await asyncio.wait([work])
            assert work.cancelled()
            assert has_position(tmp_path / "lake")
            stop_at = len(await heard(served))
            reached.clear()
        assert len(await heard(served)) < 300
        await replay(served, tmp_path / "lake", at_full_speed(served))
        assert await heard(served) == expected(rows)
        assert not has_position(tmp_path / "lake")
        await replay(served, tmp_path / "lake", at_full_speed(served))
        assert await heard(served) == expected([*rows, *rows])


@pytest.mark.slow
async def test_a_killed_replay_goes_on_without_a_gap_or_a_double(tmp_path):
    """After SIGKILLs at any time the replay resumes: each event is published once, in order."""
    rows = make(tmp_path / "lake", 1_500)
    chance = random.Random(11)
    async with launched("--data-dir", "data", cwd=tmp_path) as server:
        port = server.port
        url = f"http://127.0.0.1:{port}"
        command = ["lake", "replay", "--channel", "/**", "--lake", "lake", "--server", url, "--speed"]
        killed = 0
        for _ in range(4):
            async with started(*command, "200x", cwd=tmp_path) as process:  # at least a second before each kill
                before = len(await heard(server))
                async with asyncio.timeout(60):
                    while process.process.returncode is None and len(await heard(server)) < before + 200:
                        await asyncio.sleep(chance.random() / 50)
                if process.process.returncode is not None:
                    break
                process.send_signal(signal.SIGKILL)
                killed += 1
        assert killed == 4
        done = await ended(*command, "max", cwd=tmp_path)
        assert (done.code, done.output) == (0, [])
        assert await heard(server) == expected(rows)


async def test_ctrl_c_says_how_to_go_on(tmp_path):
    """Ctrl-C gives exit code 130 and one sentence; the same command resumes."""
    rows = make(tmp_path / "lake", 5)  # a second apart
    async with launched("--data-dir", "data", cwd=tmp_path) as server:
        command = [
            "lake",
            "replay",
            "--channel",
            "/**",
            "--lake",
            "lake",
            "--server",
            f"http://127.0.0.1:{server.port}",
        ]
        async with started(*command, "--speed", "0.1x", cwd=tmp_path) as process:
            async with asyncio.timeout(60):
                while not await heard(server):
                    await asyncio.sleep(0.01)
            process.send_signal(signal.SIGINT)
            assert await process.exit_code() == 130
            assert process.lines[-1] == "halley: published 1 events; the same command resumes from there"
        done = await ended(*command, "--speed", "max", cwd=tmp_path)
        assert done.lines[-1] == "halley: published 4 events below /replay"
        assert await heard(server) == expected(rows)


async def test_a_rate_limit_changes_nothing_about_the_order(tmp_path):
    """A rate-limited event is refused for a moment only, and later events wait until it is published."""
    rows = make(tmp_path / "lake", 150)
    limits = {"publishes_per_s": 100, "publish_burst": 5, "exempt": ()}
    async with serving(brisk(data_dir=str(tmp_path), history=KEEPING, limits=limits)) as served:
        outcome = await replay(served, tmp_path / "lake", at_full_speed(served))
        assert (outcome.published, outcome.refused) == (150, 0)
        assert served.house.engine.replies.refused["403"] > 0
        assert await heard(served) == expected(rows)


async def test_a_history_that_takes_nothing_for_a_while_changes_nothing_about_the_order(tmp_path):
    """An event that cannot be stored durably is refused with 503; here every other group fails, as with a bad disk."""
    rows = make(tmp_path / "lake", 150)
    durable = (Record("/replay/**", durable=True),)
    async with serving(brisk(data_dir=str(tmp_path), history=KEEPING, record=durable)) as served:
        writer, verdicts = served.house.apis.archive().history.writer, itertools.cycle([False, True])
        write = writer._commit

        def fail_sometimes(entries, rows, *more):
            if rows and next(verdicts):
                writer._report(NotWritten(entries, HistoryUnavailable()))
            else:
                write(entries, rows, *more)

        writer._commit = fail_sometimes
        outcome = await replay(served, tmp_path / "lake", at_full_speed(served))
        assert (outcome.published, outcome.refused) == (150, 0)
        assert served.house.engine.replies.refused["503"] > 0
        assert await heard(served) == expected(rows)


async def test_a_disk_that_stays_full_ends_it_in_a_sentence(tmp_path, monkeypatch):
    """Events after the refused one are not published; once there is room, the same command resumes there."""
    rows = make(tmp_path / "lake", 20)
    monkeypatch.setattr(room, "_PATIENCE_S", 0.2)
    durable = (Record("/replay/**", durable=True),)
    async with serving(brisk(data_dir=str(tmp_path), history=KEEPING, record=durable)) as served:
        writer = served.house.apis.archive().history.writer
        monkeypatch.setattr(writer, "_check_files", lambda: None)  # does not check the free space
        writer._is_full = True
        with pytest.raises(JobFailed, match=r"^the server accepts no more events: 503::history_unavailable$"):
            await replay(served, tmp_path / "lake", at_full_speed(served))
        assert await heard(served) == []
        writer._is_full = False
        await replay(served, tmp_path / "lake", at_full_speed(served))
        assert await heard(served) == expected(rows)


async def test_events_that_the_server_does_not_take_are_told_and_left_out(tmp_path):
    """An event whose name is too long with the prefix is reported and left out; the others are published."""
    add(tmp_path / "lake", "events", [row(1), row(2, topic="x" * 250), row(3)])
    async with serving(brisk(data_dir=str(tmp_path), history=KEEPING)) as served:
        outcome = await replay(served, tmp_path / "lake", at_full_speed(served))
        assert (outcome.published, outcome.refused) == (2, 1)
        assert outcome.reasons == [f"offset 2, /{'x' * 250}: 405::channel_invalid"]


async def test_without_the_right_nothing_is_published(tmp_path):
    """Without the right the replay is refused, and its state stays, so that the same command can resume later."""
    make(tmp_path / "lake", 5)
    rules = (Access("*", "subscribe", "/**"),)
    tokens = (Token(id="ann", role="user", hash=hash_of(TOKEN)),)
    async with serving(brisk(data_dir=str(tmp_path), history=KEEPING, access=rules, tokens=tokens)) as served:
        with pytest.raises(JobRejected, match="does not let this be published below /replay"):
            await replay(served, tmp_path / "lake", at_full_speed(served), token=TOKEN)
        assert has_position(tmp_path / "lake")


def test_long_after_a_kill_the_doubt_is_told(tmp_path):
    """Long after a kill the server has forgotten the last batch's keys, so its events may or may not be published."""
    make(tmp_path / "lake", 9)
    plan = Plan(ALL, 1, "/replay", "http://127.0.0.1:1")
    work = Replay(tmp_path / "lake", plan)
    work._note(sending=7)
    assert Replay(tmp_path / "lake", plan).doubt is None
    (file,) = (tmp_path / "lake/replays").iterdir()
    checksummed_json.save(file, checksummed_json.load(file) | {"at_s": time.time() - 601})
    assert Replay(tmp_path / "lake", plan).doubt == (1, 7)
    assert Replay(tmp_path / "lake", plan, is_new=True).doubt is None
    file.write_text("{}")
    with pytest.raises(JobRejected, match="--restart begins from the start"):
        Replay(tmp_path / "lake", plan)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--prefix", "/chat"], "expected /replay"),
        (["--prefix", "/replayed"], "expected /replay"),
        (["--prefix", "/replay/a b"], "is not a channel"),
        (["--prefix", "/replay/"], "is not a channel"),
        (["--speed", "fast"], "fast is not a speed"),
        (["--speed", "0"], "0 is not a speed"),
        (["--speed", "-1x"], "-1x is not a speed"),
        (["--from", "2026-06-01"], "is not an RFC 3339 time"),
        (["--channel", "chat/a"], "chat/a is not a channel"),
        ([], "there is no lake at"),
    ],
)
def test_bad_input_gets_a_sentence(tmp_path, arguments, said):
    """Bad input gives exit code 2, before anything is sent."""
    ended = CliRunner().invoke(main, ["lake", "replay", "--channel", "/a", *arguments, "--lake", str(tmp_path)])
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert said in " ".join(ended.stderr.split())
