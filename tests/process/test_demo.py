"""`halley demo` as its users run it: its output, its traffic, and that it leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from support.process import ended, environment, started
from support.programs import unavailable
from support.wire import DEADLINE_S

pytestmark = pytest.mark.slow

DONE, FAILED, WRONG_USE, INTERRUPTED = 0, 1, 2, 130
TALK_S = 30.0
"""Until everybody has said something, who all take their time."""

PORTS = ("--port", "0", "--nt4-port", "0")
ALONE = (*PORTS, "--pipeline", "off")
OPEN = re.compile(r"open (http://127\.0\.0\.1:\d+)/")


@pytest.fixture(autouse=True)
def _hang_ups():
    """Make SIGHUP end a process, also where the tests run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@asynccontextmanager
async def shown(*arguments, folder, **settings):
    """Run the demo until it has printed its URL; yields it and the URL. Its temporary files are in the folder."""
    (folder / "temporary").mkdir()
    variables = environment(TMPDIR=str(folder / "temporary"), **settings)
    async with started("demo", *arguments, cwd=folder, env=variables) as demo:
        try:
            (line,) = await demo.until_printed(1)
            await demo.until(lambda: any("Ctrl-C" in line for line in demo.lines))
            yield demo, OPEN.fullmatch(line)[1]
        finally:
            for pid in children(demo.process.pid):  # if the test has failed
                os.kill(pid, signal.SIGKILL)


def children(parent):
    """Return the ids of the processes that a process has started."""
    if not Path("/proc/self/stat").exists():
        unavailable("no /proc")
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if int(fields[1]) == parent and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def leave_temporary_file(pid):
    """Create a file in the folder that a process has for its temporary files."""
    variables = Path(f"/proc/{pid}/environ").read_text().split("\0")
    (folder,) = [variable.removeprefix("TMPDIR=") for variable in variables if variable.startswith("TMPDIR=")]
    Path(folder, "left").touch()


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def channels(url, protocols):
    """Return channels with protocols, and chat's authors, of the newest events, once all `protocols` are among them."""
    seen, speakers = set(), set()
    async with httpx.AsyncClient(base_url=url, verify=False) as http, asyncio.timeout(TALK_S):
        while not ({each for _, each in seen} >= protocols and "Edda" in speakers):
            for pattern in ("/chat/**", "/market/**", "/robot/**"):
                page = (await http.get(f"/history{pattern}?reverse=true&limit=300")).raise_for_status().json()
                seen |= {(event["channel"], event["protocol"]) for event in page["events"]}
                speakers |= {event["data"]["from"] for event in page["events"] if pattern == "/chat/**"}
            await asyncio.sleep(0.1)
    return seen, speakers


