"""A server's log as the pipeline reads it: real sockets, rows of a known log, and responses that break off."""

import asyncio
import pickle
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio
from support.archive import BEGAN_US, given
from support.server import brisk, serving

from halley.access.tokens import hash_of
from halley.broker.names import Match, Pattern
from halley.history.row_filter import EVERY_ROW, RowFilter
from halley.history.stored import Stored
from halley.pipeline.errors import JobFailed, JobRejected
from halley.pipeline.source import http_log, open_log
from halley.pipeline.source.http_log import HttpLog
from halley.pipeline.source.log import Fault
from halley.settings import Access, Token

TOKEN = "a-token-that-is-long-enough-for-halley"


@pytest.fixture(autouse=True)
def _hurry(monkeypatch):
    monkeypatch.setattr(http_log, "_FIRST_WAIT_S", 0.001)


@pytest_asyncio.fixture
async def served():
    async with serving(brisk()) as served:
        archive = given(served)
        for number in range(1, 1_001):
            archive.record("news", f'{{"number":{number}}}')
        yield served


def told(log, first, until, wanted=EVERY_ROW):
    """Return the wanted rows and the faults of a range."""
    found = list(log.read(first, until, wanted))
    rows = [Stored._make(row) for each in found if isinstance(each, list) for row in each]
    return rows, [each for each in found if isinstance(each, Fault)]


@pytest.mark.parametrize("has_arrow", [True, False])
async def test_every_row_comes_as_it_was_stored(served, has_arrow, monkeypatch):
    """Rows are read as Arrow or as JSON lines, for any range, in responses of a limited number of rows."""
    monkeypatch.setattr("halley.transports.api.log.MOST_ROWS", 300)
    if not has_arrow:
        monkeypatch.setattr("halley.transports.api.log.Arrow.__init__", _not_installed)
    archive = served.house.apis.archive()
    log = HttpLog(served.url, None)
    head = await asyncio.to_thread(log.head)
    assert (head.log_id, head.first, head.next) == ("log-of-a-test", 1, 1_001)
    for first, until in ((1, 1_001), (5, 6), (299, 302), (7, 7)):
        rows, faults = await asyncio.to_thread(told, log, first, until)
        assert (rows, faults) == (archive.rows_of[first - 1 : until - 1], [])


@pytest.mark.parametrize("has_arrow", [True, False])
async def test_separators_of_lines_within_a_text_end_no_row(has_arrow, monkeypatch):
    """Only a line feed ends a line of JSON; Unicode has others, and a text may contain them."""
    if not has_arrow:
        monkeypatch.setattr("halley.transports.api.log.Arrow.__init__", _not_installed)
    async with serving(brisk()) as served:
        archive = given(served)
        for payload in ('"a\u2028b\u2029c\u0085d"', "1"):
            archive.record("news", payload)
        assert await asyncio.to_thread(told, HttpLog(served.url, None), 1, 3) == (archive.rows_of, [])


def _not_installed(self):
    raise ImportError


async def test_what_the_log_has_lost_is_told(served):
    """A range without rows is a hole or damage if the head says so, else it is missing (L9)."""
    archive = served.house.apis.archive()
    lost = {*range(10, 20), *range(30, 50), 1_000}
    sound = archive.rows
    archive.rows = lambda first, last: ([row for row in rows if row.offset not in lost] for rows in sound(first, last))
    archive.holes += [(10, 14)]
    archive.damage += [(15, 35), (1_000, 1_000)]
    rows, faults = await asyncio.to_thread(told, HttpLog(served.url, None), 1, 1_001)
    assert faults == [
        Fault(10, 14, "hole"),
        Fault(15, 19, "damaged"),
        Fault(30, 35, "damaged"),
        Fault(36, 49, "missing"),
        Fault(1_000, 1_000, "damaged"),
    ]
    assert len(rows) == 1_000 - 31


async def test_what_is_gone_is_missing(served):
    """Offsets below the log's first one are missing; the rest is read."""
    served.house.apis.archive().start = 400
    rows, faults = await asyncio.to_thread(told, HttpLog(served.url, None), 1, 1_001)
    assert faults == [Fault(1, 399, "missing")]
    assert [row.offset for row in rows] == list(range(400, 1_001))


async def test_an_answer_that_breaks_off_is_taken_up_again(served):
    """Every row is read once, although responses break off in the middle."""
    archive = served.house.apis.archive()
    sound, asked = archive.rows, []

    def failing(first, last):
        asked.append(first)
        if len(asked) % 4 == 0:
            raise OSError("the disk says no")
        yield from sound(first, last)

    archive.rows = failing
    rows, faults = await asyncio.to_thread(told, HttpLog(served.url, None), 1, 1_001)
    assert [row.offset for row in rows] == list(range(1, 1_001))
    assert not faults
    assert len(asked) >= 13
    assert served.faults("request")
    served.log.clear()


# Only some rows

WANTED = RowFilter(Pattern(Match.DESCENDANTS, "prices"), "wamp", BEGAN_US + 100_000_000, BEGAN_US + 900_500_000)


