"""A data folder that an earlier version has written is opened, read and continued as it was.

`log_without_time_index.tar.xz` was made by the last version whose segments had a table of clock steps: 332 events in
three sealed segments and the newest one, which has a WAL as after a crash. The clock was set back by 50 s after every
60th event; everything below /private up to offset 252 was purged; two events of a WAMP client are for ann alone.
`rows.json` in it has all rows as they were read then.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from support.log import SMALL, ClockedLog, OpenLog
from support.tarballs import unpack

from halley.broker.names import Match, Pattern
from halley.broker.ports import Erasure, Query
from halley.history.examination import verify
from halley.history.rules import Rules
from halley.history.stored import Stored
from halley.pipeline.source.folder_log import FolderLog

ARCHIVE = Path(__file__).with_name("log_without_time_index.tar.xz")
ALL = Pattern(Match.DESCENDANTS, "")


@pytest.fixture
def old(tmp_path):
    """The folder."""
    with tarfile.open(ARCHIVE) as archive:
        unpack(archive, tmp_path)
    return tmp_path


@pytest.fixture
def rows(old):
    """Its rows, by offset; taken out of the folder."""
    file = old / "rows.json"
    found = {row[0]: Stored(*row) for row in json.loads(file.read_bytes())}
    file.unlink()
    return found


def test_all_rows_are_read_as_they_were(old, rows):
    """An intact old log has no damage, for the server, for `verify` and for the pipeline."""
    assert verify(old).damage == []
    assert [tuple(row) for batch in FolderLog(old).read(1, 333) for row in batch] == list(rows.values())
    with OpenLog(old, **SMALL) as log:
        assert log.rows() == list(rows.values())
        assert list(log.history.folder.damage) == []
        assert [key.key for key in log.history.recent_keys()][-1] == "k328"


@pytest.mark.parametrize("is_reverse", [False, True])
@pytest.mark.parametrize("topic", [ALL, Pattern(Match.EXACT, "chat/a"), Pattern(Match.EXACT, "com.example.topic")])
def test_queries_find_what_they_ask_for(old, rows, topic, is_reverse):
    """Bounds in time and by publication are right, also where the clock was set back."""
    times = sorted(row.time_us for row in rows.values())
    with OpenLog(old, Rules(), lambda: 1_700_000_300.0, **SMALL) as log:
        for low, high in [(0, 331), (20, 300), (60, 61), (150, 152), (331, 331)]:
            query = Query(
                ((topic, 0),),
                332,
                authid="ann",
                from_time_us=times[low],
                until_time_us=times[high],
                after_publication=rows[7].publication,
                limit=1_000,
                is_reverse=is_reverse,
            )
            wanted = [
                offset
                for offset, row in rows.items()
                if offset > 7
                and times[low] <= row.time_us <= times[high]
                and not row.is_purged
                and (topic is ALL or row.topic == topic.topic)
            ]
            found = [event.position for event in log.history.read(query).events]
            assert found == (wanted[::-1] if is_reverse else wanted)
        assert log.history.read(Query(((Pattern(Match.EXACT, "com.example.topic"), 0),), 332)).events == []


def test_what_is_sent_with_keys_is_remembered_from_now_on(old, rows):
    """Of the keys that are there only the channel is known; the newest segment gets the digests of new ones."""
    with OpenLog(old, **SMALL) as log:
        assert {each.published.key_digest for each in log.history.recent_keys()} == {None}
        log.append_to("news", idempotency_key="new", key_digest=b"12345678")
        log.write("without a key")
        assert len(log.history.folder.segments) == 4
    with OpenLog(old, **SMALL) as log:
        digests = {each.key: each.published.key_digest for each in log.history.recent_keys()}
        assert (digests["k328"], digests["new"]) == (None, b"12345678")
    assert verify(old).damage == []


def test_it_is_continued(old, rows):
    """Writing, retention, purging and salvaging work over old and new segments."""
    with ClockedLog(old, (ALL, 3_600.0, True), wall=1_700_000_300.0) as log:
        log.fill(2)
        assert log.history.purge(Erasure(Pattern(Match.EXACT, "private/x"), None), lambda *_: None) > 0
        assert log.history.salvage(lambda *_: None) == (0, [])
        log.clock.pass_(3_600.0 - 1)
        log.retain()
        assert log.read().gaps == []
        assert log.offsets()[0] > 332
        head = log.history.head
    assert verify(old).damage == []
    with OpenLog(old, **SMALL) as log:
        assert (log.history.head, list(log.history.folder.damage)) == (head, [])
