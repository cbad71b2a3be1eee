"""The file of persistent topics (NA48, ND12), in ntcore's format and complete after any crash; WAMP's reserved ids."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halley.broker.names import Match, Pattern
from halley.broker.ports import Erasure
from halley.protocols.wamp.state import RESERVED_AT_ONCE
from halley.server import persistence
from halley.server.persistence import PersistentTopics, ReservedIds, Saved

PROPERTIES = {"persistent": True}
OLD = [Saved("/x", "double", 1.5, PROPERTIES)]
NEW = [Saved("/x", "double", 2.5, PROPERTIES), Saved("/y", "string", "z", PROPERTIES)]
NAN, INF = float("nan"), float("inf")

EVERY_TYPE = [
    Saved("/boolean", "boolean", True, PROPERTIES),
    Saved("/double", "double", 0.1, PROPERTIES),
    Saved("/nan", "double", NAN, PROPERTIES),
    Saved("/inf", "float", -INF, PROPERTIES),
    Saved("/int", "int", -(2**63), PROPERTIES),
    Saved("/float", "float", 2.5, PROPERTIES),
    Saved("/string", "string", "ü\0\n", PROPERTIES),
    Saved("/json", "json", '{"a": [1]}', PROPERTIES),
    Saved("/raw", "raw", b"\0\xff", PROPERTIES),
    Saved("/struct", "struct:Pose2d", b"", PROPERTIES),
    Saved("/boolean[]", "boolean[]", [True, False], PROPERTIES),
    Saved("/double[]", "double[]", [1.0, NAN, INF, -INF], PROPERTIES),
    Saved("/int[]", "int[]", [1, 2**63 - 1], PROPERTIES),
    Saved("/float[]", "float[]", [0.5], PROPERTIES),
    Saved("/string[]", "string[]", [], PROPERTIES),
    Saved("", "int", 1, {"a": {"b": [None, 1.5]}}),
]

NTCORES = """[
  {
    "name": "/SmartDashboard/Auto Chooser",
    "type": "string",
    "value": "Left",
    "properties": {
      "persistent": true,
      "retained": true
    }
  },
  {"name": "/raw", "type": "raw", "value": "aGVsbG8=", "properties": {"persistent": true}},
  {"name": "/n", "type": "double", "value": 5, "properties": {"persistent": true}},
  {"name": "/f", "type": "float[]", "value": [5, 0.1], "properties": {"persistent": true}}
]
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "nt4" / "networktables.json"


@pytest.fixture
def kept(path):
    return PersistentTopics(path, 100, 10_000)


def again(path):
    """Return what a server finds that is started again."""
    return PersistentTopics(path, 100, 10_000).load()


def test_no_file_is_no_topics(kept):
    """ND12: without a file there are no topics."""
    assert kept.load() == ([], [])


def test_every_type_comes_back(kept, path):
    """NA48: values of every type are restored, also numbers that are not finite; the folder is made."""
    kept.save(EVERY_TYPE)
    found, wrong = again(path)
    assert (repr(found), wrong) == (repr(EVERY_TYPE), [])


def test_the_file_is_as_ntcore_writes_it(kept, path):
    """NA48: bytes are base64, so that a robot's own server can read them; other users cannot read the file."""
    kept.save(EVERY_TYPE)
    values = {item["name"]: item for item in json.loads(path.read_text())}
    assert values["/raw"] == {"name": "/raw", "type": "raw", "value": "AP8=", "properties": PROPERTIES}
    assert values["/struct"]["value"] == ""
    assert values["/json"]["value"] == '{"a": [1]}'
    assert values["/nan"]["value"] == "NaN"
    assert values["/double[]"]["value"] == [1.0, "NaN", "Infinity", "-Infinity"]
    assert path.stat().st_mode & 0o077 == 0


def test_a_robots_own_file_is_read(kept, path):
    """NA48: a robot's file in its place is read unchanged."""
    path.parent.mkdir()
    path.write_text(NTCORES)
    assert kept.load() == (
        [
            Saved("/SmartDashboard/Auto Chooser", "string", "Left", {"persistent": True, "retained": True}),
            Saved("/raw", "raw", b"hello", PROPERTIES),
            Saved("/n", "double", 5.0, PROPERTIES),
            Saved("/f", "float[]", [5.0, 0.10000000149011612], PROPERTIES),
        ],
        [],
    )


