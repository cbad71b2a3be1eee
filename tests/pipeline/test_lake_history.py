"""`halley lake history`: a channel's events from the lake, in order, in the format of `GET /history`."""

from __future__ import annotations

import json
import random
import re
from time import monotonic

import pytest
from click.testing import CliRunner
from support import wamp
from support.lakes import DAY_US, LIFTED, START_US, add, make_lake, row, some_rows
from support.server import brisk, serving
from support.values import value
from support.wire import request

from halley.broker.events import to_text
from halley.broker.names import Match, Pattern, matches
from halley.cli import main
from halley.pipeline.errors import JobFailed, JobRejected
from halley.pipeline.lake.tables import path
from halley.pipeline.lake.upkeep import compact
from halley.pipeline.queries import events
from halley.pipeline.queries.events import EventReader, Selection, lines
from halley.protocols.bayeux.names import to_channel

ALL = Pattern(Match.DESCENDANTS, "")
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def offsets(lake, selection, after=0):
    return [each["offset"] for rows in EventReader(lake, selection).rows(after) for each in rows]


@pytest.mark.parametrize("is_compacted", [False, True])
def test_events_come_in_the_order_of_their_offsets_whatever_the_files(tmp_path, monkeypatch, is_compacted):
    """Random patterns and times are read in order from files that overlap and are sorted by topic."""
    chance = random.Random(7)
    rows = some_rows(200)
    for start in range(0, 200, 25):
        add(tmp_path, "events", rows[start : start + 25], LIFTED)
    if is_compacted:
        assert compact(tmp_path, "events").before > 9
    monkeypatch.setattr(events, "_MOST_ROWS", 13)
    patterns = [
        ALL,
        Pattern(Match.CHILDREN, "chat"),
        Pattern(Match.CHILDREN, "plc"),
        Pattern(Match.DESCENDANTS, "plc"),
        Pattern(Match.DESCENDANTS, "halley"),
        Pattern(Match.EXACT, "caf!c3!a9/!7ea"),
        Pattern(Match.EXACT, "a"),
    ]
    for pattern in patterns:
        low, high = sorted(START_US + chance.randrange(3 * DAY_US) for _ in range(2))
        selection = chance.choice(
            [Selection(pattern), Selection(pattern, low, high), Selection(pattern, low), Selection(pattern, None, high)]
        )
        after = chance.choice([0, 0, 61])
        wanted = [
            each["offset"]
            for each in rows
            if matches(pattern, each["topic"])
            and (selection.from_us or 0) <= each["time_us"] < (selection.to_us or 1 << 62)
        ]
        assert offsets(tmp_path, selection, after) == [each for each in wanted if each > after], selection
        assert EventReader(tmp_path, selection).count(after) == (len(wanted), sum(each <= after for each in wanted))


def test_files_that_cannot_matter_are_not_opened(tmp_path):
    """Files are skipped by the table's statistics."""
    make_lake(tmp_path)
    reading = EventReader(tmp_path, Selection(ALL, START_US + 2 * DAY_US)).reading
    assert (len(reading.files), reading.of) == (6, 18)
    assert EventReader(tmp_path, Selection(Pattern(Match.DESCENDANTS, "zzz"))).reading.files == []


async def test_a_line_is_that_of_the_server(tmp_path):
    """A line of `halley lake history` is that of `GET /history` for the same event, with the name after the channel."""
    options = {"enabled": True, "free_bytes": 0}
    async with serving(brisk(data_dir=str(tmp_path / "data"), history=options)) as served:
        wire = await served.wire()
        for data in ({"a": [1, 2.5, None, "<é\u0007"]}, "text", 0, [], {"event": 1}):
            await wire.post(
                {"channel": "/caf!c3!a9/~a", "data": data, "ext": {"binary": {"<é": "\u0007"}}}, traceparent=TRACE
            )
        wamp_client = await wamp.join(served.url)
        await wamp_client.publish("café.~a", [7], _traceparent=TRACE, disclose_me=True)
        served.house.broker.values.record(
            value("caf!c3!a9/~a".replace("~", "!7e"), b"1.5", 'struct:"é\u0007"'), monotonic()
        )
        answer = await wire.request(request("GET", "/history/caf!c3!a9/~a", accept="application/x-ndjson"))
        archive = served.house.apis.archive()
        rows = [each for batch in archive.history.rows(1, archive.head) for each in batch if each.topic[:3] == "caf"]
        add(tmp_path / "lake", "events", [row(**each._asdict()) for each in rows])
    found = [line for page in lines(tmp_path / "lake", Selection(ALL)) for line in page]
    assert all(line.startswith('{"channel":"/caf!c3!a9/~a","name":') for line in found)
    assert [re.sub(r',"name":"[^"]*"', "", line, count=1) for line in found] == answer.text.splitlines()
    assert all(f'"traceparent":"{TRACE}"' in line for line in found[:-1])
    assert '"name":"/café/~a"' in found[-1]
    assert '"nt4":{"type":"struct:\\"é\\u0007\\"","time":7}' in found[-1]


