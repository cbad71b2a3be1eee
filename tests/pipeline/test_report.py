"""`halley lake report`: one page whose numbers are those of the lake, and which loads nothing."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest
from click.testing import CliRunner
from support.lakes import DAY_US, START_US, add, make_lake, row

from halley.broker.events import to_text
from halley.cli import main
from halley.pipeline.lake.tables import path
from halley.pipeline.queries.report import _lateness, latencies, page, seconds, short
from halley.pipeline.queries.report_data import Commit, collect

VOID = {"meta"}


class Page(HTMLParser):
    """A parsed page: its elements with their attributes, and its text; asserts that all elements are closed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.text = [], [], ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data + " "


@pytest.fixture
def lake(tmp_path):
    """Make a lake with rows in all tables of the report, and hostile names."""
    make_lake(tmp_path, 300)
    hostile = '<img src=x onerror=alert(1)>"&'
    topic = "".join(char if char.isalnum() else f"!{ord(char):02x}" for char in hostile)
    many = [row(300 + n, topic=topic, time_us=START_US + 3 * DAY_US + n) for n in range(1, 101)]
    add(tmp_path, "events", many)
    alert = {
        "at_us": START_US,
        "topic": topic,
        "protocol": "nt4",
        "kind": "<b>spike",
        "rate": 12.5,
        "usual": None,
        "offset": 1,
    }
    add(
        tmp_path,
        "alerts",
        [alert, alert | {"at_us": START_US + 5 * DAY_US, "kind": "silence", "rate": 0.0, "usual": 3.0}],
    )
    add(tmp_path, "gaps", [{"first": 500, "last": 600, "reason": "hole", "found_us": START_US}])
    add(tmp_path, "rejected", [{"first": 7, "last": 7, "reason": "<i>purged"}])
    return tmp_path


def test_the_numbers_are_those_of_the_lake(lake):
    """Events by time and protocol, channels, batches and the tables' rows are counted correctly."""
    found = collect(lake, None, None)
    rows = 400
    assert found.events == rows
    assert sum(count for _, count in found.channels) == rows
    assert found.channels[0] == max(found.channels, key=lambda each: each[1])
    assert found.topics == 8
    assert {name: sum(each.values()) for name, each in found.bars.items()}["bayeux"] > 100
    assert all(start % found.step_us == 0 for each in found.bars.values() for start in each)
    assert len({start for each in found.bars.values() for start in each}) <= 120
    assert [(each.name, each.rows) for each in found.holdings if each.rows] == [
        *(("events", rows), ("rejected", 1), ("gaps", 1), ("alerts", 2))
    ]
    assert sum(each.events for each in found.commits) == rows
    assert all(each.oldest_us <= each.newest_us < each.at_us for each in found.commits)
    assert [each["kind"] for each in found.alerts] == ["silence", "<b>spike"]
    assert [(kind, first, last) for kind, _, first, last in found.losses] == [
        ("gap", 500, 600),
        ("rejected", 7, 7),
    ]


def test_a_part_of_the_time(lake):
    """A report can be limited to a time, whose end is exclusive."""
    found = collect(lake, START_US + DAY_US, START_US + 2 * DAY_US)
    assert found.events == 100
    assert found.alerts == []
    assert (found.from_us, found.to_us) == (START_US + DAY_US, START_US + 2 * DAY_US)


def test_the_age_of_events_is_told_from_the_log_of_the_table(lake):
    """An event's age is counted until the Delta commit of its batch; commits of erasures do not count."""
    logged = path(lake, "events") / "_delta_log/00000000000000000001.json"
    actions = [json.loads(line) for line in logged.read_text().splitlines()]
    at_us = next(each["commitInfo"]["timestamp"] for each in actions if "commitInfo" in each) * 1_000
    before = collect(lake, None, None).commits
    assert before[0].at_us == at_us
    from deltalake import DeltaTable

    DeltaTable(path(lake, "events")).delete("topic = 'chat/den'")
    assert collect(lake, None, None).commits == before


def test_the_page_asks_for_nothing_and_runs_nothing(lake):
    """The page has no addresses and no scripts, and names that peers chose cannot become either."""
    text = page(collect(lake, None, None), lake, START_US)
    shown = Page(text)
    assert {tag for tag, _ in shown.elements}.isdisjoint({"script", "img", "link", "iframe", "b2", "i", "object"})
    for tag, attributes in shown.elements:
        assert not attributes.keys() & {"src", "href", "xlink:href", "srcset", "action"}, tag
        assert not any(name.startswith("on") for name in attributes), tag
    assert re.findall(r"https?://|url\(|@import", text) == []
    assert "default-src 'none'" in text
    assert "!3cimg" in shown.text
    assert "<b>spike" in shown.text
    assert "<i>purged" in shown.text
    assert "Not in the lake" in shown.text
    assert "prefers-color-scheme:dark" in text


def test_a_lake_without_events_has_a_page_too(tmp_path):
    """A lake without events has a page that says so."""
    add(tmp_path, "events", [])
    text = page(collect(tmp_path, None, None), tmp_path, START_US)
    assert "None in this time range." in Page(text).text


def test_the_verb_writes_the_file_whole(lake, tmp_path):
    """An older page is replaced and no other file is left; a folder that does not exist is reported in one sentence."""
    out = tmp_path / "pages" / "report.html"
    refused = CliRunner().invoke(main, ["lake", "report", "--lake", str(lake), "--out", str(out)])
    assert refused.exit_code == 2
    assert "cannot be written: No such file or directory" in refused.stderr
    out.parent.mkdir()
    for bounds in ([], ["--from", to_text(START_US + DAY_US), "--to", to_text(START_US + 2 * DAY_US)]):
        ended = CliRunner().invoke(main, ["lake", "report", "--lake", str(lake), "--out", str(out), *bounds])
        assert ended.exit_code == 0
        assert ("400" if not bounds else "100") in Page(out.read_text(encoding="utf-8")).text
    assert [each.name for each in out.parent.iterdir()] == ["report.html"]


def test_ages_of_batches_are_drawn_between_marks():
    """Each mark of the logarithmic scale from below the youngest age to above the oldest is labelled."""
    drawn = latencies([Commit(START_US, 1, START_US - 700_000_000, START_US - 500_000)])
    assert re.findall(r">([\d.]+ (?:ms|s|min|h|d))</text>", drawn) == [
        "100 ms", "1 s", "10 s", "1 min", "10 min", "1 h",
    ]  # fmt: skip


def test_an_event_from_the_future_has_no_negative_age():
    """Clocks differ: an event dated after the commit of its batch counts as new."""
    told = Page(_lateness([Commit(START_US, 1, START_US, START_US + 5_000_000)])).text
    assert "its newest event was 0 ms old in the median and 0 ms at the 95th percentile" in told


def test_of_very_many_batches_the_picture_stays_small():
    """A live ingest commits every few seconds for days, and its plot has a bounded number of points."""
    commits = [
        Commit(START_US + n * 5_000_000, 1, START_US + n * 5_000_000 - 3_000_000 - n, START_US) for n in range(20_000)
    ]
    assert latencies(commits).count("<circle") <= 400


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (short(999), "999"),
        (short(12_345), "12.3k"),
        (short(2.5e6), "2.5M"),
        (seconds(0.012), "12 ms"),
        (seconds(1), "1 s"),
        (seconds(90), "1.5 min"),
        (seconds(5_400), "1.5 h"),
        (seconds(180_000), "2.08 d"),
    ],
)
def test_numbers_are_short(shown, text):
    """Numbers next to the plots are short."""
    assert shown == text
