"""Long tests of a lake: an ingest that is killed with SIGKILL at any time, while a writer appends to the log.

    python tests/pipeline/rounds.py kill --rounds 30            # L1, L2, L5, L7
    python tests/pipeline/rounds.py bulk --events 5000000       # rows per second; compaction; one channel's files

`--seed` repeats a run's choices (not its timing). Log and lake are made in a temporary folder in --folder, which is
kept if something was found. Kills at each step of a batch are tested in `test_ingest_kills.py`.
"""

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "app")]

from history.rounds import Bar  # noqa: E402 - found by the path above
from support.log import OpenLog  # noqa: E402

from halley.pipeline import session  # noqa: E402
from halley.pipeline.jobs.ingest import Ingest  # noqa: E402
from halley.pipeline.lake import tables, upkeep  # noqa: E402
from halley.pipeline.lake.verify import verify  # noqa: E402
from halley.settings import Pipeline  # noqa: E402

DYING = Path(__file__).with_name("dying_ingest.py")
CHANNELS = 1_000
GROUP = 500


class Writer(threading.Thread):
    """A thread that appends `rate` events per second to a log, until `stop` is set."""

    def __init__(self, log, rate):
        super().__init__()
        self._log, self._rate = log, rate
        self.stop = threading.Event()

    def run(self):
        number = 0
        while not self.stop.wait(GROUP / self._rate):
            self._log.write(*({"number": number + n} for n in range(GROUP)), topic=f"c{number // GROUP % CHANNELS}")
            number += GROUP


def kill_rounds(folder, rounds, rate, seed, tell):
    """Kill ingests one after another, let the last one finish, and check the lake; return the number of events."""
    data, lake = folder / "data", folder / "lake"
    chance = random.Random(seed)
    reached = 0
    with OpenLog(data, segment_bytes=4_194_304) as log:
        writer = Writer(log, rate)
        writer.start()
        try:
            for round_ in range(rounds):
                live_for_a_while(data, lake, chance.uniform(0, 10))
                table = tables.open_table(lake, "events")
                now = (table and table.position("ingest")) or 0
                assert now >= reached, f"round {round_}: ingest was at {reached} and is at {now}"
                reached = now
                tell(round_ + 1, f"{log.history.head:,} events, {reached:,} in the lake")
        finally:
            writer.stop.set()
            writer.join()
        spark = session.start(Pipeline(master="local[2]", driver_memory="1g"))
        list(Ingest(spark, {"path": str(data)}, lake, Pipeline()).once())
        spark.stop()
        return check(lake, log.history.head)


def live_for_a_while(data, lake, seconds):
    """Run an ingest, and kill it and all its processes `seconds` after it was ready."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, DYING, data, lake]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        assert process.stdout.readline() == b"ready\n"
        time.sleep(seconds)  # the duration is the random choice, not a wait for something
        os.killpg(process.pid, signal.SIGKILL)


def check(lake, head):
    """Assert that the lake has every event once, as it was logged; return the number of events."""
    wrong = [f"{each.what}: {each.text}" for each in verify(lake, is_thorough=True) if not each.is_sound]
    assert not wrong, wrong
    table = tables.open_table(lake, "events")
    assert table.position("ingest") == head + 1
    count = sum(file.rows for file in table.data_files())
    assert count == head, f"{head} events, {count} rows"
    return count


def bulk(folder, events, tell):
    """Ingest a large log and compact the lake; return rows per second, and the number of files with one channel."""
    data, lake = folder / "data", folder / "lake"
    with OpenLog(data) as log:
        for at in range(0, events, GROUP):
            log.append(*({"number": at + n} for n in range(GROUP)), topic=f"c{at // GROUP % CHANNELS}")
            if at % (20 * GROUP) == 0:
                assert log.history.written(60)
        assert log.history.written(60)
    spark = session.start(Pipeline(master="local[2]", driver_memory="1g"))
    rates = []
    for done in Ingest(spark, {"path": str(data)}, lake, Pipeline()).once():
        rates.append(done.rows / done.took_s)
        tell(done.next - 1, f"{rates[-1]:,.0f} rows/s")
    spark.stop()
    began = time.monotonic()
    done = upkeep.compact(lake, "events")
    took_s = time.monotonic() - began
    check(lake, events)
    files = tables.open_table(lake, "events").data_files()
    holding = sum(file.least["topic"] <= "c500" <= file.greatest["topic"] for file in files)
    warm = sorted(rates[1:-1] or rates)
    return (
        f"ingest {warm[len(warm) // 2]:,.0f} rows/s warm (median of {len(warm)} batches); compaction of {done.before} "
        f"files to {done.after} in {took_s:.1f} s; one channel is in {holding} of {len(files)} files"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("kill", "bulk"))
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--rate", type=int, default=5_000, help="events written per second")
    parser.add_argument("--events", type=int, default=5_000_000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--folder", type=Path, default="/var/tmp" if os.access("/var/tmp", os.W_OK) else None)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix=f"halley-lake-{options.what}-", dir=options.folder))
    print(f"seed {options.seed}, log and lake in {folder}", file=sys.stderr)
    try:
        if options.what == "kill":
            bar = Bar(options.rounds)
            count = kill_rounds(folder, options.rounds, options.rate, options.seed, bar.show)
            print(f"{options.rounds} kills: {count:,} events, each there once")
        else:
            bar = Bar(options.events)
            print(bulk(folder, options.events, bar.show))
    except AssertionError as error:
        print(f"\nBROKEN (seed {options.seed}): {error}", file=sys.stderr)
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