@pytest_asyncio.fixture
async def mixed():
    """Serve a log of 1,000 events, of which some are wanted."""
    async with serving(brisk()) as served:
        archive = given(served)
        for number in range(1, 1_001):
            archive.record(("prices/a", "prices/b", "news")[number % 3], protocol=("wamp", "bayeux")[number % 2])
        yield served


def wanted_of(archive):
    """Return the rows that `WANTED` matches."""
    return [row for row in archive.rows_of if WANTED.matches(row)]


@pytest.mark.parametrize("has_arrow", [True, False])
async def test_only_wanted_rows_are_sent(mixed, has_arrow, monkeypatch):
    """By channel, protocol and time, for any range, in responses of a limited number of offsets."""
    monkeypatch.setattr("halley.transports.api.log.MOST_ROWS", 300)
    if not has_arrow:
        monkeypatch.setattr("halley.transports.api.log.Arrow.__init__", _not_installed)
    wanted = wanted_of(mixed.house.apis.archive())
    assert len(wanted) > 200
    log = HttpLog(mixed.url, None)
    for first, until in ((1, 1_001), (299, 302), (500, 501), (7, 7), (950, 1_001)):
        rows, faults = await asyncio.to_thread(told, log, first, until, WANTED)
        assert (rows, faults) == ([row for row in wanted if first <= row.offset < until], [])


async def test_gaps_are_found_whatever_is_wanted(mixed):
    """L9: holes and damage are faults, also among rows that are not wanted; so is what is deleted already."""
    archive = mixed.house.apis.archive()
    lost = {*range(400, 420), *range(1, 200)}
    sound = archive.next_rows

    def next_rows(first, last, wanted):
        rows, reached = sound(first, last, wanted)
        archive.damage[:] = [(408, 419)]  # which is found when it is read
        return [row for row in rows if row.offset not in lost], reached

    archive.next_rows, archive.holes, archive.start = next_rows, [(400, 407)], 200
    rows, faults = await asyncio.to_thread(told, HttpLog(mixed.url, None), 1, 1_001, WANTED)
    assert faults == [Fault(1, 199, "missing"), Fault(400, 407, "hole"), Fault(408, 419, "damaged")]
    assert rows == [row for row in wanted_of(archive) if row.offset not in lost]


async def test_rows_that_were_sent_before_the_damage_was_found_are_no_fault(mixed):
    """Each offset is either a row or in a fault."""
    archive = mixed.house.apis.archive()
    sound = archive.next_rows

    def next_rows(first, last, wanted):
        rows, reached = sound(first, last, wanted)
        if first == 101:
            archive.damage[:] = [(1, 200)]
            return [row for row in rows if row.offset < 151], reached
        return rows, reached

    archive.next_rows = next_rows
    rows, faults = await asyncio.to_thread(told, HttpLog(mixed.url, None), 1, 1_001, WANTED)
    last_sent = max(row.offset for row in rows if row.offset < 151)
    assert faults == [Fault(last_sent + 1, 200, "damaged")]
    assert rows == [row for row in wanted_of(archive) if not last_sent < row.offset < 201]


async def test_a_filtered_answer_that_breaks_off_is_taken_up_again(mixed):
    """Every wanted row is read once, and every gap found, although responses break off in the middle."""
    archive = mixed.house.apis.archive()
    archive.holes = [(300, 310), (700, 701)]
    lost = {*range(300, 311), 700, 701}
    sound, asked = archive.next_rows, []

    def failing(first, last, wanted):
        asked.append(first)
        if len(asked) % 3 == 0:
            raise OSError("the disk says no")
        rows, reached = sound(first, last, wanted)
        return [row for row in rows if row.offset not in lost], reached

    archive.next_rows = failing
    rows, faults = await asyncio.to_thread(told, HttpLog(mixed.url, None), 1, 1_001, WANTED)
    assert rows == [row for row in wanted_of(archive) if row.offset not in lost]
    assert faults == [Fault(300, 310, "hole"), Fault(700, 701, "hole")]
    assert mixed.faults("request")
    mixed.log.clear()


async def test_a_keeper_that_is_behind_has_sent_not_all_that_is_wanted():
    """What a keeper does not have yet is asked of the next one, and not taken for unwanted."""
    async with two_keepers() as (one, two):
        del one.house.apis.archive().rows_of[600:]
        wanted = RowFilter(Pattern(Match.EXACT, "news"))
        rows, faults = await asyncio.to_thread(told, HttpLog(f"{one.url},{two.url}", None), 1, 1_001, wanted)
        assert ([row.offset for row in rows], faults) == ([*range(1, 1_001)], [])


async def test_nobody_answers():
    """After some tries an unreachable server is reported in one sentence."""
    log = HttpLog("http://127.0.0.1:9", None)
    with pytest.raises(JobFailed, match=r"the log of http://127.0.0.1:9/ cannot be read: "):
        await asyncio.to_thread(log.head)


async def test_a_server_of_another_kind(served):
    """A server without Halley's log is refused with one sentence."""
    log = HttpLog(f"{served.url}/elsewhere/bayeux", None)
    with pytest.raises(JobRejected, match="has no log: it is not a Halley server, or its history is off"):
        await asyncio.to_thread(log.head)


