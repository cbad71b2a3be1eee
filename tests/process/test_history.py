"""The event history of `halley serve`: its folder, what survives a restart, and its refusals."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
from functools import partial
from pathlib import Path

import pytest
from support import wamp
from support.messages import HANDSHAKE, connect, publish, subscribe
from support.process import ended, launched, replace_text
from support.wire import DEADLINE_S, request

import halley
from halley.history.folder import is_of_log
from halley.server.persistence import FILES

WRONG_USE = 2


async def read(server, path):
    """Return the response to a GET of the history, as JSON."""
    return json.loads((await (await server.wire()).request(request("GET", path))).body)


async def positions(server, channel):
    """Return position and data of all events of a channel."""
    return [(event["position"], event["data"]) for event in (await read(server, f"/history{channel}"))["events"]]


async def test_its_folder_is_told_at_start_and_can_be_chosen(tmp_path):
    """The default is `halley-data` in the folder in which the server was started."""
    (tmp_path / "here").mkdir()
    for arguments, folder in (((), tmp_path / "here/halley-data"), (("--data-dir", "../else"), tmp_path / "else")):
        async with launched(*arguments, cwd=tmp_path / "here") as server:
            assert f"history: {folder}" in server.lines
            assert (folder / "log.json").is_file()
            assert folder.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("is_old", [False, True])
async def test_only_its_owner_may_read_what_is_in_its_folder(is_old, tmp_path):
    """This holds whatever the folder's mode, also for files of an earlier version; those of jobs stay as they are."""
    folder = tmp_path / "halley-data"
    folder.mkdir(mode=0o755)
    arguments = ("--nt4", "--nt4-port", "0")
    size = {"HALLEY_HISTORY_SEGMENT_BYTES": "65536"}
    if is_old:
        async with launched(*arguments, cwd=tmp_path, **size) as server:
            wire = await server.wire()
            await wire.post(*(publish("/a", "x" * 9_000) for _ in range(20)))
            server.send_signal(signal.SIGKILL)
            await server.exit_code()
        (folder / "networktables.json").write_text("[]")
        for file in folder.iterdir():
            file.chmod(0o644)
    of_jobs = [folder / "consumers" / "ingest.json", folder / "lake" / "table", folder / "of somebody"]
    for file in of_jobs:
        file.parent.mkdir(exist_ok=True)
        file.touch(mode=0o666)
        file.chmod(0o666)
    async with launched(*arguments, cwd=tmp_path, **size) as server:
        wire = await server.wire()
        await wire.post(*(publish("/a", "x" * 9_000) for _ in range(20)))
        async with await wamp.join(f"ws://127.0.0.1:{server.port}/wamp") as client:
            await client.send([32, 1, {}, "a"])  # SUBSCRIBE
            await client.receive()
        async with asyncio.timeout(DEADLINE_S):
            while not any(folder.glob("seg-*.seal")):
                await asyncio.sleep(0.01)
            await wire.post(publish("/a", "x"))  # into the next segment, if the last one was sealed with all the others
            while not is_settled(folder):
                await asyncio.sleep(0.01)
        modes = {file.name: file.stat().st_mode & 0o077 for file in folder.iterdir() if file.is_file()}
        assert {name: mode for name, mode in modes.items() if mode} == {"of somebody": 0o066}
        assert {name for name in modes if not is_of_log(Path(name))} <= {"of somebody", *FILES}  # else backups lack it
        endings = {name.partition(".")[2] for name in modes}
        assert endings >= {"db", "db-wal", "db-shm", "seal", "json"}
        assert modes.keys() >= {"log.json", "mark", "lock", "wamp-subscription-ids"}
    assert {file.stat().st_mode & 0o777 for file in of_jobs} == {0o666}


def is_settled(folder):
    """Whether all segments but the newest are sealed; until then, files come and go."""
    kinds = ("seg-*.db", "seg-*.seal", "seg-*.db-wal", "seg-*.db-shm", "draft-*")
    segments, *others = (len([*folder.glob(kind)]) for kind in kinds)
    return others == [segments - 1, 1, 1, 0]


