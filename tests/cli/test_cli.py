"""The command line as its users run it: a process, its streams, and its exit code."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import tomllib
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest
import pytest_asyncio
from support.process import ended, environment, launched, spawn, started
from support.server import serving
from support.tcp_proxy import relaying
from support.terminal import CTRL_C, LOGIN, terminal
from support.wire import DEADLINE_S, nobody_on

from halley import __version__, is_compiled
from halley.configuration import KNOBS

DONE, FAILED, WRONG_USE, INTERRUPTED = 0, 1, 2, 130


@pytest_asyncio.fixture
async def served():
    async with serving() as served:
        yield served


# The program


@pytest.mark.parametrize(
    "program",
    [
        pytest.param((sys.executable, "-m", "halley"), id="module"),
        pytest.param((str(Path(sys.executable).with_name("halley")),), id="script"),
    ],
)
async def test_the_program_has_two_names(program, tmp_path):
    """`halley` and `python -m halley` are the same program, which prints its version, and whether it is compiled."""
    process = await asyncio.create_subprocess_exec(*program, "--version", cwd=tmp_path, stdout=PIPE, stderr=PIPE)
    version = f"{__version__} (compiled)" if is_compiled() else __version__
    assert await process.communicate() == (f"halley {version}\n".encode(), b"")
    assert process.returncode == DONE


@pytest.mark.parametrize("verb", ["serve", "publish", "subscribe", "check-config"])
async def test_each_verb_explains_itself(verb, tmp_path):
    """--help is printed to standard output, like any result."""
    code, output, lines = await ended(verb, "--help", cwd=tmp_path)
    assert (code, lines) == (DONE, [])
    assert output[0].startswith(f"Usage: halley {verb} ")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["sing"], "No such command 'sing'."),
        (["publish"], "Missing argument 'CHANNEL'."),
        (["subscribe"], "Missing argument 'PATTERN...'."),
        (["serve", "--prot", "1"], "No such option"),
        (["serve", "--port", "http"], "Invalid value for '--port': 'http' is not a valid integer."),
        (["subscribe", "/a", "--server", "127.0.0.1:8080"], "--server or --token: expected a URL like http://"),
        (["publish", "/a", "1", "--token", "a b"], "--server or --token: a token consists of letters"),
        (["publish", "/a", "hello"], "hello is not JSON: Expecting value (column 1); a string needs double quotes"),
        (["publish", "/a", "NaN"], "NaN is not JSON: NaN is not a JSON number"),
    ],
)
async def test_wrong_use_ends_with_2_and_says_what_is_wrong(arguments, error, tmp_path):
    """Nothing is printed to standard output; standard error gets the usage and the mistake."""
    code, output, lines = await ended(*arguments, cwd=tmp_path)
    assert (code, output) == (WRONG_USE, [])
    assert lines[-1].startswith(f"Error: {error}")


# Servers


@pytest.mark.parametrize("verb", [["publish", "/a", "1"], ["publish", "/a"], ["subscribe", "/a"]])
async def test_a_server_that_is_not_there_fails_at_once(verb, tmp_path):
    """A mistyped address is reported after the first try."""
    with nobody_on() as port:
        url = f"http://127.0.0.1:{port}"
        code, output, lines = await ended(*verb, "--server", url, cwd=tmp_path)
    assert (code, output) == (FAILED, [])
    assert lines[0].startswith(f"halley: cannot connect to {url}/bayeux (")


async def test_what_is_no_bayeux_server_is_told_as_such(served, tmp_path):
    """The HTTP status is printed where the address is another server's, or another path of Halley."""
    code, output, lines = await ended("subscribe", "/a", "--server", f"{served.url}/elsewhere", cwd=tmp_path)
    assert (code, output) == (FAILED, [])
    assert lines == [f"halley: HTTP 404 Not Found from {served.url}/elsewhere"]


async def test_the_environment_names_server_and_token(served, tmp_path):
    """HALLEY_SERVER and HALLEY_TOKEN are used unless the options are given."""
    async with relaying(served.port) as proxy:
        url = f"http://127.0.0.1:{proxy.port}/cometd"
        for arguments, settings, token in (
            ([], {"HALLEY_SERVER": url, "HALLEY_TOKEN": "first"}, b"first"),
            (["--server", url, "--token", "second"], {"HALLEY_SERVER": "nowhere", "HALLEY_TOKEN": "-"}, b"second"),
        ):
            assert (await ended("publish", "/a", "1", *arguments, cwd=tmp_path, **settings)).code == DONE
            assert b"GET /cometd " in proxy.sent
            assert b"authorization: bearer " + token + b"\r\n" in bytes(proxy.sent).lower()


# halley subscribe