async def test_another_log_behind_the_same_address(served):
    """A server that has another log now is noticed and refused."""
    log = HttpLog(served.url, None)
    await asyncio.to_thread(log.head)
    served.house.apis.archive().log_id = "another"
    with pytest.raises(JobRejected, match="now has another log"):
        await asyncio.to_thread(told, log, 1, 10)


@asynccontextmanager
async def two_keepers():
    """Two servers with the same log of 1,000 events, as the keepers of a cluster have it."""
    async with serving(brisk()) as one, serving(brisk()) as two:
        for served in (one, two):
            archive = given(served)
            for number in range(1, 1_001):
                archive.record("news", f'{{"number":{number}}}')
        yield one, two


async def test_the_next_keeper_is_read_where_one_does_not_answer():
    """Each row is read once, although the first one fails in the middle; other processes go on at the second."""
    async with two_keepers() as (one, two):
        log = HttpLog(f"{one.url},{two.url}", None)
        archive, other = (each.house.apis.archive() for each in (one, two))
        assert (await asyncio.to_thread(log.head)).next == 1_001
        sound, asked = archive.rows, []

        def failing(first, last):
            asked.append(first)
            if len(asked) > 1:
                raise OSError("the disk says no")
            yield from sound(first, last)

        archive.rows = failing
        rows, faults = await asyncio.to_thread(told, log, 1, 1_001)
        assert ([row.offset for row in rows], faults, len(asked)) == ([*range(1, 1_001)], [], 2)
        await asyncio.to_thread(open_log(log.options).commit, "lake", 1_001)
        assert (archive.consumers, other.consumers) == ({}, {"lake": 1_001})
        assert [*one.faults("request"), *two.faults("request")]
        for served in (one, two):
            served.log.clear()


async def test_a_keeper_that_is_behind_has_lost_nothing():
    """What a keeper does not have yet is not missing: the next one is asked, or the same one again."""
    async with two_keepers() as (one, two):
        del one.house.apis.archive().rows_of[600:]
        rows, faults = await asyncio.to_thread(told, HttpLog(f"{one.url},{two.url}", None), 1, 1_001)
        assert ([row.offset for row in rows], faults) == ([*range(1, 1_001)], [])
        with pytest.raises(JobFailed, match="expected at most the next offset"):
            await asyncio.to_thread(told, HttpLog(one.url, None), 602, 1_001)


async def test_a_keeper_with_another_log_is_refused():
    """A second server whose log is another one is not read, also by a process that has not seen the first one's."""
    async with two_keepers() as (one, two):
        log = HttpLog(one.url, None)
        await asyncio.to_thread(log.head)
        two.house.apis.archive().log_id = "another"
        other = open_log(log.options | {"url": two.url})
        for use in (other.head, lambda: told(other, 1, 10)):
            with pytest.raises(JobRejected, match="now has another log"):
                await asyncio.to_thread(use)


@asynccontextmanager
async def _guarded(*verbs):
    access = tuple(Access("reader", verb, "/**") for verb in verbs)
    async with serving(brisk(access=access, tokens=(Token("eve", "reader", hash_of(TOKEN)),))) as served:
        archive = given(served)
        for number in range(1, 11):
            archive.record("news", f'{{"number":{number}}}')
        yield served


async def test_the_token_is_shown_and_kept_secret(tmp_path):
    """With the right `export` the log can be read; without it, or with a wrong token, the error hides the token."""
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    async with _guarded("export") as served:
        log = open_log({"url": served.url, "token_file": str(file)})
        assert TOKEN not in repr(log)
        rows, _ = await asyncio.to_thread(told, pickle.loads(pickle.dumps(log)), 1, 11)
        assert len(rows) == 10
        await asyncio.to_thread(log.commit, "ingest", 5)
        assert served.house.apis.archive().consumers == {"ingest": 5}
        with pytest.raises(JobRejected, match="does not accept the token") as refused:
            await asyncio.to_thread(HttpLog(served.url, TOKEN[::-1]).head)
        assert TOKEN[::-1] not in str(refused.value)
    async with _guarded("subscribe") as served:
        with pytest.raises(JobRejected, match="lacks the right `export`") as refused:
            await asyncio.to_thread(HttpLog(served.url, TOKEN).head)
        assert TOKEN not in str(refused.value)


def test_options_that_name_no_log(tmp_path):
    """Incomplete, contradictory and malformed options are refused with one sentence each."""
    for options, said in (
        ({}, "one of the two"),
        ({"path": "a", "url": "http://b"}, "one of the two"),
        ({"url": "ftp://b"}, "expected a URL like"),
        ({"url": "http://b", "token": "a b"}, "a token consists of"),
        ({"url": "http://b", "token": "a", "token_file": "b"}, "one of the two"),
        ({"url": "http://b", "token_file": str(tmp_path / "none")}, "cannot be read"),
    ):
        with pytest.raises(JobRejected, match=said):
            open_log(options)