async def test_without_history_nothing_is_written(tmp_path):
    """`--history off` runs in memory only; requests for the history get an error that says so."""
    async with launched("--history", "off", cwd=tmp_path) as server:
        wire = await server.wire()
        assert (await wire.post(publish("/a", 1))).messages == [{"channel": "/a", "successful": True}]
        assert (await wire.request(request("GET", "/history/a"))).status == 404
        assert "ext" not in (await wire.post(HANDSHAKE)).messages[0]
        assert "history: off, events are kept in memory only" in server.lines
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
async def test_what_was_acknowledged_is_there_after_a_restart(end, tmp_path):
    """P1: this also holds directly after kill -9; positions continue, and the log is the same."""
    async with launched(cwd=tmp_path) as server:
        wire = await server.wire()
        replies = (await wire.post(*(publish("/a", number) for number in range(5)))).messages
        assert [reply["ext"]["position"] for reply in replies] == [1, 2, 3, 4, 5]
        before = await read(server, "/log/head")
        server.send_signal(end)
        await server.exit_code()
    async with launched(cwd=tmp_path) as server:
        assert await positions(server, "/a") == [(number + 1, number) for number in range(5)]
        after = await read(server, "/log/head")
        assert (after["log_id"], after["next"]) == (before["log_id"], before["next"])
        (reply,) = (await (await server.wire()).post(publish("/a", 5))).messages
        assert reply["ext"]["position"] == 6


async def test_a_repeat_with_its_key_is_answered_as_the_first_was_and_delivers_nothing(tmp_path):
    """This holds in the same batch, later, and over a restart, with a session and without."""
    once = publish("/a", "once", ext={"idempotency_key": "job 7/1"})
    async with launched(cwd=tmp_path) as server:
        wire = await server.wire()
        client_id = (await wire.post(HANDSHAKE)).messages[0]["clientId"]
        await wire.post(connect(client_id))
        await wire.post(subscribe(client_id, "/a"))
        replies = (await (await server.wire()).post(once, publish("/a", "other"), once)).messages
        replies += (await (await server.wire()).post(once)).messages
        assert [reply["ext"]["position"] for reply in replies] == [replies[0]["ext"]["position"]] * 1 + [
            replies[1]["ext"]["position"],
            replies[0]["ext"]["position"],
            replies[0]["ext"]["position"],
        ]
        assert (await wire.post(connect(client_id))).data == ["once", "other"]
        refused = (await wire.post(publish("/b", "once", ext={"idempotency_key": "job 7/1"}))).messages[0]
        assert refused["error"] == "409::idempotency_key_reused"
        position = replies[0]["ext"]["position"]
        server.send_signal(signal.SIGKILL)
        await server.exit_code()
    async with launched(cwd=tmp_path) as server:
        (reply,) = (await (await server.wire()).post(once)).messages
        assert reply == {"channel": "/a", "successful": True, "ext": {"position": position}}
        assert [data for _, data in await positions(server, "/a")] == ["once", "other"]


SETTABLE = """
import time
from pathlib import Path

STEP, real = Path(__file__).with_name("step"), time.time
time.time = lambda: real() + float(STEP.read_text())
"""
"""A module that Python runs at its start: the wall clock is set by as many seconds as a file says."""


@pytest.mark.slow
@pytest.mark.parametrize("step_s", [3_600, -3_600])
async def test_a_key_is_known_although_the_clock_was_set(step_s, tmp_path):
    """A clock that is set by an hour, while the server runs and before it starts again, publishes nothing twice."""
    (tmp_path / "sitecustomize.py").write_text(SETTABLE)
    replace_text(tmp_path / "step", "0")
    python = {"PYTHONPATH": f"{tmp_path}:{Path(halley.__file__).parents[1]}"}
    once = publish("/a", "once", ext={"idempotency_key": "k"})

    async def answer(server):
        (reply,) = (await (await server.wire()).post(once)).messages
        return reply

    async def times(server):
        await (await server.wire()).post(publish("/time", 1))
        return [event["time"][:13] for event in (await read(server, "/history/time?reverse=true"))["events"]]

    async with launched(cwd=tmp_path, **python) as server:
        first = await answer(server)
        hours = await times(server)
        replace_text(tmp_path / "step", str(step_s))
        async with asyncio.timeout(DEADLINE_S):
            while len(set(hours)) == 1:  # until the server has noticed
                hours = await times(server)
        assert await answer(server) == first
        server.send_signal(signal.SIGKILL)
        await server.exit_code()
    replace_text(tmp_path / "step", str(2 * step_s))
    async with launched(cwd=tmp_path, **python) as server:
        assert await answer(server) == first
        assert [data for _, data in await positions(server, "/a")] == ["once"]


@pytest.mark.parametrize("key", ["", "k" * 129, "\n", "é", 7, ["k"]])
async def test_a_key_that_is_none_is_refused(key, tmp_path):
    """An invalid key gets its documented error and changes nothing."""
    async with launched(cwd=tmp_path) as server:
        (reply,) = (await (await server.wire()).post(publish("/a", 1, ext={"idempotency_key": key}))).messages
        assert reply == {"channel": "/a", "successful": False, "error": "400::idempotency_key_invalid"}
        assert await positions(server, "/a") == []


