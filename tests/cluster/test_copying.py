"""What a folder comes to that gets rows of another one with the same log."""

from __future__ import annotations

import pytest

from halley.broker.events import Event, Publications, new_key
from halley.cluster.catch_up import Copy
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
