"""`halley history` as its users run it: real processes, a real server, real files."""

from __future__ import annotations

import json
import sqlite3
from asyncio.subprocess import PIPE
from contextlib import closing, nullcontext

import pytest
import pytest_asyncio
from support import wamp
from support.damage import flip
from support.log import OpenLog
from support.process import ended, launched, started
from support.server import brisk, serving
from support.terminal import terminal

from halley.access.tokens import hash_of
from halley.settings import Access, Token

DONE, FAILED, WRONG_USE = 0, 1, 2
SUBSCRIBE, SUBSCRIBED = 32, 33
KEPT_TOPICS = '[{"name": "/robot/auto", "type": "string", "value": "Left", "properties": {"persistent": true}}]'
TOKEN = "a-token-that-is-long-enough-for-halley"


async def publish(served, channel, *values):
    """Publish values, and check the acknowledgements: the events are on disk then."""
    wire = await served.wire()
    replies = (await wire.post(*({"channel": channel, "data": value} for value in values))).replies
    assert all(reply["successful"] for reply in replies), replies
    await wire.close()


@pytest_asyncio.fixture
async def served(tmp_path):
    """A server with ten events: the odd ones on /chat/a, the even ones on /chat/b."""
    options = {"enabled": True, "segment_bytes": 65_536, "free_bytes": 0}
    async with serving(brisk(data_dir=str(tmp_path / "data"), history=options)) as served:
        for number in range(1, 11):
            await publish(served, "/chat/a" if number % 2 else "/chat/b", number)
        yield served


async def history(served, *arguments, cwd, **more):
    """Run the verb against the server."""
    return await ended("history", *arguments, "--server", served.url, cwd=cwd, **more)


def data_of(output):
    """Return the data of printed events."""
    return [json.loads(line)["data"] for line in output]


# Reading


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["/chat/a"], [1, 3, 5, 7, 9]),
        (["/chat/*"], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
        (["show", "/chat/b"], [2, 4, 6, 8, 10]),
        (["--limit", "3", "/chat/**"], [1, 2, 3]),
        (["/chat/**", "--reverse", "--limit", "2"], [10, 9]),
        (["/**", "--topic", "/chat/b", "--limit", "1"], [2]),
        (["/elsewhere"], []),
    ],
)
async def test_events_are_printed(arguments, expected, served, tmp_path):
    """`halley history CHANNEL` prints an object a line, oldest first; the verb `show` can be omitted."""
    code, output, lines = await history(served, *arguments, cwd=tmp_path)
    assert (code, lines) == (DONE, [])
    assert data_of(output) == expected
    for line in output:
        assert set(json.loads(line)) == {"channel", "data", "position", "time", "publication", "protocol"}


async def test_all_pages_are_printed(served, tmp_path):
    """All pages are printed, or as many events as --limit allows, which can be more than a page."""
    await publish(served, "/many", *range(800))
    assert data_of((await history(served, "/many", cwd=tmp_path)).output) == list(range(800))
    assert data_of((await history(served, "/many", "--limit", "450", cwd=tmp_path)).output) == list(range(450))


SEPARATORS = "a\u2028b\u2029c\u0085d\x1ce\x0bf\rg\nh"
"""All that Unicode ends a line by; JSON text has those from U+0080 on as they are."""


