"""Which tests a run has: none is left out in silence."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


@pytest.mark.slow
def test_a_file_that_cannot_be_imported_is_an_error(tmp_path):
    """It is reported by a worker too, which has tried to import the file before it collects tests."""
    room = tmp_path / "tests" / "room"
    room.mkdir(parents=True)
    shutil.copy(TESTS / "conftest.py", room.parent)
    (room / "test_broken.py").write_text("import no_such_module\n\n\ndef test_nothing():\n    pass\n")
    (room / "test_sound.py").write_text("def test_nothing():\n    pass\n")
    options = ["-n1", "-q", "--import-mode=importlib", "-pno:cacheprovider", "--rootdir=."]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "-m", "not slow and not nightly", "tests"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "1 passed, 1 error" in done.stdout
    assert "No module named 'no_such_module'" in done.stdout
