"""Logs of large payloads through every job and query, each in a process of its own, whose memory is measured.

    PYTHONPATH=app:tests python tests/pipeline/payload_rounds.py [--counts 2300 50000] [--folder DIR]

One log has events of 1 MB, the other of 45 KB. Each is ingested from its folder and over `GET /log`. The exit code is 0
if every command ends with 0, every event is in the lake with its checksum, and no Python process is above 1 GiB.
"""

import argparse
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "app")]

from support.log import OpenLog  # noqa: E402 - found by the path above

from halley.pipeline.lake import tables  # noqa: E402

SIZES = 1_000_000, 45_000
MOST_KB = 1_048_576
ENVIRONMENT = os.environ | {
    "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    "HALLEY_LIMITS_DATA_BYTES": "2000000",
    "HALLEY_LIMITS_BODY_BYTES": "8000000",
    "HALLEY_LIMITS_QUEUE_BYTES": "64000000",
    "HALLEY_HISTORY_MAX_BYTES": str(1 << 40),
    "HALLEY_HISTORY_FREE_BYTES": "0",
}
LISTENING = re.compile(rb"listening on (http://[\d.]+:\d+)")


def fill(folder, size, count):
    """Make a log of events of this size, on ten channels; half of each compresses to almost nothing."""
    chance = random.Random(size)
    half = size // 2
    with OpenLog(folder, max_bytes=1 << 40) as log:
        for number in range(count):
            log.append({"n": number, "text": chance.randbytes(half // 2).hex() + "x" * half}, topic=f"c{number % 10}")
            if number % max(1, 20_000_000 // size) == 0:
                assert log.history.written(60)
        assert log.history.written(60)


class Memory(threading.Thread):
    """The greatest resident memory of each Python process below one, in kB, by its place in the tree."""

    def __init__(self, pid):
        super().__init__(daemon=True)
        self.most = {}
        self._root = pid
        self._end = threading.Event()

    def run(self):
        while not self._end.wait(0.05):
            for pid in [self._root, *_below(self._root)]:
                try:
                    status = Path(f"/proc/{pid}/status").read_text()
                except OSError:
                    continue
                found = re.search(r"VmHWM:\s+(\d+)", status)
                if found and "python" in status.splitlines()[0]:
                    self.most[pid] = max(self.most.get(pid, 0), int(found[1]))

    def stop(self):
        self._end.set()
        self.join()
        return self.most


def _below(pid):
    try:
        files = [*Path(f"/proc/{pid}/task").glob("*/children")]
        children = [int(each) for file in files for each in file.read_text().split()]
    except OSError:
        return
    for child in children:
        yield child
        yield from _below(child)


def run(*arguments, out=subprocess.DEVNULL):
    """Run a command of `halley`; return whether it succeeded within the bound, after printing what it took."""
    began = time.monotonic()
    command = [sys.executable, "-m", "halley", *map(str, arguments)]
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=out, stderr=subprocess.PIPE) as process:
        memory = Memory(process.pid)
        memory.start()
        said = process.stderr.read().decode().strip().splitlines()
    most = memory.stop()
    root, workers = most.pop(process.pid, 0), max(most.values(), default=0)
    is_well = process.returncode == 0 and max(root, workers) < MOST_KB
    print(
        f"  {' '.join(map(str, arguments[:2])):<18} exit {process.returncode}  {time.monotonic() - began:6.1f} s  "
        f"main process {root // 1024:5} MiB  largest worker {workers // 1024:5} MiB  {said[-1:]}",
        flush=True,
    )
    return is_well


@contextmanager
def serving(data):
    """Serve a data folder; yield the server's URL."""
    command = [
        sys.executable,
        "-m",
        "halley",
        "serve",
        "--data-dir",
        str(data),
        "--port",
        "0",
        "--operations-port",
        "0",
    ]
    with subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.PIPE) as process:
        try:
            url = next(found[1].decode() for line in process.stderr if (found := LISTENING.search(line)))
            threading.Thread(target=process.stderr.read, daemon=True).start()
            yield url
        finally:
            process.terminate()


def through(folder, size, count):
    """Take a log of `count` events of this size through everything; return whether all of it went well."""
    data, lake, other = folder / "data", folder / "lake", folder / "from"
    print(f"{count:,} events of {size:,} bytes", flush=True)
    fill(data, size, count)
    at, there = ("--data-dir", data, "--lake", lake), ("--lake", lake)
    done = [run("pipeline", "ingest", "--once", *at), run("pipeline", "rollup", "--once", "--no-publish", *at)]
    with serving(folder / "empty") as url, serving(data) as source:
        done.append(run("pipeline", "ingest", "--once", "--from", source, "--lake", other))
        done.append(run("pipeline", "rollup", "--once", "--no-publish", "--from", source, "--lake", other))
        for place in (lake, other):
            done.append(run("pipeline", "verify", "--all", "--lake", place))
            rows = sum(each.rows for each in tables.open_table(place, "events").data_files())
            done.append(rows >= count)
            print(f"  {rows:,} rows", flush=True)
        shutil.rmtree(other)
        replay = ("lake", "replay", "--channel", "/c3", "--speed", "max", "--server", url)
        done += [run("pipeline", "compact", *there), run("pipeline", "verify", "--all", *there), run(*replay, *there)]
    with (folder / "history").open("wb") as out:
        done.append(run("lake", "history", "/**", *there, out=out))
    with (folder / "history").open("rb") as lines:
        done.append(sum(1 for _ in lines) == count)
    done += [
        run("lake", "sql", "select channel, count(*), sum(octet_length(payload)) from events group by all", *there),
        run("lake", "top", *there),
        run("lake", "report", "--out", folder / "report.html", *there),
        run("lake", "forget", "/c7", "--yes", *there),
        run("pipeline", "verify", "--all", *there),
    ]
    rows = sum(each.rows for each in tables.open_table(lake, "events").data_files())
    print(f"  {rows:,} rows after the erasure", flush=True)
    return all(done) and rows == count - count // 10


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--counts", type=int, nargs=2, default=(2_300, 50_000))
    parser.add_argument("--folder", type=Path, default="/var/tmp" if os.access("/var/tmp", os.W_OK) else None)
    options = parser.parse_args()
    is_well = True
    for size, count in zip(SIZES, options.counts, strict=True):
        folder = Path(tempfile.mkdtemp(prefix="halley-payloads-", dir=options.folder))
        is_well &= through(folder, size, count)
        shutil.rmtree(folder)
    print("sound" if is_well else "BROKEN")
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())
