"""A week of a cluster in some minutes: what a stream, its keepers and their folders meet in days, scaled down.

    python tests/cluster/week.py [--age-s 60] [--stream-bytes 25000000] [--times 2] [--servers 1|3] [DAY...]

Within each `age-s` publishers send so many times the bytes that the stream has, all week long, and each day something
happens (`Week.days`): a keeper is away, everything is off, NATS comes back from an old copy, a password is rotated,
settings are changed, a bit is flipped, a WAL is lost, a backup is brought in, a front is cut off. At the end of each
day what `rounds.Round.check` says must be true: of what was acknowledged nothing is lost, doubled or moved, all keepers
have equal rows without a hole, and each live subscriber has received them in order, each once. What is refused is
refused for a reason that the logs name. Exit code 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).parents[1]))

from cluster.rounds import PUBLISHERS, Node, Round
from nats.aio.client import Client as NatsClient
from support.nats import nats_servers
from support.process import ended
from support.tcp_proxy import relaying

from halley.cluster.availability import Healing, NatsAway, NoLeader, StreamFull, Unauthorized
from halley.cluster.front import NoKeeper

EVENTS_PER_S = 60
"""About as many are published: each takes some time besides the pause behind it."""
AGES = 3
"""For how many ages of a stream something is away."""

REASONS = {each.cause for each in (Healing, NatsAway, NoKeeper, NoLeader, StreamFull, Unauthorized)}
"""For which publishes may be refused here."""


class Day(Round):
    """What happens on one day, `strike`, while clients publish and receive."""

    def __init__(self, week, name, strike):
        super().__init__(name, week.nodes, week.servers, week.chance)
        self.strike = strike
        self.pause_s = 1.5 * PUBLISHERS / EVENTS_PER_S
        self.nodes = [*week.nodes]
        self.padding = " " + "x" * int(week.times * week.stream_bytes / week.age_s / EVENTS_PER_S)


class Week:
    """The cluster, its age, and the days; `days` has them by name, in order."""

    def __init__(self, folder, servers, chance, *, age_s, stream_bytes, times, settled_by):
        self.folder, self.servers, self.chance = folder, servers, chance
        self.age_s, self.stream_bytes, self.times = age_s, stream_bytes, times
        self.nodes = [Node(folder, servers, name, keeps=name != "f1") for name in ("k1", "k2", "f1")]
        self.password = folder / "password"
        self.settings = {
            "HALLEY_CLUSTER_SETTLED_BY": settled_by,
            "HALLEY_CLUSTER_STREAM_BYTES": str(stream_bytes),
            "HALLEY_CLUSTER_STREAM_KEEP_S": str(max(1, age_s / 4)),
            "HALLEY_CLUSTER_KEEPER_AWAY_S": str(age_s),
            "HALLEY_CLUSTER_USER": "me",
            "HALLEY_CLUSTER_PASSWORD_FILE": str(self.password),
            "HALLEY_CLUSTER_JOIN_S": "30",
            "HALLEY_HISTORY_SEGMENT_BYTES": str(max(stream_bytes // 8, 1_048_576)),
            "HALLEY_HISTORY_KEY_AGE_S": str(10 * age_s),
            "HALLEY_LIMITS_PUBLISHES_PER_S": "0",
            "HALLEY_LOG_LEVEL": "warning",
        }
        self.wrong = []
        self.in_the_night = self.nothing
        self.days = {
            "steady": self.steady,
            "a keeper away": self.keeper_away,
            "a front cut off": self.front_cut_off,
            "a password rotated": self.password_rotated,
            "settings changed": self.settings_changed,
            "a bit flipped": self.bit_flipped,
            "a WAL lost": self.wal_lost,
            "a backup brought in": self.backup_brought_in,
            "all off": self.all_off,
            "NATS from an old copy": self.nats_restored,
        }

    @property
    def keepers(self):
        return [each for each in self.nodes if each.keeps]

    async def restart_nats(self, change=lambda _: None):
        """Start the NATS servers again; meanwhile `change` is called with the folder of each."""
        for number in range(len(self.servers.ports)):
            if number in self.servers.running:
                self.servers.kill(number)
        for number in range(len(self.servers.ports)):
            change(self.folder / str(number))
            self.servers.start(number)
        await self.servers.healthy()

    async def pass_ages(self, count=AGES):
        await asyncio.sleep(count * self.age_s)

    async def steady(self, _settings):
        """The stream holds half of what is published within an age, and takes it all."""
        await self.pass_ages()

    async def keeper_away(self, settings):
        await self.keepers[1].kill()
        await self.pass_ages()
        await self.keepers[1].start(**settings)

    async def front_cut_off(self, _settings):
        self.proxy.cut()
        await self.pass_ages()
        self.proxy.mend()

    async def password_rotated(self, _settings):
        self.rotate()
        await self.restart_nats()
        await self.pass_ages(0.5)

    def rotate(self):
        """Give NATS and the nodes' file another password; the servers read theirs when they are started."""
        self.password.write_text(f"password-{self.chance.random()}")
        user = f'users: [{{ user: me, password: "{self.password.read_text()}" }}]'
        self.servers.more = f"authorization {{ {user} }}\n"

    async def settings_changed(self, settings):
        settings["HALLEY_CLUSTER_STREAM_BYTES"] = str(2 * self.stream_bytes)
        for each in self.nodes:
            await each.stop()
            await each.start(**settings)
        client = NatsClient()
        await client.connect(self.servers.urls, user="me", password=self.password.read_text())
        config = (await client.jetstream().stream_info("halley")).config
        await client.close()
        if config.max_bytes != 2 * self.stream_bytes:
            self.wrong.append(f"the stream has max_bytes {config.max_bytes}")

    async def bit_flipped(self, settings):
        """One bit of a sealed segment of a keeper, which gets its row from the other one."""
        await self.keepers[1].stop()
        file = min(self.segments(1), key=lambda each: each.name)
        file.chmod(0o600)
        with file.open("r+b") as opened:
            opened.seek(file.stat().st_size // 2)
            byte = opened.read(1)[0]
            opened.seek(-1, 1)
            opened.write(bytes([byte ^ 1]))
        await self.keepers[1].start(**settings)
        await self.pass_ages(0.5)

    def segments(self, keeper):
        return [*(self.folder / self.keepers[keeper].name).glob("seg-*.db")]

    async def wal_lost(self, settings):
        await self.keepers[1].kill()
        for file in (self.folder / self.keepers[1].name).glob("seg-*-wal"):
            file.unlink()
        await self.keepers[1].start(**settings)

    async def backup_brought_in(self, settings):
        """A backup of a keeper becomes another one; in the night a keeper is given up for it."""
        first, second = self.keepers[:2]
        copy = Node(self.folder, self.servers, "k3")
        arguments = ("history", "backup", str(self.folder / copy.name), "--data-dir", str(self.folder / first.name))
        await self.run(*arguments)
        await copy.start(**settings)

        async def give_up():
            await second.kill()
            self.nodes[self.nodes.index(second)] = copy
            await self.run("cluster", "forget", second.name, self.servers.urls, **settings)

        self.in_the_night = give_up

    async def run(self, *arguments, **settings):
        """Run a command, which must succeed."""
        result = await ended(*arguments, cwd=self.folder, **settings)
        if result.code:
            self.wrong.append(f"{' '.join(arguments[:2])}: {result.lines}")

    async def nothing(self):
        """Let a night pass without anything."""

    async def all_off(self, _settings):
        for each in self.nodes:
            await each.kill()
        for number in list(self.servers.running):
            self.servers.kill(number)
        await self.pass_ages()
        await self.restart_nats()
        await self.start()

    async def nats_restored(self, settings):
        """Keepers do not go on with a stream that is older than they are; it is made again from the newest of them."""

        def copy(store):
            shutil.copytree(store, self.folder / "old" / store.name)

        def put_back(store):
            shutil.rmtree(store)
            shutil.copytree(self.folder / "old" / store.name, store)

        await self.stop()
        await self.restart_nats(copy)
        await self.start()
        await self.pass_ages(0.5)
        newest = await self.stop()
        await self.restart_nats(put_back)
        data_dir = ("--data-dir", str(self.folder / newest))
        free_ports = ("--port", "0", "--operations-port", "0")
        serve = ("serve", "--cluster", self.servers.urls, "--node", newest, *data_dir, *free_ports)
        refused = await ended(*serve, cwd=self.folder, **settings)
        if refused.code != 2 or "halley cluster recover" not in refused.lines[-1]:
            self.wrong.append(f"with an older stream: {refused}")
        await self.run("cluster", "recover", self.servers.urls, *data_dir, "--yes", **settings)
        await self.start()

    async def start(self):
        """Start all nodes: the keepers that ran last wait for each other, and fronts for one of them."""
        await asyncio.gather(*(each.start(**self.settings) for each in self.nodes))

    async def end(self):
        for each in self.nodes:
            await each.kill()

    async def stop(self):
        """Stop all nodes, the keepers last; return the name of the one that has most, the last one."""
        for each in sorted(self.nodes, key=lambda each: each.keeps):
            await each.stop()
        return self.keepers[-1].name

    def reasons(self):
        """The reasons for which the nodes that run have refused publishes."""
        lines = [line for each in self.nodes for line in each.server.lines if '"history_unavailable"' in line]
        return {json.loads(line)["reason"] for line in lines}


async def play(folder, days, servers_count, seed, *, age_s, stream_bytes, times):
    """Play the days of those names, or all; return what is wrong, as lines."""
    chance, wrong, first = random.Random(seed), [], 1
    async with nats_servers(folder, servers_count) as servers, AsyncExitStack() as stack:
        settled_by = "stream" if servers_count == 3 else "keeper"
        week = Week(folder, servers, chance, age_s=age_s, stream_bytes=stream_bytes, times=times, settled_by=settled_by)
        week.rotate()
        await week.restart_nats()
        week.proxy = await stack.enter_async_context(relaying(servers.ports[0]))
        week.nodes[2].servers = SimpleNamespace(urls=f"nats://127.0.0.1:{week.proxy.port}")
        await week.start()
        stack.push_async_callback(week.end)
        whole = Round("all", week.nodes, servers, chance)
        for name, strike in week.days.items():
            if days and name not in days:
                continue
            began = time.monotonic()
            day = Day(week, name.replace(" ", "-"), strike)
            await day.run(week.settings)
            found = [*week.wrong, *await day.check(first)]
            week.wrong = []
            if unknown := week.reasons() - REASONS:
                found.append(f"refused for {unknown}")
            if day.refused and name == "steady":
                found.append(f"refused: {dict(day.refused)}")
            first = max(day.acknowledged.values()) + 1
            await week.in_the_night()
            week.in_the_night = week.nothing
            whole.acknowledged |= day.acknowledged
            print(
                f"{name}: {time.monotonic() - began:.0f} s, {len(day.acknowledged)} acknowledged, "
                f"{day.received.total()} received, refused {dict(day.refused)} {week.reasons()}, "
                f"longest answer {day.longest_s:.1f} s; wrong: {len(found)}",
                flush=True,
            )
            for line in found[:10]:
                print(f"  {line}", flush=True)
            wrong += found
        found = await whole.check(1)
        for line in found[:10]:
            print(f"  at the end: {line}", flush=True)
    print(f"wrong: {len(wrong) + len(found)}; seed {seed}")
    return wrong + found


def main():
    """Read the arguments, and play."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("days", nargs="*")
    parser.add_argument("--age-s", type=float, default=60)
    parser.add_argument("--stream-bytes", type=int, default=25_000_000)
    parser.add_argument("--times", type=float, default=2)
    parser.add_argument("--servers", type=int, choices=(1, 3), default=1)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        scale = {"age_s": given.age_s, "stream_bytes": given.stream_bytes, "times": given.times}
        wrong = asyncio.run(play(Path(folder), given.days, given.servers, given.seed, **scale))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
