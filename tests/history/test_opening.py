"""Opening a data folder: who can, what is refused and with which message, and what is repaired."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from support.log import SMALL, OpenLog

from halley.history import checksummed_json
from halley.history.folder import FolderLocked, FolderUnusable, Identity
from halley.pipeline.source.folder_log import FolderLog
from halley.pipeline.source.log import Fault

HOLDING = """
import sys, time
from pathlib import Path
from support.log import OpenLog
with OpenLog(Path(sys.argv[1])) as log:
    log.write("mine")
    print("ready", flush=True)
    time.sleep(60)
"""

UNPRIVILEGED = """
import os, sys
from pathlib import Path
from support.log import OpenLog
os.getuid() or os.setuid(65534)
OpenLog(Path(sys.argv[1]))
"""


def opened(folder):
    """Open the log; return its payloads by offset and the damage that it reports."""
    with OpenLog(folder, **SMALL) as log:
        return log.stored(), log.history.folder.damage


def filled(folder, events=240):
    """Make a log of several segments; returns its payloads by offset."""
    with OpenLog(folder, **SMALL) as log:
        for number in range(events):
            log.append(f"{number} {'x' * 1_500}")
            if number % 20 == 19:
                assert log.history.written(30)
        assert len(log.history.folder.segments) > 2
        return log.stored()


def segments(folder):
    return sorted(folder.glob("seg-*.db"))


def test_a_second_server_is_refused_and_told_who_has_the_folder(tmp_path, environment):
    """F6: the message names the process that holds the lock, which is unharmed; its death releases the folder."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDING, tmp_path], env=environment, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"ready\n"
        with pytest.raises(FolderLocked, match=str(process.pid)) as refused:
            OpenLog(tmp_path)
        assert refused.value.pid == process.pid
        process.send_signal(signal.SIGKILL)
        process.wait(10)
    assert opened(tmp_path) == ({1: "mine"}, ())


def test_a_folder_is_made_for_its_owner_alone(tmp_path):
    """The data folder can be read by its owner only."""
    opened(tmp_path / "new" / "log")
    assert (tmp_path / "new" / "log").stat().st_mode & 0o777 == 0o700


def test_a_file_in_its_place_is_no_data_folder(tmp_path):
    """A path that is a file, or is below one, is refused with a message that has the path."""
    file = tmp_path / "file"
    file.write_text("")
    for path in (file, file / "below"):
        with pytest.raises(FolderUnusable, match=f"{path} cannot be used as data folder: "):
            OpenLog(path)