def test_the_file_before_is_kept_beside_it(kept, path):
    """NA48, ND12: the previous file is kept, and not read while there is a newer one."""
    kept.save(OLD)
    kept.save(NEW)
    assert again(path) == (NEW, [])
    path.unlink()
    assert again(path) == (OLD, [])


@pytest.mark.parametrize("text", ["", "[", '[{"name":', "{}", "null", "[NaN]", "[" * 50_000, "[" + " " * 10_000])
def test_a_file_that_is_none_is_put_aside(kept, path, text):
    """NA48, ND12: if the file is damaged the previous one counts, and the next `save` destroys neither."""
    kept.save(OLD)
    kept.save(NEW)
    path.write_text(text)
    found, wrong = kept.load()
    assert found == OLD
    assert len(wrong) == 1
    assert "networktables.json was not read" in wrong[0]
    kept.save(NEW)
    assert again(path) == (NEW, [])
    assert path.with_name("networktables.json.bad").read_text() == text
    path.unlink()
    assert again(path) == (OLD, [])


def test_a_file_that_cannot_be_opened_stops_nobody(kept, path):
    """ND12: the server starts even if there is a folder in place of the file."""
    path.mkdir(parents=True)
    found, wrong = kept.load()
    assert found == []
    assert len(wrong) == 1
    kept.save(OLD)
    assert again(path) == (OLD, [])


