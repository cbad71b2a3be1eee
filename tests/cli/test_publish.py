"""`halley publish` as its users run it: at a pipe, at a terminal, and interrupted."""

from __future__ import annotations

import asyncio
import json
import signal
from asyncio.subprocess import PIPE

import pytest
import pytest_asyncio
from support.process import ended, started
from support.server import brisk, serving
from support.tcp_proxy import relaying
from support.terminal import CTRL_D, LOGIN, terminal

DONE, FAILED, INTERRUPTED = 0, 1, 130


@pytest_asyncio.fixture
async def served():
    async with serving(brisk(limits={"queue_events": 10_000})) as served:
        yield served


@pytest.fixture
def heard(served):
    """The events that were published, as (channel, data), in order."""
    events = []
    served.halley.local_session("test").subscribe("/**", lambda channel, data: events.append((channel, data)))
    return events


# At a pipe


@pytest.mark.parametrize("value", ['"hello"', "-5", "null", '{"a": [1, "ü €"]}', "1e2"])
async def test_a_value_is_published(value, served, heard, tmp_path):
    """`halley publish CHANNEL JSON` publishes any value, even one that looks like an option, and ends its session."""
    code, output, lines = await ended("publish", "/room/a", value, "--server", served.url, cwd=tmp_path)
    assert (code, output, lines) == (DONE, [], ["halley: published 1 event"])
    assert heard == [("/room/a", json.loads(value))]
    assert served.house.broker.closed == {"disconnected": 1}


@pytest.mark.parametrize("dash", [["-"], []])
async def test_lines_are_published_in_order(dash, served, heard, tmp_path):
    """`halley publish CHANNEL [-]` publishes a value a line; blank lines are skipped, and the last needs no newline."""
    ended_so = await ended("publish", "/a", *dash, "--server", served.url, cwd=tmp_path, stdin=b'1\n\n "b" \r\n[3]\n4')
    assert ended_so == (DONE, [], ["halley: published 4 events"])
    assert heard == [("/a", 1), ("/a", "b"), ("/a", [3]), ("/a", 4)]


async def test_a_line_is_published_when_it_comes(served, heard, tmp_path):
    """A line is published before the next one is written."""
    async with started("publish", "/a", "--server", served.url, cwd=tmp_path, stdin=PIPE) as publishing:
        for number in range(3):
            await publishing.feed(b"%d\n" % number)
            await served.until(lambda number=number: heard == [("/a", each) for each in range(number + 1)])
        publishing.process.stdin.close()
        assert await publishing.exit_code() == DONE


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"{bad", "not JSON: Expecting property name enclosed in double quotes (column 2)"),
        (b"NaN", "not JSON: NaN is not a JSON number"),
        (b"-Infinity", "not JSON: -Infinity is not a JSON number"),
        (b'"\\ud800"', "not JSON: half of a surrogate pair"),
        (b'"\xff"', "not JSON: not UTF-8"),
        (b"[" * 100_000, "not JSON: nested too deeply"),
        (b'"' + b"x" * 1_200_000, "longer than 1048576 bytes"),
    ],
    ids=["syntax", "nan", "infinity", "surrogate", "bytes", "depth", "length"],
)
async def test_a_line_that_is_no_json_stops_it(line, problem, served, heard, tmp_path):
    """The lines before a bad one are published, those after it are not, and its number is printed."""
    stdin = b"1\n\n2\n" + line + b"\n5\n"
    code, output, lines = await ended("publish", "/a", "--server", served.url, cwd=tmp_path, stdin=stdin)
    assert (code, output) == (FAILED, [])
    assert lines == [f"halley: line 4: {problem}", "halley: published 2 events"]
    assert heard == [("/a", 1), ("/a", 2)]


async def test_a_refused_value_fails(served, tmp_path):
    """The server's error text is printed once for all lines, and the refused values are counted."""
    one = await ended("publish", "/a/*", "1", "--server", served.url, cwd=tmp_path)
    assert one == (FAILED, [], ["halley: not published: 400:/a/*:channel_is_a_wildcard"])
    large = b'"%b"' % (b"x" * 70_000)
    lines = b"\n".join([b"1", large, b"2", large, b"3"])
    some = await ended("publish", "/a", "--server", served.url, cwd=tmp_path, stdin=lines)
    assert some == (
        FAILED,
        [],
        ["halley: line 2: refused: 413::data_too_large", "halley: published 3 events, 2 refused"],
    )