def test_a_folder_without_permission_is_refused_with_a_sentence(environment):
    """A server without permission to write to the data folder reports that, and leaves nothing behind."""
    with tempfile.TemporaryDirectory() as parent:  # which every user can enter
        Path(parent).chmod(0o755)
        folder = Path(parent) / "not-mine"
        folder.mkdir(mode=0o555)
        done = subprocess.run(
            [sys.executable, "-c", UNPRIVILEGED, folder],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert f"FolderUnusable: {folder} cannot be used as data folder: Permission denied" in done.stderr
        assert list(folder.iterdir()) == []


def test_a_log_of_a_later_version_is_refused(tmp_path):
    """F7: an older Halley does not touch a log whose format it does not know."""
    opened(tmp_path)
    content = checksummed_json.load(tmp_path / "log.json")
    checksummed_json.save(tmp_path / "log.json", content | {"format": 2})
    with pytest.raises(FolderUnusable, match="was written by a later version of Halley"):
        OpenLog(tmp_path)


@pytest.mark.parametrize("how", ["missing", "empty", "flipped"])
def test_a_lost_log_json_is_restored_from_the_segments(tmp_path, how):
    """H3: log_id and publication key are restored, all events are served, and the loss is reported."""
    stored = filled(tmp_path)
    document = tmp_path / "log.json"
    before = document.read_bytes()
    if how == "missing":
        document.unlink()
    else:
        document.write_bytes(before[:90] + bytes([before[90] ^ 1]) + before[91:] if how == "flipped" else b"")
    found, damage = opened(tmp_path)
    assert found == stored
    assert [(each.file, each.first) for each in damage] == [("log.json", 0)]
    assert json.loads(document.read_bytes()) == json.loads(before)
    assert opened(tmp_path) == (stored, ())


def test_a_damaged_log_json_alone_is_refused(tmp_path):
    """Without a segment the log's identity is unknown."""
    (tmp_path / "log.json").write_text("{")
    with pytest.raises(FolderUnusable, match=r"log\.json is missing or damaged"):
        OpenLog(tmp_path)


def test_the_segment_of_another_log_is_told_and_left_out(tmp_path):
    """A file of another log is not served, not deleted, and does not prevent writing."""
    filled(tmp_path / "other")
    with OpenLog(tmp_path / "own") as log:
        log.write("own")
    stray = segments(tmp_path / "other")[1]
    shutil.copy(stray, tmp_path / "own")
    with OpenLog(tmp_path / "own") as log:
        assert log.stored() == {1: "own"}
        (damage,) = log.history.folder.damage
        assert (damage.file, damage.what) == (stray.name, "belongs to another log and is ignored")
        log.write("after")
        assert "after" in log.stored().values()
    assert (tmp_path / "own" / stray.name).read_bytes() == stray.read_bytes()


@pytest.mark.parametrize("what", [b"", b"{}", None])
def test_a_segment_with_a_bad_seal_is_looked_through_and_sealed_again(tmp_path, what):
    """H3: a segment whose seal is damaged or missing is scanned and sealed again."""
    stored = filled(tmp_path)
    seal = min(tmp_path.glob("seg-*.seal"))
    before = seal.read_bytes()
    seal.unlink()
    if what is not None:
        seal.write_bytes(what)
    assert opened(tmp_path) == (stored, ())
    assert seal.read_bytes() == before


def test_a_sealed_segment_that_was_cut_is_served_as_far_as_it_goes(tmp_path):
    """H3: a segment that was cut serves its intact rows and stays as it is; the missing rows are reported."""
    stored = filled(tmp_path)
    file = segments(tmp_path)[0]
    last = int(segments(tmp_path)[1].name[4:24]) - 1
    os.truncate(file, file.stat().st_size * 2 // 3)
    cut = file.read_bytes()
    found, damage = opened(tmp_path)
    assert found.items() <= stored.items()
    assert set(stored) - set(found) <= set(range(1, last + 1))
    told = {n for each in damage for n in range(each.first, each.last + 1)}
    assert set(stored) - set(found) <= told
    assert file.read_bytes() == cut


def test_a_segment_that_is_no_database_is_one_range_of_damage(tmp_path):
    """H3: a file that SQLite cannot open is reported as one range; everything else is served."""
    stored = filled(tmp_path)
    file, following = segments(tmp_path)[1:3]
    first, last = int(file.name[4:24]), int(following.name[4:24]) - 1
    file.chmod(0o600)
    file.write_bytes(b"no database" * 1_000)
    found, damage = opened(tmp_path)
    assert found == {offset: payload for offset, payload in stored.items() if not first <= offset <= last}
    assert (first, last) in [(each.first, each.last) for each in damage]


def test_a_missing_segment_is_told(tmp_path):
    """H3: the offsets of a segment that is missing are reported at every start."""
    stored = filled(tmp_path)
    file, following = segments(tmp_path)[1:3]
    file.unlink()
    missing = (int(file.name[4:24]), int(following.name[4:24]) - 1)
    for _ in range(2):
        found, damage = opened(tmp_path)
        assert set(stored) - set(found) == set(range(missing[0], missing[1] + 1))
        assert [(each.first, each.last) for each in damage] == [missing]


def reasons(folder):
    """Return the offsets without a row that a reader without a server finds in a folder's log, each with the reason."""
    log = FolderLog(folder)
    faults = [each for each in log.read(1, log.head().next) if isinstance(each, Fault)]
    return {offset: each.why for each in faults for offset in range(each.first, each.last + 1)}


def test_what_is_lost_for_good_is_a_hole_for_everyone(tmp_path):
    """L9: offsets of a segment that is gone are "missing" until a server starts, which records them as a hole."""
    filled(tmp_path)
    gone, following = segments(tmp_path)[1:3]
    gone.unlink()
    lost = range(int(gone.name[4:24]), int(following.name[4:24]))
    assert reasons(tmp_path) == dict.fromkeys(lost, "missing")
    for _ in range(2):
        with OpenLog(tmp_path, **SMALL) as log:
            assert (log.history.holes, log.history.damaged) == ([(lost[0], lost[-1])], [])
        assert reasons(tmp_path) == dict.fromkeys(lost, "hole")


def test_the_lost_end_of_a_sealed_log_is_a_hole_for_everyone(tmp_path):
    """If the newest segment is gone, the mark has its last offset: the lost ones are recorded and not used again."""
    stored = filled(tmp_path)
    *_, newest = (file for file in segments(tmp_path) if int(file.name[4:24]) in stored)
    for file in segments(tmp_path):
        if file >= newest:
            file.unlink()
    lost = range(int(newest.name[4:24]), max(stored) + 1)
    with OpenLog(tmp_path, **SMALL) as log:
        log.write("next")
        assert (log.history.holes, log.history.damaged) == ([(lost[0], lost[-1])], [])
        assert log.reports.committed == {lost[-1] + 1: "next"}
    assert reasons(tmp_path) == dict.fromkeys(lost, "hole")


def test_what_may_be_in_a_damaged_file_is_no_hole(tmp_path):
    """A segment that is cut or not a database is damage, not a hole, since its rows might still be recovered."""
    filled(tmp_path)
    cut, broken = segments(tmp_path)[1:3]
    cut.chmod(0o600)
    os.truncate(cut, cut.stat().st_size * 2 // 3)
    broken.chmod(0o600)
    broken.write_bytes(b"no database" * 1_000)
    with OpenLog(tmp_path, **SMALL) as log:
        found, unsound = log.stored(), log.history.damaged
        assert log.history.holes == []
    assert set(reasons(tmp_path).values()) == {"damaged"}
    told = {offset for first, last in unsound for offset in range(first, last + 1)}
    assert set(reasons(tmp_path)) == set(range(1, 241)) - set(found) <= told
    assert Identity.load(tmp_path / "log.json").holes == ()


def test_what_a_crash_leaves_unfinished_is_taken_away(tmp_path):
    """Drafts, and files that belonged to a deleted segment, are deleted at the next start."""
    filled(tmp_path)
    leftovers = ["draft-log.json", "draft-seg-00000000000000009999.db", "seg-00000000000000009999.db-wal"]
    for name in leftovers:
        (tmp_path / name).write_bytes(b"x")
    opened(tmp_path)
    assert not {each.name for each in tmp_path.iterdir()} & set(leftovers)
