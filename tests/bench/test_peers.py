"""The comparison with other servers: its table for given figures, and that the peers can be measured."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from statistics import median

import pytest
from bench import peers
from bench.test_result import result
from support.process import environment
from support.programs import require_program, unavailable

from app.bench import Load


def lines_of(results):
    """Return the table's lines by the name of the figure."""
    return {line[0]: line[1:] for line in peers.rows(results, list(peers.PEERS))}


def fanouts(halley_us, faye_us, cometd_us):
    """Return results of the fan-out with these CPU times per delivery."""
    names = {peers.HALLEY: halley_us, "Faye": faye_us, "cometd-nodejs": cometd_us}
    return {("fanout", name): [result(server_cpu_us=float(each)) for each in found] for name, found in names.items()}


@pytest.mark.parametrize(
    ("halley_us", "ratio", "verdict"),
    [
        ([14], "0.20", "stretch met"),
        ([17], "0.24", "met"),
        ([18], "0.26", "missed"),
        ([99, 14, 14], "0.20", "stretch met"),
    ],
)
def test_a_cost_is_compared_with_the_better_peer(halley_us, ratio, verdict):
    """A cost has medians, Halley's ratio to the smaller one of the peers, and a verdict."""
    line = lines_of(fanouts(halley_us, [80, 70, 1], [90]))["CPU per delivery, 1 to 1,000"]
    assert line[:2] == ["<= 0.25 x", "<= 0.2 x"]
    assert line[2:] == [f"{median(halley_us):.1f} us", "70.0 us", "90.0 us", ratio, verdict]


@pytest.mark.parametrize(
    ("halley_us", "ratio", "verdict"), [(8, "3.75", "stretch met"), (11, "2.73", "met"), (15, "2.00", "missed")]
)
def test_a_rate_is_compared_with_the_better_peer(halley_us, ratio, verdict):
    """For a rate, more is better, so the better peer is the faster one."""
    costs = {peers.HALLEY: halley_us, "Faye": 30, "cometd-nodejs": 40}
    results = {("publish", name): [result(server_cpu_us=float(cost))] for name, cost in costs.items()}
    assert lines_of(results)["publishes per CPU-second"][-2:] == [ratio, verdict]


def test_bounds_need_no_peer():
    """If only Halley is measured, a figure is compared with its bound; without a peer there is no ratio."""
    crowd = result(rss_mb=[(0.0, 200.0), (1.0, 260.0)], connects_per_s=3_100.0, latency_ms={"p99": 499.0})
    lines = lines_of({("crowd", peers.HALLEY): [crowd]})
    assert lines["10,000 held polls: memory"] == ["<= 250 MB", "-", "260.0 MB", "-", "-", "-", "missed"]
    assert lines["10,000 held polls: connects accepted"][-1] == "met"
    assert lines["10,000 held polls: p99 of 1 publish/s"][-1] == "met"
    alone = lines_of({("fanout", peers.HALLEY): [result()]})
    assert alone["CPU per delivery, 1 to 1,000"][-2:] == ["-", "-"]


def test_the_table_goes_where_the_readme_wants_it(tmp_path):
    """The table replaces the text between the two comments and nothing else; without them, nothing is changed."""
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{peers.BEGIN}\nold\n{peers.END}\nafter\n")
    for table in ("first", "second"):
        peers.write_readme(readme, table, "made by hand")
    assert readme.read_text() == f"before\n{peers.BEGIN}\n\nsecond\n\nmade by hand\n\n{peers.END}\nafter\n"
    readme.write_text("nothing\n")
    with pytest.raises(ValueError, match="no place for the table"):
        peers.write_readme(readme, "third", "")
    assert readme.read_text() == "nothing\n"


def test_the_readme_has_a_place_for_the_table():
    """The README has both comments, in the right order."""
    assert (
        0
        < peers.README.read_text(encoding="utf-8").find(peers.BEGIN)
        < peers.README.read_text(encoding="utf-8").find(peers.END)
    )


@pytest.mark.node
async def test_the_peers_get_the_same_load():
    """In one short round over all servers, nothing is lost, and the figures of all three are in the table."""
    require_program("node")
    if not (peers.HERE / "node_modules").is_dir():
        unavailable("the peers are missing: npm ci --prefix tests/bench")
    short = replace(Load("fanout", receivers=5, rate=20), seconds=0.5, warm_up_s=0.2)
    results = await peers.compare({"fanout": short}, {peers.HALLEY: peers.halley_command(), **peers.PEERS}, 1)
    assert all(each.is_clean and each.deliveries == 5 * each.published > 0 for (each,) in results.values())
    assert all(cell.endswith(" ms") for cell in lines_of(results)["p99 of 1 to 1,000, against peers"][2:5])


async def test_a_halley_that_does_not_start_ends_the_comparison():
    """The exit code is 1, and the message names the load and the server."""
    if not (peers.HERE / "node_modules").is_dir():
        unavailable("the peers are missing: npm ci --prefix tests/bench")
    process = await asyncio.create_subprocess_exec(
        sys.executable, peers.__file__, "--halley", "false {port}", "--only", "fanout",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=environment(),
    )  # fmt: skip
    output, complaint = await process.communicate()
    assert (process.returncode, output) == (1, b"")
    assert complaint == b"peers.py: fanout at Halley: the server ended unexpectedly (exit code 1)\n"