def lake_history(*arguments):
    return CliRunner().invoke(main, ["lake", "history", *arguments])


def test_the_verb_prints_lines_and_can_be_bounded(tmp_path):
    """Events are in order; times are RFC 3339, and the end of a range is exclusive."""
    rows = make_lake(tmp_path, 60)
    ended = lake_history("/chat/*", "--lake", str(tmp_path))
    assert ended.exit_code == 0
    found = [json.loads(line) for line in ended.output.splitlines()]
    chats = [each for each in rows if each["topic"].startswith("chat/")]
    assert [(each["position"], each["channel"]) for each in found] == [
        (each["offset"], to_channel(each["topic"])) for each in chats
    ]
    bounds = ["--from", to_text(chats[3]["time_us"]), "--to", to_text(chats[7]["time_us"])]
    some = lake_history("/chat/*", "--lake", str(tmp_path), *bounds).output.splitlines()
    assert some == ended.output.splitlines()[3:7]
    assert (
        lake_history("/chat/*", "--lake", str(tmp_path), "--limit", "2").output.splitlines()
        == (ended.output.splitlines()[:2])
    )


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("com.shop.order", [(1, "com.shop.order"), (2, "/com/shop/order")]),
        ("/com/shop/order", [(1, "com.shop.order"), (2, "/com/shop/order")]),
        ("/robot/weird name %d.x", [(3, "/robot/weird name %d.x")]),
        ("/robot/weird!20name!20!25d!2ex", [(3, "/robot/weird name %d.x")]),
        ("/a/b", [(4, "/a/b"), (5, "/a/b"), (6, "a.b")]),
        ("/a!2eb", [(7, "/a.b")]),
        ("/a.b", [(7, "/a.b")]),
        ("/a.b/**", [(8, "/a.b/c d")]),
        ("chat", []),
    ],
)
def test_a_topic_is_found_by_any_of_its_names(tmp_path, name, found):
    """A URI, a name of NetworkTables and a channel find the topic's events by all protocols, each with its own name."""
    topics = ["com/shop/order", "com/shop/order", "robot/weird!20name!20!25d!2ex", "a/b", "a/b", "a/b", "a!2eb",
              "a!2eb/c!20d"]  # fmt: skip
    protocols = ["wamp", "bayeux", "nt4", "nt4", "bayeux", "wamp", "nt4", "nt4"]
    rows = [row(n, topic=topic, protocol=by) for n, (topic, by) in enumerate(zip(topics, protocols, strict=True), 1)]
    add(tmp_path, "events", rows)
    ended = lake_history(name, "--lake", str(tmp_path))
    assert ended.exit_code == 0
    lines = map(json.loads, ended.output.splitlines())
    assert [(each["position"], each["name"]) for each in lines] == found


def test_bad_input_gets_a_sentence(tmp_path):
    """A missing lake, an invalid channel or time gives exit code 2 and no output."""
    for arguments, said in [
        (["/a"], "there is no lake at"),
        (["chat/a"], "chat/a is not a channel"),
        (["com.shop.*"], "com.shop.* is not a channel"),
        (["/a//b c"], "/a//b c is not a channel"),
        (["/a", "--from", "yesterday"], "yesterday is not an RFC 3339 time"),
    ]:
        ended = lake_history(*arguments, "--lake", str(tmp_path))
        assert (ended.exit_code, ended.stdout) == (2, "")
        assert said in " ".join(ended.stderr.split())


def test_a_folder_that_is_no_table_is_refused(tmp_path):
    """Files without a Delta log are never read by their names (T15)."""
    (tmp_path / "events" / "day=2026-06-01").mkdir(parents=True)
    with pytest.raises(JobRejected, match="no Delta log"):
        EventReader(tmp_path, Selection(ALL))


def test_a_file_that_is_gone_is_told(tmp_path):
    """A file that the table names but that was deleted is reported."""
    make_lake(tmp_path, 30)
    for file in path(tmp_path, "events").rglob("*.parquet"):
        file.unlink()
    with pytest.raises(JobFailed, match="cannot be read"):
        offsets(tmp_path, Selection(ALL))
