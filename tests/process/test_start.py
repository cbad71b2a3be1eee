"""How a server process starts: what it prints, where it listens, and what prevents it from starting."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from asyncio.subprocess import PIPE

import pytest
from support.messages import HANDSHAKE
from support.process import ended, launched, port_in, started
from support.programs import require_program
from support.terminal import terminal
from support.wire import DEADLINE_S, Wire

from halley.settings import Settings

WRONG_USE = 2


async def run_line(line, cwd):
    """Run a line in bash; return what it prints."""
    without_proxy = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    process = await asyncio.create_subprocess_exec(
        require_program("bash"), "-c", line, cwd=cwd, env=without_proxy, stdout=PIPE, stderr=PIPE
    )
    async with asyncio.timeout(DEADLINE_S):
        output, _ = await process.communicate()
    assert process.returncode == 0
    return output.decode()


# What it prints


async def test_the_three_lines_to_try_work_when_pasted(tmp_path):
    """They are a publish without a session, a session that gets its own event, and a script's callback."""
    require_program("curl")
    async with launched(cwd=tmp_path) as server:
        lines = [line.strip() for line in server.lines if line.startswith("  ")]
        assert len(lines) == 3
        published, conversed, called = [await run_line(line, tmp_path) for line in lines]
        assert json.loads(published) == [{"channel": "/hello", "successful": True, "ext": {"position": 1}}]
        messages = json.loads(conversed)
        assert [(message["channel"], message.get("successful")) for message in messages if "data" not in message] == [
            ("/meta/subscribe", True),
            ("/hello", True),
        ]
        assert [message["data"] for message in messages if "data" in message] == ["world"]
        assert called.startswith("/**/show([{")
        assert called.endswith("}]);")
        (shaken,) = json.loads(called.removeprefix("/**/show(").removesuffix(");"))
        assert shaken["successful"] is True


async def test_the_last_lines_say_where_it_listens(tmp_path):
    """The console is in the first and the last line beside those of the log; port 0 has become a real one."""
    async with launched(cwd=tmp_path) as server:
        url = f"http://127.0.0.1:{server.port}"
        plain = [line for line in server.lines if not line.startswith("{")]
        assert plain[0] == f"console: {url}/"
        assert plain[-1] == server.lines[-1] == f"halley is listening on {url} (console: {url}/)"
        assert server.operations_port not in (0, server.port)
        assert (await (await server.wire()).post(HANDSHAKE)).messages[0]["successful"]
        assert server.output == []


async def test_ports_hosts_and_paths_are_settings(tmp_path):
    """They are set by file, environment and flag; the lines to try have their values."""
    (tmp_path / "my.toml").write_text('port = 1\n[bayeux]\npaths = ["/live"]\n[operations]\nport = 1\n')
    arguments = ("--config", "my.toml", "--port", "0")
    async with launched(*arguments, cwd=tmp_path, HALLEY_OPERATIONS_PORT="0") as server:
        assert any(f"curl http://127.0.0.1:{server.port}/live -d " in line for line in server.lines)
        wire = await server.wire()
        assert (await wire.post(HANDSHAKE, path="/live")).messages[0]["successful"]


@pytest.mark.parametrize(("watched", "is_json"), [(False, True), (True, False)])
async def test_logs_are_structured_and_go_to_standard_error(watched, is_json, tmp_path):
    """Programs get one JSON object a line, a person at a terminal gets text; standard output stays empty."""
    with terminal() as at:
        stderr = at.line if watched else PIPE
        arguments = ("serve", "--port", "0", "--operations-port", "0")
        async with started(*arguments, cwd=tmp_path, stderr=stderr) as server:
            begun = "halley is listening on http://127.0.0.1:"
            if watched:
                await at.until_shown(begun)
                line = next(line for line in at.shown.splitlines() if line.startswith(begun))
            else:
                line = await server.until_logged(begun)
            wire = await Wire.open(port_in(line))
            await wire.post(HANDSHAKE)
            await wire.close()
            if is_json:
                entry = json.loads(await server.until_logged("session_opened"))
                assert {"event", "level", "timestamp", "session", "address"} <= set(entry)
            else:
                await at.until_shown("session_opened")
                assert '"event"' not in at.shown
            assert server.output == []


# Where it listens


async def test_a_listener_that_others_reach_needs_a_word(tmp_path):
    """Without access rules every client could read and publish everything."""
    code, output, lines = await ended("serve", "--host", "0.0.0.0", "--port", "0", cwd=tmp_path)
    assert (code, output) == (WRONG_USE, [])
    (line,) = lines
    assert line.startswith("halley: --host: host: expected access rules ([[access]]) or open = true (--open) too, as ")


@pytest.mark.parametrize("how", ["flag", "variable"])
async def test_with_that_word_it_starts(how, tmp_path):
    """With --open or HALLEY_OPEN it starts; then no client may publish without a session."""
    arguments = ["serve", "--host", "0.0.0.0", "--port", "0", "--operations-port", "0"]
    through = ("env", "HALLEY_OPEN=yes") if how == "variable" else ()
    async with started(*arguments, *(["--open"] if how == "flag" else []), cwd=tmp_path, through=through) as server:
        line = await server.until_logged("halley is listening on http://0.0.0.0:")
        wire = await Wire.open(port_in(line))
        assert (await wire.post(HANDSHAKE)).messages[0]["successful"]
        (refused,) = (await wire.post({"channel": "/a", "data": 1})).messages
        assert refused["successful"] is False
        await wire.close()