async def test_it_says_what_to_open_and_all_protocols_are_there(tmp_path):
    """The console is served, the history has events of all protocols and of the old page; nothing is left behind."""
    async with shown(*ALONE, folder=tmp_path) as (demo, url):
        (server,) = children(demo.process.pid)
        assert {path.name[:12] for path in (tmp_path / "temporary").iterdir()} == {"halley-demo-"}
        async with httpx.AsyncClient(verify=False) as http:
            console = await http.get(f"{url}/")
        assert "<title>" in console.text
        seen, speakers = await channels(url, {"bayeux", "wamp", "nt4"})
        assert {protocol for channel, protocol in seen if channel.startswith("/chat/")} == {"bayeux"}
        assert {protocol for channel, protocol in seen if channel.startswith("/market/")} == {"wamp"}
        assert {protocol for channel, protocol in seen if channel.startswith("/robot/")} == {"nt4"}
        assert "Edda" in speakers
        demo.send_signal(signal.SIGINT)
        assert await demo.exit_code(TALK_S) == INTERRUPTED
        assert not is_alive(server)
        assert demo.output == [f"open {url}/"]
        assert all(line.startswith("halley: ") for line in demo.lines), demo.lines
    assert [*(tmp_path / "temporary").iterdir()] == []
    assert [path.name for path in tmp_path.iterdir()] == ["temporary"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
async def test_told_to_leave_it_has_done_its_work(number, tmp_path):
    """A service manager's signal and a closed terminal's end it with exit code 0."""
    async with shown(*ALONE, folder=tmp_path) as (demo, _):
        (server,) = children(demo.process.pid)
        demo.send_signal(number)
        assert await demo.exit_code(TALK_S) == DONE
        assert not is_alive(server)
    assert [*(tmp_path / "temporary").iterdir()] == []


async def test_who_is_in_a_hurry_waits_for_nobody(tmp_path):
    """After a second signal the server is killed, even if it would need long; its temporary files are deleted."""
    async with shown(*ALONE, folder=tmp_path) as (demo, _):
        (server,) = children(demo.process.pid)
        os.kill(server, signal.SIGSTOP)
        leave_temporary_file(server)
        demo.send_signal(signal.SIGINT)
        demo.send_signal(signal.SIGTERM)  # two equal signals can arrive as one
        assert await demo.exit_code(DEADLINE_S) in (INTERRUPTED, DONE)  # it depends on which was handled first
        assert not is_alive(server)
    assert [*(tmp_path / "temporary").iterdir()] == []


async def test_its_history_goes_on_and_it_ends_by_itself(tmp_path):
    """After the time of --for the exit code is 0. A data folder is kept, and used again."""
    arguments = (*ALONE, "--data-dir", "kept", "--for", "1")
    counts = []
    for _ in range(2):
        code, output, lines = await ended("demo", *arguments, cwd=tmp_path)
        assert (code, len(output)) == (DONE, 1), lines
        assert "halley: history: kept" in lines
        code, _, (line,) = await ended("history", "verify", "--data-dir", "kept", cwd=tmp_path)
        assert code == DONE
        counts.append(int(re.fullmatch(r"halley: ([\d,]+) events in .*: sound", line)[1].replace(",", "")))
    assert 0 < counts[0] < counts[1]


async def test_settings_of_the_users_are_left_out_of_it(tmp_path):
    """The configuration file or the variables of another server would change the demo, or prevent it."""
    (tmp_path / "halley.toml").write_text('host = "192.0.2.1"\n[history]\nenabled = false\n')
    (tmp_path / "halley").mkdir()
    (tmp_path / "halley" / "__init__.py").write_text("raise SystemExit('a folder of the user')")
    variables = environment(HALLEY_BAYEUX_PATHS="/elsewhere", HALLEY_NT4_HOST="192.0.2.1")
    async with started(
        "demo", *ALONE, "--data-dir", "data", cwd=tmp_path, env=variables, through=("env", "PYTHONSAFEPATH=1")
    ) as demo:
        await demo.until_printed(1)
        demo.send_signal(signal.SIGTERM)
        assert await demo.exit_code(TALK_S) == DONE


@pytest.mark.parametrize("flag", ["--port", "--nt4-port"])
async def test_a_busy_port_ends_with_2_and_names_its_flag(flag, tmp_path):
    """The message is the server's, and nothing stays behind."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        arguments = (*PORTS, flag, str(port), "--pipeline", "off")
        code, output, lines = await ended("demo", *arguments, cwd=tmp_path, TMPDIR=str(tmp_path))
    assert (code, output) == (WRONG_USE, [])
    assert lines == [f"halley: cannot listen on 127.0.0.1:{port} (Address already in use); choose another with {flag}"]
    assert [*tmp_path.iterdir()] == []


async def test_a_server_that_dies_ends_it_with_1(tmp_path):
    """The demo reports that the server has died, and deletes its folder."""
    async with shown(*ALONE, folder=tmp_path) as (demo, _):
        (server,) = children(demo.process.pid)
        os.kill(server, signal.SIGKILL)
        assert await demo.exit_code(TALK_S) == FAILED
        assert demo.lines[-1].startswith("halley: the server ended unexpectedly")
    assert [*(tmp_path / "temporary").iterdir()] == []


@pytest.fixture
def without_pyspark(tmp_path):
    """Return a PYTHONPATH with which PySpark is not found."""
    folder = tmp_path / "path"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(
        "import importlib.util\n"
        "found = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *more: None if name == 'pyspark' else found(name, *more)\n"
    )
    return os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])


async def test_a_pipeline_that_is_wanted_and_missing_is_said(without_pyspark, tmp_path):
    """With --pipeline on the exit code is 2, with what would help, and nothing is started."""
    code, output, lines = await ended(
        "demo", *PORTS, "--pipeline", "on", cwd=tmp_path, PYTHONPATH=without_pyspark, TMPDIR=str(tmp_path)
    )
    assert (code, output) == (WRONG_USE, [])
    assert lines == ["halley: the data pipeline is not installed: pip install 'halley-server[pipeline]'"]


async def test_a_pipeline_that_is_missing_is_left_out(without_pyspark, tmp_path):
    """With auto, the default, the demo reports it and continues without the pipeline."""
    code, output, lines = await ended("demo", *PORTS, "--for", "0.5", cwd=tmp_path, PYTHONPATH=without_pyspark)
    assert (code, len(output)) == (DONE, 1), lines
    assert lines[0].startswith("halley: without the pipeline: the data pipeline is not installed")
    assert not any("Spark" in line for line in lines)


@pytest.mark.parametrize("arguments", [("--for", "0"), ("--for", "long"), ("--pipeline", "maybe"), ("--port", "70000")])
async def test_wrong_use(arguments, tmp_path):
    """Wrong use is reported before anything is started."""
    code, output, _ = await ended("demo", *arguments, cwd=tmp_path)
    assert (code, output) == (WRONG_USE, [])


async def test_what_is_said_is_short(tmp_path):
    """On a terminal the output is a few short lines."""
    code, output, lines = await ended("demo", *ALONE, "--for", "0.5", cwd=tmp_path)
    assert code == DONE
    assert len(output + lines) <= 7
    assert max(map(len, lines)) <= 120