async def test_events_are_printed_one_a_line(served, tmp_path):
    """`halley subscribe PATTERN...` prints a JSON object with channel and data for each event, in order."""
    values = [1, None, {"a": ["ü €"]}, "two\nlines", "\x1b[31m\x9b31m\x7f", "\u2028"]
    async with started("subscribe", "/a", "/b/*", "/c/**", "--server", served.url, cwd=tmp_path) as subscribing:
        line = await subscribing.until_logged("subscribed to")
        assert line == f"halley: subscribed to /a /b/* /c/** at {served.url}/bayeux"
        channels = ["/a", "/b/x", "/c/x/y"] * 2
        for channel, value in zip(channels, values, strict=True):
            served.halley.publish(channel, value)
        served.halley.publish("/b/x/y", "unheard")
        served.halley.publish("/a", "last", ext={"binary": {}, "other": 1})
        printed = await subscribing.until_printed(7)
        events = [json.loads(line) for line in printed]
        assert events == [
            *({"channel": channel, "data": value} for channel, value in zip(channels, values, strict=True)),
            {"channel": "/a", "data": "last", "ext": {"binary": {}}},
        ]
        assert '"ü €"' in printed[2]
        assert "\x1b" not in printed[4]  # what others publish must not steer the terminal
        assert "\x9b" not in printed[4]


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [((), b"GET"), (("--transport", "websocket"), b"GET"), (("--transport", "long-polling"), b"POST")],
)
async def test_subscribe_has_the_transport_that_is_asked_for(served, tmp_path, arguments, asked):
    """A WebSocket unless it must not; nothing goes the other way."""
    async with relaying(served.port) as proxy:
        url = f"http://127.0.0.1:{proxy.port}"
        async with started("subscribe", "/a", "--server", url, *arguments, cwd=tmp_path) as subscribing:
            await subscribing.until_logged("subscribed to")
            served.halley.publish("/a", 1)
            assert await subscribing.until_printed(1) == ['{"channel": "/a", "data": 1}']
        assert {*re.findall(rb"(GET|POST) /bayeux HTTP/1.1", proxy.sent)} == {asked}


async def test_a_refused_pattern_fails(served, tmp_path):
    """A refused pattern is named, even among allowed ones, and no event is printed."""
    arguments = ("subscribe", "/a", "/meta/connect", "--server", served.url)
    code, output, lines = await ended(*arguments, cwd=tmp_path)
    assert (code, output) == (FAILED, [])
    assert lines == ["halley: /meta/connect: refused: 403:denied_by_security_policy:subscribe_denied"]
    assert served.house.broker.closed == {"disconnected": 1}


async def test_a_subscriber_comes_back_to_a_server_that_restarts(tmp_path):
    """A38: the subscriber reports that the connection was lost and restored, and continues to print events."""
    async with launched(cwd=tmp_path) as server:
        url = f"http://127.0.0.1:{server.port}"
        async with started("subscribe", "/a", "--server", url, cwd=tmp_path) as subscribing:
            await subscribing.until_logged("subscribed to /a")
            assert (await ended("publish", "/a", "1", "--server", url, cwd=tmp_path)).code == DONE
            assert await subscribing.until_printed(1) == ['{"channel": "/a", "data": 1}']
            server.send_signal(signal.SIGTERM)
            assert await server.exit_code() == DONE
            await subscribing.until_logged("connection lost, trying again (")
            async with launched("--port", str(server.port), "--operations-port", "0", cwd=tmp_path):
                again = await subscribing.until_logged("connected again")
                assert again == f"halley: connected again to {url}/bayeux"
                assert (await ended("publish", "/a", "2", "--server", url, cwd=tmp_path)).code == DONE
                await subscribing.until_printed(2)
                assert subscribing.output[1] == '{"channel": "/a", "data": 2}'
                subscribing.send_signal(signal.SIGINT)
                assert await subscribing.exit_code() == INTERRUPTED


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_an_interrupted_subscriber_says_goodbye(number, served, tmp_path):
    """The exit code is 130, nothing more is printed, and the session ends immediately instead of at its deadline."""
    async with started("subscribe", "/a", "--server", served.url, cwd=tmp_path) as subscribing:
        await subscribing.until_logged("subscribed to /a")
        assert served.house.broker.census.opened["bayeux"] == 1
        subscribing.send_signal(number)
        assert await subscribing.exit_code() == INTERRUPTED
    assert len(subscribing.lines) == 1
    assert subscribing.output == []
    assert served.house.broker.closed == {"disconnected": 1}


async def test_ctrl_c_at_a_terminal_is_a_clean_end(served, tmp_path):
    """A terminal shows the events, and after Ctrl-C only the prompt."""
    with terminal() as at:
        options = {"stdin": at.line, "stdout": at.line, "stderr": at.line, "through": LOGIN}
        async with started("subscribe", "/a", "--server", served.url, cwd=tmp_path, **options) as subscribing:
            await at.until_shown("subscribed to /a")
            served.halley.publish("/a", 1)
            await at.until_shown('{"channel": "/a", "data": 1}')
            at.type(CTRL_C)
            assert await subscribing.exit_code() == INTERRUPTED
        assert "Traceback" not in at.shown
        assert "Abort" not in at.shown