GOOD = {"name": "/good", "type": "int", "value": 1, "properties": {}}
BAD = {
    "no object": 1,
    "nothing": {},
    "no name": {**GOOD, "name": 1},
    "a meta topic": {**GOOD, "name": "$clients"},
    "no type": {**GOOD, "type": None},
    "null properties": {**GOOD, "name": "/x", "properties": None},
    "no properties": {"name": "/x", "type": "int", "value": 1},
    "properties that nobody can write": {**GOOD, "name": "/x", "properties": {"a": 2**64}},
    "properties too deep": {**GOOD, "name": "/x", "properties": {"a": json.loads("[" * 300 + "]" * 300)}},
    "a float for an int": {**GOOD, "name": "/x", "value": 1.5},
    "a bool for an int": {**GOOD, "name": "/x", "value": True},
    "beyond 64 bits": {**GOOD, "name": "/x", "value": 2**64},
    "huge": {**GOOD, "name": "/x", "type": "double", "value": 10**400},
    "null for a double": {**GOOD, "name": "/x", "type": "double", "value": None},
    "a text for a double": {**GOOD, "name": "/x", "type": "double", "value": "nan"},
    "a text for an array": {**GOOD, "name": "/x", "type": "string[]", "value": "abc"},
    "an array for a double": {**GOOD, "name": "/x", "type": "double", "value": [1.0]},
    "a mixed array": {**GOOD, "name": "/x", "type": "double[]", "value": [1.0, [1.0]]},
    "no base64": {**GOOD, "name": "/x", "type": "raw", "value": "a"},
    "base64 of another alphabet": {**GOOD, "name": "/x", "type": "raw", "value": "üü=="},
    "a number for bytes": {**GOOD, "name": "/x", "type": "msgpack", "value": 7},
    "a name twice": {**GOOD, "value": 2},
    "a name that no log may show": {**GOOD, "name": "/x\n\x1b[31m" + "a" * 1_000, "value": "b"},
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_a_bad_item_is_skipped(kept, path, bad):
    """NA48, ND12: the others are loaded, and the log names the skipped one."""
    path.parent.mkdir()
    path.write_text(json.dumps([GOOD, bad, {**GOOD, "name": "/last"}]))
    found, wrong = kept.load()
    assert [topic.name for topic in found] == ["/good", "/last"]
    assert found[0].value == 1
    assert len(wrong) == 1
    assert "item 1 is skipped" in wrong[0]
    assert wrong[0].isprintable()
    assert len(wrong[0]) < 200


def test_there_is_a_bound_to_what_is_read_and_to_what_is_said(path):
    """The number of items that are read and the number of log lines are limited."""
    path.parent.mkdir()
    path.write_text(json.dumps([*([1] * 50), *({**GOOD, "name": f"/{at}"} for at in range(100))]))
    found, wrong = PersistentTopics(path, 60, 10_000).load()
    assert [topic.name for topic in found] == [f"/{at}" for at in range(10)]
    assert len(wrong) == 21
    assert "120 further items" in wrong[-1]


def test_more_than_may_be_read_is_not_written(kept, path):
    """NA48: the old file stays, and the caller of `save` gets an error."""
    kept.save(OLD)
    with pytest.raises(OSError, match="10000 bytes") as told:
        kept.save([Saved("/x", "string", "a" * 10_000, PROPERTIES)])
    assert told.value.errno == errno.EFBIG
    assert again(path) == (OLD, [])


@pytest.mark.parametrize("call", range(5))
def test_a_crash_at_any_step_leaves_one_complete_file(kept, path, monkeypatch, call):
    """NA48: the old or the new file is found, complete; a new one gets its name only once it is on disk."""
    kept.save(OLD)
    steps = []

    def step(name, do):
        def done(*args):
            if len(steps) == call:
                raise OSError(errno.EIO, name)
            steps.append(name)
            return do(*args)

        return done

    monkeypatch.setattr(os, "fsync", step("fsync", os.fsync))
    monkeypatch.setattr(Path, "replace", step("replace", Path.replace))
    if call < 4:
        with pytest.raises(OSError, match=r"fsync|replace"):
            kept.save(NEW)
    else:
        kept.save(NEW)
    monkeypatch.undo()
    assert steps == ["fsync", "replace", "replace", "fsync"][:call]
    assert again(path) == (NEW if call > 2 else OLD, [])
    kept.save(NEW)
    assert again(path) == (NEW, [])


OF_ADA = Saved("/a/of-ada", "string", "secret", PROPERTIES, "ada")
OF_BOB = Saved("/a/of-bob", "string", "other", PROPERTIES, "bob")
OF_NOBODY = Saved("/b", "int", 2**63 - 1, PROPERTIES)
MIXED = [OF_ADA, OF_BOB, OF_NOBODY]
BELOW_A = Erasure(Pattern(Match.DESCENDANTS, "a"), None)


def test_who_published_a_value_comes_back(path, kept):
    kept.save(MIXED)
    assert again(path) == (MIXED, [])


@pytest.mark.parametrize(
    ("erasure", "left"),
    [(BELOW_A, [OF_NOBODY]), (Erasure(None, "ada"), [OF_BOB, OF_NOBODY])],
    ids=["channel", "publisher"],
)
def test_erasing_leaves_nothing_in_any_of_the_files(path, kept, erasure, left):
    """The file, the previous one, one that could not be read, and what a crash has left are cleaned."""
    kept.save(MIXED)
    kept.save(MIXED)
    for ending in (".tmp", ".bad"):
        path.with_name(path.name + ending).write_text('[{"name": "/a/of-ada", "value": "secret"')
    kept.clean(erasure)
    assert {file.name for file in path.parent.iterdir()} == {path.name, f"{path.name}.bck"}
    assert not any(b"secret" in file.read_bytes() for file in path.parent.iterdir())
    assert again(path) == (left, [])
    path.unlink()
    assert again(path) == (left, [])


def test_erasing_leaves_what_is_not_concerned_as_it_is(path, kept):
    """Files without such topics are not written anew, whatever else they have; where there are none, none is made."""
    kept.clean(BELOW_A)
    assert not path.parent.exists()
    path.parent.mkdir()
    item = {"name": "/b", "type": "x", "value": None, "properties": None, "more": [1.5]}
    path.write_text(json.dumps([item]))
    before = path.stat().st_ino
    kept.clean(BELOW_A)
    assert path.stat().st_ino == before
    path.write_text(json.dumps([item, {"name": "/a/x"}]))
    kept.clean(BELOW_A)
    assert json.loads(path.read_text()) == [item]


@pytest.mark.parametrize("unusable", [7, {"name": 7, "value": "x"}, {"name": "/b", "value": 10**30}])
def test_erasing_drops_what_no_server_can_use(path, kept, unusable):
    path.parent.mkdir()
    path.write_text(json.dumps([unusable, {"name": "/b", "value": "kept"}]))
    kept.clean(BELOW_A)
    assert json.loads(path.read_text()) == [{"name": "/b", "value": "kept"}]


def test_what_was_to_be_saved_before_erasing_is_not_saved_after_it(path, kept):
    """It may have what was erased; the caller saves what there is then."""
    before = kept.erasures
    kept.save(MIXED, before)
    kept.clean(BELOW_A)
    assert not kept.save(MIXED, before)
    assert again(path) == ([OF_NOBODY], [])
    assert kept.save([OF_NOBODY, OF_BOB], kept.erasures)
    assert again(path) == ([OF_NOBODY, OF_BOB], [])


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text() | st.sampled_from(["NaN", "aGk="]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=4,
)
TYPES = st.sampled_from(["boolean", "double", "int", "float", "string", "json", "raw", "x", "double[]", "int[]"])
ITEMS = st.fixed_dictionaries(
    {
        "name": st.text() | JSON_VALUES,
        "type": TYPES,
        "value": JSON_VALUES,
        "properties": st.dictionaries(st.text(), JSON_VALUES, max_size=2),
    }
)


@given(st.binary(max_size=60) | st.lists(ITEMS, max_size=3).map(lambda items: json.dumps(items).encode()))
def test_any_file_is_read_or_refused(tmp_path_factory, content):
    """NA48: no contents of the file prevent a start, and everything that was read can be saved."""
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_bytes(content)
    kept = PersistentTopics(path, 10, 100_000)
    found, _ = kept.load()
    kept.save(found)
    assert repr(kept.load()) == repr((found, []))


# Subscription ids of WAMP


def test_ids_outlive_a_restart(tmp_path: Path) -> None:
    """Ids are reserved a thousand at a time, and none is reserved twice."""
    first, second = ReservedIds(tmp_path), ReservedIds(tmp_path)
    assert [first(), first()] == [1, 1 + RESERVED_AT_ONCE]
    assert second() == 1 + 2 * RESERVED_AT_ONCE
    assert ReservedIds(tmp_path)() == 1 + 3 * RESERVED_AT_ONCE
    assert [each.name for each in tmp_path.iterdir()] == ["wamp-subscription-ids"]


@pytest.mark.parametrize("content", [b"", b"abc", b"\xff\xfe", b"1.5", b"9" * 5_000])
def test_a_file_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    """The fault is logged, and the ids begin where no run has been; the file is repaired."""
    faults: list[str] = []
    monkeypatch.setattr(persistence.telemetry, "fault", lambda where, _error: faults.append(where))
    (tmp_path / "wamp-subscription-ids").write_bytes(content)
    ids = ReservedIds(tmp_path)
    first = ids()
    assert faults == ["subscription_ids"]
    assert 1_000_000 < first < 2**32
    assert ids() == first + RESERVED_AT_ONCE
    assert ReservedIds(tmp_path)() == first + 2 * RESERVED_AT_ONCE
    assert len(faults) == 1


def test_a_folder_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that cannot be written is logged; the ids of this run are still unique."""
    faults: list[str] = []
    monkeypatch.setattr(persistence.telemetry, "fault", lambda where, _error: faults.append(where))
    ids = ReservedIds(tmp_path / "nowhere")
    assert [ids(), ids()] == [1, 1 + RESERVED_AT_ONCE]
    assert faults == ["subscription_ids"] * 2


def test_without_a_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids need not outlive a restart then, but a later run still begins with higher ones."""
    monkeypatch.setattr(persistence.time, "time", lambda: 1_800_000_000.0)
    ids = ReservedIds(None)
    first = ids()
    assert ids() == first + RESERVED_AT_ONCE
    monkeypatch.setattr(persistence.time, "time", lambda: 1_800_010_000.0)
    assert ReservedIds(None)() > first + RESERVED_AT_ONCE
    assert first < 2**32
