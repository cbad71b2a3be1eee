"""Full rounds of what must never happen to a history, against a real `halley serve`.

    python tests/history/rounds.py kill --rounds 200 --publishers 20      # H1
    python tests/history/rounds.py seam --rounds 1000 --subscribers 200   # H5

`--seed` repeats a run's choices (not its timing). The log is made in a temporary folder in --folder, which is kept if a
fault was found. `test_rounds.py` runs fewer rounds of both.
"""

import argparse
import asyncio
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "app")]

from history.kill_rounds import kill_rounds  # noqa: E402 - found by the path above
from history.seam_rounds import seam_rounds  # noqa: E402

BAR = 30


class Bar:
    """A progress bar: it is redrawn on a terminal, else a line is printed for each tenth round."""

    def __init__(self, total):
        self._total, self._began = total, time.monotonic()

    def show(self, done, note):
        filled = BAR * done // self._total
        text = f"[{'#' * filled}{'-' * (BAR - filled)}] {done}/{self._total}  {note}"
        if sys.stderr.isatty():
            print(f"\r\x1b[K{text}", end="\n" if done == self._total else "", file=sys.stderr, flush=True)
        elif done % 10 == 0 or done == self._total:
            print(f"{text}  {time.monotonic() - self._began:.0f} s", file=sys.stderr, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("kill", "seam"))
    parser.add_argument("--rounds", type=int, default=0, help="[default: 200 kills, 1000 seams]")
    parser.add_argument("--publishers", type=int, default=0, help="[default: 20 for kill, 4 for seam]")
    parser.add_argument("--subscribers", type=int, default=200)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--folder", type=Path, default="/var/tmp" if os.access("/var/tmp", os.W_OK) else None)
    options = parser.parse_args()
    rounds = options.rounds or {"kill": 200, "seam": 1_000}[options.what]
    folder = Path(tempfile.mkdtemp(prefix=f"halley-{options.what}-", dir=options.folder)) / "log"
    bar = Bar(rounds)
    print(f"seed {options.seed}, log in {folder}", file=sys.stderr)
    try:
        if options.what == "kill":
            publishers = options.publishers or 20
            told = asyncio.run(kill_rounds(folder, rounds, publishers, options.seed, bar.show))
            acknowledged, repeated, _ = told
            told = f"{acknowledged:,} acknowledged, {repeated:,} repeated by key"
            print(f"{rounds} rounds: {told}; none lost, doubled or reordered")
        else:
            publishers = options.publishers or 4
            told = asyncio.run(seam_rounds(folder, rounds, options.subscribers, publishers, options.seed, bar.show))
            attached, events = told
            print(f"{rounds} rounds: {attached:,} attached, {events:,} events received; no gap, no duplicate")
    except AssertionError as error:
        print(f"\nBROKEN (seed {options.seed}): {error}", file=sys.stderr)
        return 1
    shutil.rmtree(folder.parent)
    return 0


if __name__ == "__main__":
    sys.exit(main())