async def test_an_audience_holds_in_the_history_too_and_over_a_restart(tmp_path):
    """A client that may not receive an event may not read it later either."""
    hidden = publish("/a", "hidden", ext={"audience": {"excluded_roles": ["anonymous"]}})
    async with launched(cwd=tmp_path) as server:
        wire = await server.wire()
        client_id = (await wire.post(HANDSHAKE)).messages[0]["clientId"]
        await wire.post(connect(client_id))
        await wire.post(subscribe(client_id, "/a"))
        replies = (await (await server.wire()).post(hidden, publish("/a", "open"))).messages
        assert replies[0]["ext"]["position"] + 1 == replies[1]["ext"]["position"]
        assert (await wire.post(connect(client_id))).data == ["open"]
        server.send_signal(signal.SIGKILL)
        await server.exit_code()
    async with launched(cwd=tmp_path) as server:
        assert [data for _, data in await positions(server, "/a")] == ["open"]


async def test_a_second_server_on_the_same_folder_does_not_start(tmp_path):
    """F6: exit code 2 and a message that names the folder; the first server is not affected."""
    async with launched(cwd=tmp_path) as server:
        code, output, lines = await ended("serve", "--port", "0", "--operations-port", "0", cwd=tmp_path)
        assert (code, output) == (WRONG_USE, [])
        assert lines[-1] == (
            f"halley: {tmp_path / 'halley-data'} is in use by another server (process {server.process.pid})"
        )
        assert (await (await server.wire()).post(publish("/a", 1))).messages[0]["successful"]


@pytest.mark.parametrize(
    ("record", "setting", "sentence"),
    [
        ('pattern = "chat"', "record.pattern", "expected a channel or pattern like /chat/room"),
        ('pattern = "/meta/**"', "record.pattern", "rules do not apply to meta channels"),
        ('pattern = "/a"\nage = "soon"', "record.age", 'expected an age such as "90s", "30m", "72h" or "7d"'),
        ('pattern = "/a"\n[history]\nmax_bytes = 1048576', "history.max_bytes", "expected at least twice"),
    ],
)
async def test_a_rule_that_cannot_be_kept_ends_with_2(record, setting, sentence, tmp_path):
    """The message names the rule with its line, and nothing is served."""
    (tmp_path / "halley.toml").write_text(f"[[record]]\n{record}\n")
    for verb in (("serve", "--port", "0", "--operations-port", "0"), ("check-config",)):
        code, _, lines = await ended(*verb, cwd=tmp_path)
        assert code == WRONG_USE
        assert setting in lines[-1]
        assert sentence in lines[-1]
    assert not (tmp_path / "halley-data").exists()


async def test_record_rules_say_what_is_kept(tmp_path):
    """Events are not kept, kept after delivery, or durable; services are recorded only if a rule names them."""
    (tmp_path / "halley.toml").write_text(
        '[[record]]\npattern = "/quiet/**"\nage = "0"\n[[record]]\npattern = "/loose/**"\nage = "1h"\ndurable = false\n'
    )
    async with launched(cwd=tmp_path) as server:
        wire = await server.wire()
        channels = ("/quiet/a", "/loose/a", "/a")
        replies = (await wire.post(*(publish(channel, 1) for channel in channels))).messages
        assert [reply.get("ext") is not None for reply in replies] == [False, False, True]
        found = await read(server, "/history/**")
        assert sorted(event["channel"] for event in found["events"]) == ["/a", "/loose/a"]


async def test_what_the_server_itself_does_is_recorded(tmp_path):
    """Sessions that open and close and their subscriptions are recorded, but no session's id."""
    async with launched(cwd=tmp_path) as server:
        wire = await server.wire()
        client_id = (await wire.post(HANDSHAKE)).messages[0]["clientId"]
        await wire.post(connect(client_id))
        await wire.post(subscribe(client_id, "/a", "/b/*"))
        await wire.post({"channel": "/meta/unsubscribe", "clientId": client_id, "subscription": "/a"})
        await wire.post({"channel": "/meta/disconnect", "clientId": client_id})
        data_of = partial(map, lambda event: event["data"])
        opened, closed = data_of((await read(server, "/history/halley/sessions"))["events"])
        subscriptions = [*data_of((await read(server, "/history/halley/subscriptions"))["events"])]
        (name,) = {told["session"] for told in (opened, closed, *subscriptions)}
        assert client_id not in json.dumps([opened, closed, subscriptions])
        assert len(name) == 16
        who = {"session": name, "protocol": "bayeux", "authid": None, "role": "anonymous"}
        assert opened == {"event": "opened", **who, "address": "127.0.0.1"}
        assert closed == {"event": "closed", **who, "reason": "disconnected"}
        assert [(told["event"], told["channels"]) for told in subscriptions] == [
            ("subscribed", ["/a"]),
            ("subscribed", ["/b/*"]),
            ("unsubscribed", ["/a"]),
            ("unsubscribed", ["/b/*"]),
        ]
        assert (await read(server, "/history/**"))["events"] == []  # no wildcard matches them