@pytest.mark.parametrize(
    ("arguments", "stdin", "told"),
    [(["/a", "1"], None, "perhaps published"), (["/a"], b"\n1\n2\n", "from line 2 on perhaps published")],
)
async def test_a_lost_answer_is_told_as_doubt(arguments, stdin, told, served, tmp_path):
    """A publish whose reply is lost may have been done: it is not repeated, and reported as perhaps published."""
    async with relaying(served.port) as proxy:

        def lose_the_answer(session, message):
            proxy.loses_answers = True

        served.halley.listener("/a")(lose_the_answer)
        server = f"http://127.0.0.1:{proxy.port}"
        ending = asyncio.create_task(ended("publish", *arguments, "--server", server, cwd=tmp_path, stdin=stdin))
        await served.until(lambda: proxy.vanished > 0)
        published = served.house.broker.published
        proxy.cut()
        code, output, lines = await ending
    assert (code, output) == (FAILED, [])
    assert lines[0].startswith(f"halley: {told}: connection to {server}/bayeux lost (")
    assert served.house.broker.published == published


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_an_interrupted_publish_tells_how_far_it_came(number, served, heard, tmp_path):
    """The exit code is 130, the count is printed, and the session is ended, although standard input is still open.

    The second line is sent when the first has its reply; the second reply may be missing at the end.
    """
    async with started("publish", "/a", "--server", served.url, cwd=tmp_path, stdin=PIPE) as publishing:
        for line in (b"1\n", b"2\n"):
            before = len(heard)
            await publishing.feed(line)
            await served.until(lambda before=before: len(heard) > before)
        publishing.send_signal(number)
        assert await publishing.exit_code() == INTERRUPTED
    assert publishing.lines in (["halley: published 1 event"], ["halley: published 2 events"])
    assert served.house.broker.closed == {"disconnected": 1}


async def test_without_standard_input_publishing_fails(served, tmp_path):
    """A closed standard input is reported as an error, without a trace."""
    shell = ("sh", "-c", 'exec "$@" <&-', "sh")
    async with started("publish", "/a", "--server", served.url, cwd=tmp_path, through=shell) as publishing:
        assert await publishing.exit_code() == FAILED
    assert publishing.lines[0].startswith("halley: standard input: ")


# At a terminal


async def test_a_long_publish_shows_a_bar(served, heard, tmp_path):
    """A terminal on standard error gets a progress bar; the input's length is known, so it ends at 100 %."""
    (tmp_path / "values").write_text("\n".join(map(str, range(5_000))))
    with terminal() as at, (tmp_path / "values").open() as values:
        arguments = ("publish", "/a", "--server", served.url)
        async with started(*arguments, cwd=tmp_path, stdin=values, stderr=at.line) as publishing:
            assert await publishing.exit_code() == DONE
        await at.until_shown("published 5,000 events")
    assert "publishing  [" in at.shown
    assert "100%" in at.shown
    assert heard == [("/a", number) for number in range(5_000)]


async def test_a_long_publish_from_a_pipe_shows_a_count(served, tmp_path):
    """If the input's length is unknown, the bar counts events; refusals are printed above it."""
    with terminal() as at:
        arguments = ("publish", "/a", "--server", served.url)
        async with started(*arguments, cwd=tmp_path, stdin=PIPE, stderr=at.line) as publishing:
            await publishing.feed(b"1\n" * 1_500)
            await at.until_shown("1,500 events")
            await publishing.feed(b'"%b"\n' % (b"x" * 70_000))
            await at.until_shown("line 1501: refused: 413::data_too_large")
            publishing.process.stdin.close()
            assert await publishing.exit_code() == FAILED
        await at.until_shown("published 1,500 events, 1 refused")


async def test_an_error_is_printed_below_the_bar(served, tmp_path):
    """What ends the work too early begins a line of its own."""
    with terminal() as at:
        arguments = ("publish", "/a", "--server", served.url)
        async with started(*arguments, cwd=tmp_path, stdin=PIPE, stderr=at.line) as publishing:
            await publishing.feed(b"1\n" * 1_500)
            await at.until_shown("1,500 events")
            await publishing.feed(b"nothing\n")
            assert await publishing.exit_code() == FAILED
        await at.until_shown("published 1,500 events")
    assert "\nhalley: line 1501: not JSON" in at.shown


async def test_no_bar_where_nobody_watches_or_it_is_short(served, tmp_path):
    """No bar is drawn into a log, nor for ten events, which are done before it could be seen."""
    arguments = ("publish", "/a", "--server", served.url)
    many = await ended(*arguments, cwd=tmp_path, stdin=b"1\n" * 3_000)
    assert many == (DONE, [], ["halley: published 3,000 events"])
    with terminal() as at:
        async with started(*arguments, cwd=tmp_path, stdin=PIPE, stderr=at.line) as publishing:
            await publishing.feed(b"1\n" * 10)
            publishing.process.stdin.close()
            assert await publishing.exit_code() == DONE
        await at.until_shown("published 10 events")
    assert "publishing" not in at.shown


async def test_values_can_be_typed(served, heard, tmp_path):
    """At a terminal, publish prints what it waits for, publishes each line, and ends with Ctrl-D."""
    with terminal() as at:
        options = {"stdin": at.line, "stdout": at.line, "stderr": at.line, "through": LOGIN}
        async with started("publish", "/a", "--server", served.url, cwd=tmp_path, **options) as publishing:
            await at.until_shown("halley: reading one JSON value a line; end with Ctrl-D")
            at.type("1\n")
            await served.until(lambda: heard == [("/a", 1)])
            at.type(CTRL_D)
            assert await publishing.exit_code() == DONE
        await at.until_shown("published 1 event")