@pytest.mark.parametrize("flag", ["--port", "--operations-port"])
async def test_a_busy_port_ends_with_2_and_names_its_flag(flag, tmp_path):
    """This includes the port of the operations listener, and happens before any client is served."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        ports = {"--port": "0", "--operations-port": "0", flag: str(port)}
        arguments = [word for pair in ports.items() for word in pair]
        code, output, lines = await ended("serve", *arguments, cwd=tmp_path)
    assert (code, output) == (WRONG_USE, [])
    assert lines == [f"halley: cannot listen on 127.0.0.1:{port} (Address already in use); choose another with {flag}"]


async def test_two_usual_servers_do_not_get_in_each_others_way_unseen(tmp_path):
    """The second server with the same port ends; the first continues."""
    async with launched(cwd=tmp_path) as first:
        second = await ended("serve", "--port", str(first.port), "--operations-port", "0", cwd=tmp_path)
        assert second.code == WRONG_USE
        assert (await (await first.wire()).post(HANDSHAKE)).messages[0]["successful"]


async def test_more_connections_than_the_soft_limit_of_files(tmp_path):
    """Each connection is a file, so the soft limit of open files is raised to the hard one."""
    shell = ("sh", "-c", 'ulimit -S -n 64; exec "$@"', "sh")
    arguments = ("serve", "--port", "0", "--operations-port", "0")
    async with started(*arguments, cwd=tmp_path, through=shell) as server:
        line = await server.until_logged("halley is listening on ")
        wires = [await Wire.open(port_in(line)) for _ in range(100)]
        for wire in wires:
            assert (await wire.post(HANDSHAKE)).messages[0]["successful"]
        for wire in wires:
            await wire.close()


# What prevents it from starting


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--config", "missing.toml"], "missing.toml: cannot be read: No such file or directory"),
        (["--config", "bad.toml"], "bad.toml:2: bayeux: expected a table"),
        (["--port", "65536"], "--port: port: expected a whole number from 0 to 65535, found 65536"),
        (["--load", "module"], '--load: load: expected MODULE:FUNCTION, found "module"'),
    ],
)
async def test_bad_settings_end_with_2(arguments, line, tmp_path):
    """The message has the place, the key and what was expected; no listener was opened."""
    (tmp_path / "bad.toml").write_text("port = 0\nbayeux = 1\n")
    assert await ended("serve", *arguments, cwd=tmp_path) == (WRONG_USE, [], [f"halley: {line}"])


def test_the_usual_settings_are_the_documented_ones():
    """They are loopback, 8080 and 8081, /bayeux and /cometd."""
    settings = Settings()
    assert (settings.host, settings.port, settings.bayeux.paths) == ("127.0.0.1", 8080, ("/bayeux", "/cometd"))
    assert (settings.operations.host, settings.operations.port) == ("127.0.0.1", 8081)


# A program's own code


async def test_a_programs_code_is_loaded_from_the_working_directory(tmp_path):
    """`--load module:setup` can be given several times, and is done in that order."""
    (tmp_path / "greeting.py").write_text(
        "def setup(halley):\n"
        "    @halley.service('/service/greet')\n"
        "    def greet(session, message):\n"
        "        return 'Hello, ' + message.data + '!'\n"
    )
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "quiet.py").write_text(
        "def setup(halley):\n    halley.listener('/quiet')(lambda session, message: False)\n"
    )
    loads = ("--load", "greeting:setup", "--load", "package.quiet:setup")
    async with launched(*loads, cwd=tmp_path) as server:
        wire = await server.wire()
        client_id = (await wire.post(HANDSHAKE)).messages[0]["clientId"]
        asked = await wire.post({"channel": "/service/greet", "data": "Ada", "clientId": client_id})
        assert asked.data == ["Hello, Ada!"]
        (refused,) = (await wire.post({"channel": "/quiet", "data": 1})).messages
        assert refused["successful"] is False


@pytest.mark.parametrize("name", ["missing:setup", "here:missing"])
async def test_code_that_is_not_there_ends_with_2(name, tmp_path):
    """A mistyped name is wrong use, reported in one line."""
    (tmp_path / "here.py").write_text("")
    code, output, lines = await ended("serve", "--load", name, "--port", "0", cwd=tmp_path)
    assert (code, output) == (WRONG_USE, [])
    (line,) = lines
    assert "missing" in line


async def test_a_program_can_be_stopped_while_its_code_is_loaded(tmp_path):
    """Ctrl-C before serving has begun: exit code 130, and no traceback."""
    (tmp_path / "slow.py").write_text(
        "import sys, time\n"
        "def setup(halley):\n"
        "    print('loading', file=sys.stderr, flush=True)\n"
        "    time.sleep(3600)\n"
    )
    async with started("serve", "--load", "slow:setup", cwd=tmp_path) as server:
        await server.until_logged("loading")
        server.send_signal(signal.SIGINT)
        assert await server.exit_code() == 130
    assert server.lines == ["loading"]