@pytest.mark.parametrize("transport", ["websocket", "long-polling"])
async def test_separators_of_lines_within_a_text_end_no_line(transport, served, tmp_path):
    """What one command publishes, each of the others gives back whole."""
    at = ("--server", served.url)
    value = json.dumps(SEPARATORS, ensure_ascii=False)
    sent = await ended("publish", "/odd", *at, cwd=tmp_path, stdin=f"{value}\n[{value}]\n".encode())
    assert (sent.code, sent.lines[-1]) == (DONE, "halley: published 2 events")
    assert data_of((await history(served, "/odd", cwd=tmp_path)).output) == [SEPARATORS, [SEPARATORS]]
    exported = (await history(served, "export", "-", cwd=tmp_path)).output
    payloads = [row["payload"] for row in map(json.loads, exported) if row["topic"] == "odd"]
    assert [json.loads(payload) for payload in payloads] == [SEPARATORS, [SEPARATORS]]
    async with started("subscribe", "/odd", "--replay", "all", "--transport", transport, *at, cwd=tmp_path) as heard:
        assert data_of(await heard.until_printed(2)) == [SEPARATORS, [SEPARATORS]]
    erased = await history(served, "purge", "/odd", "--yes", cwd=tmp_path)
    assert (erased.code, erased.lines) == (DONE, ["halley: erased 2 events"])


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["chat"], WRONG_USE, "No such command 'chat'"),
        (["show", "chat"], WRONG_USE, "chat is not a channel or pattern; it must begin with /"),
        (["/chat/a", "--limit", "0"], WRONG_USE, "Invalid value for '--limit'"),
        (["/chat/a", "--from-time", "now"], FAILED, "halley: HTTP 400: from_time: expected an RFC 3339 time"),
        (
            ["/chat/a", "--after-publication", "77"],
            FAILED,
            "halley: HTTP 404: the publication is unknown or no longer in the history",
        ),
        (["/a*"], FAILED, "halley: HTTP 400: channel: expected"),
    ],
)
async def test_wrong_use(arguments, code, text, served, tmp_path):
    """A bad channel is reported without a request; a refusal of the server is shown in its words."""
    found, output, lines = await history(served, *arguments, cwd=tmp_path)
    assert (found, output) == (code, [])
    assert text in "\n".join(lines)


async def test_where_no_server_is(tmp_path):
    """The exit code is 1, and the text names the server."""
    code, output, (line,) = await ended("history", "/a", "--server", "http://127.0.0.1:1", cwd=tmp_path)
    assert (code, output) == (FAILED, [])
    assert line.startswith("halley: no response from http://127.0.0.1:1/")


# Export