async def metrics(server):
    """Return the lines of /metrics about consumers and the bytes that are held for them."""
    wire = await server.wire(server.operations_port)
    lines = (await wire.request(request("GET", "/metrics"))).text.splitlines()
    return {line for line in lines if line.startswith(("halley_consumer", "halley_history_held"))}


async def test_a_consumer_is_known_over_a_restart_and_its_lag_is_told(tmp_path):
    """The lag is a metric; consumers of a server that was killed are known to the next one from its start."""
    async with launched(cwd=tmp_path) as server:
        wire = await server.wire()
        await wire.post(*(publish("/a", number) for number in range(5)))
        body = b'{"offset":3}'
        report = request("POST", "/log/consumers/ingest", body, content_type="application/json")
        assert (await wire.request(report)).status == 200
        expected = {'halley_consumer_lag_events{consumer="ingest"} 3.0', "halley_history_held_bytes 0.0"}
        assert await metrics(server) == expected
        server.send_signal(signal.SIGKILL)
        await server.exit_code()
    async with launched(cwd=tmp_path) as server:
        assert (await read(server, "/log/head"))["consumers"] == {"ingest": 3}
        assert await metrics(server) == expected


async def test_operators_are_told_when_a_consumer_is_overtaken(tmp_path):
    """The log line has the consumer, its offset, and the log's new start; no publisher is refused while it lags."""
    settings = {"HALLEY_HISTORY_MAX_BYTES": "1048576", "HALLEY_HISTORY_SEGMENT_BYTES": "65536"}
    async with launched(cwd=tmp_path, **settings) as server:
        wire = await server.wire()
        report = request("POST", "/log/consumers/ingest", b'{"offset":1}', content_type="application/json")
        assert (await wire.request(report)).status == 200
        for number in range(40):
            replies = (await wire.post(*(publish("/a", f"{number} {'x' * 60_000}") for _ in range(4)))).messages
            assert all(reply["successful"] for reply in replies)
        await server.until(lambda: server.logged("consumer_overtaken"))
        (line,) = server.logged("consumer_overtaken")
        assert (line["consumer"], line["offset"], line["level"]) == ("ingest", 1, "warning")
        assert (await read(server, "/log/head"))["first"] >= line["first"] > 1


@pytest.mark.parametrize("what", ["folder", "segment"])
async def test_a_log_that_is_deleted_underneath_refuses_and_the_loss_is_reported_at_the_next_start(what, tmp_path):
    """Publishes are refused within a second or so, which is logged once; positions are not used twice."""
    folder = tmp_path / "halley-data"
    async with launched(cwd=tmp_path) as server:
        wire = await server.wire()
        for number in range(3):
            assert (await wire.post(publish("/a", number))).messages[0]["successful"]
        if what == "folder":
            shutil.rmtree(folder.rename(tmp_path / "deleted"))
        else:
            next(folder.glob("seg-*.db")).unlink()
        replies, refused = [], 0
        async with asyncio.timeout(DEADLINE_S):
            while refused < 3:
                replies += (await wire.post(publish("/a", "later"))).messages
                refused += not replies[-1]["successful"]
        assert {reply["error"] for reply in replies if not reply["successful"]} == {"503::history_unavailable"}
        assert not any(reply["successful"] for reply in replies[-refused:])
        await server.until_logged("history_unavailable")
        assert [line["reason"] for line in server.logged("history_unavailable")] == ["moved"]
        operations = await server.wire(server.operations_port)
        answer = await operations.request(request("GET", "/health/ready"))
        assert (answer.status, answer.text) == (200, "ready\nhistory_unavailable: moved\n")
        answer = await operations.request(request("GET", "/metrics"))
        assert '\nhalley_history_unavailable{reason="moved"} 1.0\n' in answer.text
        server.send_signal(signal.SIGKILL)
        await server.exit_code()
    last = 3 + len(replies) - refused
    async with launched(cwd=tmp_path) as server:
        assert [(line["first"], line["last"]) for line in server.logged("history_damaged")] == [(1, last)]
        head = await read(server, "/log/head")
        assert (head["first"], head["next"], head["holes"]) == (1, last + 1, [[1, last]])
        (reply,) = (await (await server.wire()).post(publish("/a", "again"))).messages
        assert reply["ext"]["position"] == last + 1
        assert (await read(server, "/history/a"))["gaps"] == [[1, last]]
