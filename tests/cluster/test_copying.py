"""What a folder comes to that gets rows of another one with the same log."""

from __future__ import annotations

import pytest

from halley.broker.events import Event, Publications, new_key
from halley.cluster.applied import StreamState
from halley.cluster.copying import Copy, copied, usable
from halley.cluster.keeper_client import KeeperState
from halley.cluster.requests import RequestRefused
from halley.history.folder import Identity
from halley.history.stored import row_of, tombstone
from halley.settings import Settings

KEY = new_key()


def row(offset):
    """Return a row of the log."""
    event = Event("t", str(offset).encode(), protocol="bayeux")
    publications = Publications(KEY, offset - 1)
    event.time_us, event.publication = offset, publications.next()
    return row_of(event, offset)


@pytest.fixture
def copy(tmp_path):
    Identity("log", KEY, first=1).save(tmp_path / "log.json")
    copy = Copy(Settings(), tmp_path)
    yield copy
    copy.history.close()


def rows(copy):
    """Return what the folder has."""
    return [each for found in copy.history.rows(1, copy.history.head) for each in found]


def test_what_the_other_has_lost_is_lost_here_too(copy):
    """Its offsets are holes, and what follows is taken."""
    copy.history.copy([row(1), row(2), row(5)], 8)
    copy.history.copy([row(2), row(9), tombstone(row(10))], 10)
    assert rows(copy) == [row(1), row(2), row(5), row(9), tombstone(row(10))]
    assert copy.history.holes == [(3, 4), (6, 8)]
    assert copy.history.last_number == 10


def test_an_empty_folder_begins_where_the_other_does(copy):
    """What retention has deleted there is not lost."""
    copy.begin_with(7)
    copy.history.copy([row(7), row(8)], 8)
    assert rows(copy) == [row(7), row(8)]
    assert (copy.history.start, copy.history.holes) == (7, [])


def test_what_was_erased_meanwhile_is_erased(copy):
    """Also if it is erased already."""
    copy.history.copy([row(1), row(2), row(3)], 3)
    for _ in range(2):
        copy.history.erase_at([1, 3])
    assert rows(copy) == [tombstone(row(1)), row(2), tombstone(row(3))]
    assert copy.history.has([row(1), row(2), row(3)]), "one that is erased on one side counts as equal"
    assert not copy.history.has([row(2)._replace(crc=1)])
    assert copy.history.has([])


def source(*offsets, most=3):
    """A keeper that has these rows, and sends some of them at a time."""

    async def rows_of(first, last):
        found = [row(offset) for offset in offsets if first <= offset <= last]
        return (found[:most], found[most - 1].offset) if len(found) > most else (found, last)

    return rows_of


async def test_what_one_keeper_lacks_comes_from_the_others_in_order():
    """Piece by piece, whoever has a row; what nobody has is missing."""
    sources = [source(1, 2, 5, 9, 10), source(3, 4, 9), source(1, 2, 3, 6, 7, most=1)]
    pieces = [piece async for piece in copied(sources, 1, 12)]
    assert [each.offset for rows, _ in pieces for each in rows] == [1, 2, 3, 4, 5, 6, 7, 9, 10]
    reached = [to for _, to in pieces]
    assert reached == sorted(reached)
    assert reached[-1] == 12
    assert all(each.offset <= to for rows, to in pieces for each in rows)
    assert max(len(rows) for rows, _ in pieces) <= 3


async def test_a_keeper_that_is_behind_is_not_copied_from():
    async def rows_of(first, _last):
        return [], first - 1

    with pytest.raises(RequestRefused, match="behind"):
        [piece async for piece in copied([rows_of], 4, 9)]


def test_the_state_of_another_log_is_of_no_use_to_a_node():
    """Nor is one that is behind what the node needs, or has still to erase."""
    applied = StreamState(1, 0)
    applied.stream, applied.sequence = "s", 7

    def state(log_id="log", erased=7):
        return KeeperState("k", log_id, KEY, 1, applied.saved(), erased)

    assert usable(state(), "log", "s", 7).sequence == 7
    for other in (state("other"), state(erased=6)):
        with pytest.raises(RequestRefused):
            usable(other, "log", "s", 7)
    for stream, needed in (("t", 7), ("s", 8)):
        with pytest.raises(RequestRefused):
            usable(state(), "log", stream, needed)