async def test_an_export_is_every_row_and_can_be_continued(served, tmp_path):
    """An export goes to standard output or a new file; --from-offset appends to a file, so that no row is repeated."""
    await publish(served, "/many", *range(300))
    code, output, _ = await history(served, "export", "-", cwd=tmp_path)
    assert code == DONE
    offsets = [json.loads(line)["offset"] for line in output]
    assert offsets == list(range(1, len(offsets) + 1))
    assert len(offsets) >= 310
    assert (await history(served, "export", "log.jsonl", "--until-offset", "100", cwd=tmp_path)).code == DONE
    again = await history(served, "export", "log.jsonl", cwd=tmp_path)
    assert again.code == FAILED
    assert "already exists" in again.lines[0]
    rest = await history(served, "export", "log.jsonl", "--from-offset", "101", cwd=tmp_path)
    assert rest.code == DONE
    found = [json.loads(line)["offset"] for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert found == list(range(1, len(found) + 1))
    assert len(found) >= len(offsets)


LIMITED = ("sh", "-c", 'ulimit -f 400; exec "$@"', "sh")
"""Run a command that can write no file of more than 200 KiB, as on a full disk."""


def offsets_in(file):
    """Return the offsets of an export's rows."""
    return [json.loads(line)["offset"] for line in file.read_text().splitlines()]


@pytest.mark.parametrize("how", ["file", "standard output"])
async def test_an_export_that_finds_the_disk_full_is_continued_as_it_says(how, served, tmp_path):
    """What it leaves ends with a whole row, and with the rest each row is there once."""
    for _ in range(8):
        await publish(served, "/many", *("x" * 1_000 for _ in range(50)))
    whole = (await history(served, "export", "-", cwd=tmp_path)).output
    file = tmp_path / "log.jsonl"
    target = "log.jsonl" if how == "file" else "-"

    async def export(*arguments, **options):
        with file.open("ab") if how != "file" else nullcontext(PIPE) as output:
            verb = ("history", "export", target, *arguments, "--server", served.url)
            async with started(*verb, cwd=tmp_path, stdout=output, **options) as process:
                return await process.exit_code(), process.lines

    code, (problem, hint) = await export(through=LIMITED)
    assert (code, problem) == (FAILED, f"halley: {target if how == 'file' else how}: File too large")
    left = offsets_in(file)
    assert hint == f"halley: continue with --from-offset {left[-1] + 1}"
    assert file.read_bytes().endswith(b"\n")
    code, _ = await export("--from-offset", str(left[-1] + 1))
    assert code == DONE
    assert offsets_in(file)[: len(whole)] == [json.loads(line)["offset"] for line in whole]
    assert offsets_in(file) == [*range(1, len(offsets_in(file)) + 1)]


async def test_an_export_that_was_killed_can_be_continued(served, tmp_path):
    """The row that it was killed in is cut off, and no row comes twice."""
    code, output, _ = await history(served, "export", "-", cwd=tmp_path)
    assert code == DONE
    file = tmp_path / "log.jsonl"
    file.write_text("\n".join(output[:4]) + "\n" + output[4][:20])
    code, _, (line,) = await history(served, "export", "log.jsonl", "--from-offset", "4", cwd=tmp_path)
    assert code == FAILED
    assert line == "halley: log.jsonl has the rows up to 4 already: continue with --from-offset 5"
    assert (await history(served, "export", "log.jsonl", "--from-offset", "5", cwd=tmp_path)).code == DONE
    assert file.read_text().splitlines()[: len(output)] == output
    file.write_text("a letter\n")
    code, _, (line,) = await history(served, "export", "log.jsonl", "--from-offset", "5", cwd=tmp_path)
    assert (code, line) == (FAILED, "halley: log.jsonl is not an export: its last line is not a row")
    assert file.read_text() == "a letter\n"


# Verify and backup


async def test_verify_says_what_is_wrong_and_where(served, tmp_path):
    """Of a running server's log: sound, exit code 0. With a changed bit in a sealed segment: its file and place, 1."""
    for _ in range(10):
        await publish(served, "/many", *("x" * 1_000 for _ in range(40)))
    code, output, lines = await ended("history", "verify", "--data-dir", "data", cwd=tmp_path)
    assert (code, output) == (DONE, [])
    assert lines[-1].endswith(": sound")
    folder = tmp_path / "data"
    await served.until(lambda: any(folder.glob("seg-*.seal")))
    file = min(folder.glob("seg-*.seal")).with_suffix(".db")
    file.chmod(0o600)
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    code, output, lines = await ended("history", "verify", cwd=tmp_path, HALLEY_DATA_DIR="data")
    assert code == FAILED
    assert output[0].startswith(f"{file.name}: bytes ")
    assert lines[-1].endswith(": something is wrong")


async def test_salvage_gives_back_what_is_intact(served, tmp_path):
    """What cannot be saved is printed; a server has to be stopped first; a repeat finds nothing to do."""
    code, _, (line,) = await ended("history", "salvage", "--data-dir", "data", cwd=tmp_path)
    assert code == FAILED
    assert "is in use by another server" in line
    await ended("history", "backup", "copy", "--data-dir", "data", cwd=tmp_path)
    segment = min((tmp_path / "copy").glob("seg-*.db"))
    with closing(sqlite3.connect(segment)) as connection, connection:
        connection.execute("update stored set payload = '\"other\"' where offset = 3")
    salvage = ("history", "salvage", "--data-dir", "copy")
    code, output, lines = await ended(*salvage, cwd=tmp_path)
    assert (code, output) == (DONE, ["offset 3: lost"])
    assert lines[-1] == "halley: 1 damaged segment rewritten, 1 event lost"
    code, output, lines = await ended(*salvage, cwd=tmp_path)
    assert (code, output, lines[-1]) == (DONE, [], "halley: no segment is damaged")
    verified = await ended("history", "verify", "--data-dir", "copy", cwd=tmp_path)
    assert verified.code == DONE
    code, _, (line,) = await ended("history", "salvage", "--data-dir", "nowhere", cwd=tmp_path)
    assert (code, line) == (WRONG_USE, "halley: there is no log in nowhere")


async def test_verify_where_there_is_no_log(tmp_path):
    """The exit code is that of wrong use, not that of damage, and the text names the folder."""
    code, output, (line,) = await ended("history", "verify", cwd=tmp_path)
    assert (code, output, line) == (WRONG_USE, [], "halley: there is no log in halley-data")


async def test_a_backup_is_a_data_folder(served, tmp_path):
    """A backup of a running server's log can be the data folder of another server; it is a separate log."""
    code, _, lines = await ended("history", "backup", "copy", "--data-dir", "data", cwd=tmp_path)
    assert code == DONE
    assert lines[-1].startswith("halley: copied ")
    await publish(served, "/chat/a", "later")
    async with launched(cwd=tmp_path, HALLEY_DATA_DIR="copy") as server:
        url = f"http://127.0.0.1:{server.port}"
        found = await ended("history", "/chat/a", "--server", url, cwd=tmp_path)
        assert data_of(found.output) == [1, 3, 5, 7, 9]
        assert server.process.returncode is None
    again = await ended("history", "backup", "copy", "--data-dir", "data", cwd=tmp_path)
    assert (again.code, again.lines) == (FAILED, ["halley: copy is not empty"])


async def test_a_backup_has_what_protocols_keep_beside_the_log(tmp_path):
    """NetworkTables' persistent topics are there for a server on the copy, and no WAMP subscription's id is reused."""
    (tmp_path / "halley.toml").write_text("[nt4]\nenabled = true\nport = 0\n")
    kept = {"networktables.json": KEPT_TOPICS, "networktables.json.bck": "[]\n", "wamp-subscription-ids": "4711\n"}
    with OpenLog(tmp_path / "data") as log:
        log.write(1)
    for name, text in kept.items():
        (tmp_path / "data" / name).write_text(text)
    code, _, _ = await ended("history", "backup", "copy", "--data-dir", "data", cwd=tmp_path)
    assert code == DONE
    assert {name: (tmp_path / "copy" / name).read_text() for name in kept} == kept
    async with launched("--data-dir", "copy", cwd=tmp_path) as server:
        client = await wamp.join(f"ws://127.0.0.1:{server.port}/wamp")
        async with client:
            await client.send([SUBSCRIBE, 1, {"get_retained": True}, "robot.auto"])
            assert (await client.receive()) == [SUBSCRIBED, 1, 4711]
            assert (await client.receive())[-1] == ["Left"]


async def test_a_backup_onto_a_full_disk_can_be_made_again(served, tmp_path):
    """It says so; what it has left is not taken for a data folder, and is replaced by the next one."""
    backup = ("history", "backup", "copy", "--data-dir", "data")
    limited = ("sh", "-c", 'ulimit -f 40; exec "$@"', "sh")  # blocks of 512 bytes
    async with started(*backup, cwd=tmp_path, through=limited) as process:
        assert await process.exit_code() == FAILED
        (line,) = process.lines
    assert line.startswith("halley: not everything was copied: ")
    assert line.endswith("; the same command begins again")
    free_ports = ("--port", "0", "--operations-port", "0")
    code, _, lines = await ended("serve", *free_ports, "--data-dir", "copy", cwd=tmp_path)
    assert code == WRONG_USE
    assert "copy is a backup that was not finished: run halley history backup again" in lines[-1]
    assert (await ended(*backup, cwd=tmp_path)).code == DONE
    assert (await ended("history", "verify", "--data-dir", "copy", cwd=tmp_path)).code == DONE


# Purge


async def test_a_running_server_erases(served, tmp_path):
    """Over HTTP, a running server erases events: no client can read them afterwards, and the others remain."""
    code, output, lines = await history(served, "purge", "/chat/a", "--yes", cwd=tmp_path)
    assert (code, output, lines) == (DONE, [], ["halley: erased 5 events"])
    assert (await history(served, "/chat/a", cwd=tmp_path)).output == []
    assert data_of((await history(served, "/chat/**", cwd=tmp_path)).output) == [2, 4, 6, 8, 10]
    await publish(served, "/chat/a", "new")
    assert data_of((await history(served, "/chat/a", cwd=tmp_path)).output) == ["new"]
    verified = await ended("history", "verify", "--data-dir", "data", cwd=tmp_path)
    assert verified.code == DONE


async def test_without_a_server_it_erases_in_the_folder(served, tmp_path):
    """--data-dir erases in a folder; if a server uses that folder, nothing is erased."""
    locked = await ended("history", "purge", "/chat/a", "--yes", "--data-dir", "data", cwd=tmp_path)
    assert locked.code == FAILED
    assert "is in use by another server" in locked.lines[0]
    await ended("history", "backup", "copy", "--data-dir", "data", cwd=tmp_path)
    done = await ended("history", "purge", "/chat/a", "--yes", "--data-dir", "copy", cwd=tmp_path)
    assert (done.code, done.lines) == (DONE, ["halley: erased 5 events"])
    nowhere = await ended("history", "purge", "/chat/a", "--yes", "--data-dir", "nowhere", cwd=tmp_path)
    assert (nowhere.code, nowhere.lines) == (WRONG_USE, ["halley: there is no log in nowhere"])
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("is_running", [True, False])
async def test_a_damaged_event_is_erased_and_counted(is_running, tmp_path):
    """With a changed bit it cannot be read, so it may be one of those to be erased: nothing of it is left."""
    folder = tmp_path / "data"
    with OpenLog(folder) as log:
        log.write("other")
        log.write("a secret of ada", topic="chat/a")
    flip(next(folder.glob("seg-*.db")), b"a secret of ada")
    if is_running:
        async with serving(brisk(data_dir=str(folder), history={"enabled": True, "free_bytes": 0})) as served:
            done = await history(served, "purge", "/chat/a", "--yes", cwd=tmp_path)
    else:
        done = await ended("history", "purge", "/chat/a", "--yes", "--data-dir", "data", cwd=tmp_path)
    assert (done.code, done.lines) == (DONE, ["halley: erased 1 event"])
    texts = [file.read_bytes() for file in folder.iterdir() if file.is_file()]
    assert not any(b"secret of ad" in text or b"chat/a" in text for text in texts)
    assert any(b"other" in text for text in texts)


@pytest.mark.parametrize("arguments", [["/chat/a"], ["--publisher", "ada"]])
async def test_it_asks_whoever_can_be_asked(arguments, served, tmp_path):
    """Without a terminal --yes is needed; nothing is erased without it."""
    code, _, (line,) = await history(served, "purge", *arguments, cwd=tmp_path)
    assert (code, line) == (WRONG_USE, "halley: erased events cannot be restored; confirm with --yes")
    assert len((await history(served, "/chat/**", cwd=tmp_path)).output) == 10


@pytest.mark.parametrize("arguments", [[], ["/a", "--publisher", "ada"]])
async def test_either_a_channel_or_a_publisher(arguments, tmp_path):
    """A purge needs exactly one of the two."""
    code, _, lines = await ended("history", "purge", "--yes", *arguments, cwd=tmp_path)
    assert code == WRONG_USE
    assert lines[-1] == "Error: expected either a CHANNEL or --publisher"


@pytest.mark.parametrize(("answer", "left"), [("y", 5), ("n", 10)])
async def test_at_a_terminal_it_asks(answer, left, served, tmp_path):
    """The answer yes erases the events, and no does not."""
    with terminal() as at:
        arguments = ("history", "purge", "/chat/a", "--server", served.url)
        async with started(*arguments, cwd=tmp_path, stdin=at.line, stderr=at.line) as process:
            await at.until_shown("Erase /chat/a permanently?")
            at.type(f"{answer}\n")
            assert await process.exit_code() == (DONE if answer == "y" else FAILED)
    assert len((await history(served, "/chat/**", cwd=tmp_path)).output) == left


async def test_rights_hold_here_too(tmp_path):
    """The token is sent to the server; without the right, the server's refusal is shown."""
    access = (Access("*", "subscribe", "/**"), Access("*", "publish", "/**"), Access("auditor", "export", "/**"))
    settings = brisk(
        data_dir=str(tmp_path / "data"),
        history={"enabled": True},
        access=access,
        tokens=(Token("eve", "auditor", hash_of(TOKEN)),),
    )
    async with serving(settings) as served:
        await publish(served, "/a", 1)
        refused = await history(served, "export", "-", cwd=tmp_path)
        assert refused.code == FAILED
        assert refused.lines[0].startswith("halley: HTTP 401: ")
        granted = await history(served, "export", "-", cwd=tmp_path, HALLEY_TOKEN=TOKEN)
        assert granted.code == DONE
        purged = await history(served, "purge", "/a", "--yes", cwd=tmp_path, HALLEY_TOKEN=TOKEN)
        assert purged.code == FAILED
        assert purged.lines[0].startswith("halley: HTTP 403: ")


# At a terminal


@pytest.mark.parametrize(
    ("arguments", "label"),
    [
        (["verify", "--data-dir", "data"], "verifying"),
        (["backup", "copy", "--data-dir", "data"], "copying"),
        (["export", "log.jsonl"], "exporting"),
        (["purge", "/chat/a", "--yes"], "erasing"),
    ],
)
async def test_progress_is_shown(arguments, label, served, tmp_path):
    """A terminal on standard error gets a progress bar that reaches 100 %."""
    server = ["--server", served.url] if arguments[0] in ("export", "purge") else []
    with terminal() as at:
        async with started("history", *arguments, *server, cwd=tmp_path, stderr=at.line) as process:
            await at.until_shown(label)
            await at.until_shown("100%")
            assert await process.exit_code() == DONE
            assert process.output == []
