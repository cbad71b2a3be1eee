"""T20: processes that scan the lake's tables briefly end with an exit code, and never by a signal at their end.

    PYTHONPATH=app:tests python tests/pipeline/exit_rounds.py [ROUNDS]

`verify` reads to the end; `compact` is stopped in the middle of its scan by a full disk.
"""

import datetime as dt
import os
import resource
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pyarrow as pa
from support.lake import LOG_ID, NOON_US, ingested, stored

from halley.pipeline.lake import shapes, tables
from halley.pipeline.lake.commit import commit_rows

FILES, ROWS = 8, 20_000
SMALL_BYTES = 65_536
EXPECTED = {"verify": 0, "compact": 2}
PATHS = os.pathsep.join(str(Path(path).absolute()) for path in sys.path if path)


def make(lake):
    """Store events in several files, and a rollup, so that `verify` counts them again."""
    ingested(lake, *([stored(n, f"c{n % 50}") for n in range(at, at + ROWS)] for at in range(1, FILES * ROWS, ROWS)))
    columns = shapes.TABLES["rollups"].columns
    times = {"start_us": NOON_US, "end_us": NOON_US + 10_000_000, "day": dt.date(2025, 11, 22)}
    row = dict.fromkeys(columns.names) | times
    row |= {"window": "10s", "topic": "c1", "protocol": "bayeux", "events": 1, "bytes": 1}
    commit_rows(tables.create(lake, "rollups", LOG_ID), pa.Table.from_pylist([row], schema=columns))


def full_disk():
    """In the child process, limit the size of files, like a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (SMALL_BYTES, SMALL_BYTES))


def main(rounds=20):
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder))
        for verb, expected in EXPECTED.items():
            codes, said = Counter(), ""
            for _ in range(int(rounds)):
                done = subprocess.run(
                    [sys.executable, "-m", "halley", "pipeline", verb, "--lake", folder],
                    env=os.environ | {"PYTHONPATH": PATHS},
                    capture_output=True,
                    text=True,
                    timeout=120,
                    check=False,
                    preexec_fn=full_disk if expected else None,
                )
                codes[done.returncode] += 1
                said = done.stderr if done.returncode != expected else said
            print(f"{verb}: exit codes {dict(codes)}, expected {expected}", said, flush=True)
            wrong += sum(codes.values()) - codes[expected]
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