async def test_a_reader_that_leaves_ends_the_subscriber(served, tmp_path):
    """`halley subscribe /a | head -1` ends as soon as the reader closes the pipe, without another event or a trace."""
    reading, writing = os.pipe()
    async with started("subscribe", "/a", "--server", served.url, cwd=tmp_path, stdout=writing) as subscribing:
        os.close(writing)
        await subscribing.until_logged("subscribed to /a")
        os.close(reading)
        assert await subscribing.exit_code() == DONE
    assert len(subscribing.lines) == 1
    assert served.house.broker.closed == {"disconnected": 1}


async def test_a_reader_that_is_slow_stops_nobody(served, tmp_path):
    """A pipe that is not read fills up; Ctrl-C ends the subscriber anyway."""
    reading, writing = os.pipe()
    async with started("subscribe", "/a", "--server", served.url, cwd=tmp_path, stdout=writing) as subscribing:
        os.close(writing)
        await subscribing.until_logged("subscribed to /a")
        for _ in range(20):
            served.halley.publish("/a", "x" * 50_000)
        await served.until(lambda: served.house.broker.queued == 0)
        subscribing.send_signal(signal.SIGINT)
        assert await subscribing.exit_code() == INTERRUPTED
    os.close(reading)


async def test_a_disk_that_is_full_fails(served, tmp_path):
    """An event that cannot be written is an error."""
    shell = ("sh", "-c", 'exec "$@" >/dev/full', "sh")
    async with started("subscribe", "/a", "--server", served.url, cwd=tmp_path, through=shell) as subscribing:
        await subscribing.until_logged("subscribed to /a")
        served.halley.publish("/a", 1)
        assert await subscribing.exit_code() == FAILED
    assert subscribing.lines[1:] == ["halley: standard output: No space left on device"]


# halley check-config


async def test_every_setting_is_printed(tmp_path):
    """The output is a settings file of all defaults; each line has the unit, the origin and the reason."""
    code, output, lines = await ended("check-config", cwd=tmp_path)
    assert (code, lines) == (DONE, [])
    assert len(output) == len(KNOBS)
    (tmp_path / "halley.toml").write_text("\n".join(output))
    assert tomllib.loads("\n".join(output))["bayeux"]["hold_s"] == KNOBS["bayeux.hold_s"].default
    for line, knob in zip(output, KNOBS.values(), strict=True):
        setting, _, comment = line.partition("  # ")
        assert setting.split(" = ")[0] == knob.key
        assert comment.split(" | ")[0] == (knob.unit or "default")
        assert "default" in comment.split(" | ")
        assert knob.why in comment
    again = await ended("check-config", cwd=tmp_path)
    assert (again.code, again.lines) == (DONE, [])
    assert [line.partition("  # ")[0] for line in again.output] == [line.partition("  # ")[0] for line in output]


async def test_each_setting_tells_where_it_came_from(tmp_path):
    """A setting's origin is `halley.toml`, the file that --config or HALLEY_CONFIG names, or the environment."""
    (tmp_path / "halley.toml").write_text("port = 1\n[bayeux]\nhold_s = 0\n")
    (tmp_path / "other.toml").write_text("port = 2\n")

    async def shown(*arguments, **settings):
        code, output, _ = await ended("check-config", *arguments, cwd=tmp_path, **settings)
        assert code == DONE
        return {line.split(" = ")[0]: line.split(" = ", 1)[1].split() for line in output}

    found = await shown(HALLEY_BAYEUX_INTERVAL_S="0.5")
    assert found["port"][:4] == ["1", "#", "halley.toml:1", "|"]
    assert " ".join(found["bayeux.hold_s"]).startswith("0.0 # s | 0: connects are never held | halley.toml:3 | ")
    assert found["bayeux.interval_s"][:5] == ["0.5", "#", "s", "|", "HALLEY_BAYEUX_INTERVAL_S"]
    assert (await shown("--config", "other.toml"))["port"][2] == "other.toml:1"
    assert (await shown(HALLEY_CONFIG="other.toml"))["port"][2] == "other.toml:1"


@pytest.mark.parametrize("verb", [["check-config"], ["serve"]])
async def test_a_bad_file_is_told_by_line_key_and_need(verb, tmp_path):
    """The exit code is 2, and each mistake is printed in one line; `serve` prints the same and does not start."""
    (tmp_path / "halley.toml").write_text('prot = 1\n[bayeux]\nhold_s = "long"\n')
    code, output, lines = await ended(*verb, cwd=tmp_path, HALLEY_OPEN="perhaps")
    assert (code, output) == (WRONG_USE, [])
    assert lines == [
        "halley: halley.toml:1: prot: no such setting; did you mean port?",
        'halley: halley.toml:3: bayeux.hold_s: expected a number of at least 0 (s), found "long"',
        'halley: HALLEY_OPEN: open: expected true or false, found "perhaps"',
    ]


async def test_a_reader_that_leaves_check_config_sees_no_trace(tmp_path):
    """`halley check-config | head -1` prints no trace if head ends before anything is written."""
    reading, writing = os.pipe()
    os.close(reading)
    process = await spawn("check-config", cwd=tmp_path, stdout=writing, env=environment())
    os.close(writing)
    async with asyncio.timeout(DEADLINE_S):
        assert await process.communicate() == (None, b"")
