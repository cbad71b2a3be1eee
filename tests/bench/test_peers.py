"""The comparison with other servers: its tables for given figures, what is left out, and that peers can be measured."""

from __future__ import annotations

import asyncio
import json
import platform
import re
import sys
from dataclasses import replace

import pytest
from bench import peers, servers
from bench.nchan_load import NchanReceiver, NchanRequests
from bench.test_result import result
from support.process import environment
from support.programs import require_program, unavailable

from halley import __version__
from halley.bench import sessions
from halley.bench.requests import MARK_TEMPLATE
from halley.bench.tally import Tally


def figures_of(results, *names):
    """Return the row of each figure by its name."""
    return {row[0]: row[1:] for row in peers.figure_rows(results, names)}


def targets_of(results):
    """Return the row of each target by its name."""
    return {row[0]: row[1:] for row in peers.target_rows(results)}


def costs(load="fanout", **by_server):
    """Return results with these CPU times per unit of a load, by the names of servers with _ for spaces."""
    return {
        (load, name.replace("_", " ")): [result(server_cpu_us=float(each)) for each in found]
        for name, found in by_server.items()
    }


def test_figures_are_medians_of_each_server():
    """Every server has a column; one that was not measured with a load has a dash; unmeasured figures have no row."""
    results = costs(Halley=[99, 14, 15], Faye=[80, 70, 1], nchan=[9]) | costs("publish", Halley=[20])
    rows = figures_of(results, "Halley", "Faye", "nchan")
    assert rows[""] == ["Halley", "Faye", "nchan"]
    assert rows["CPU per delivery, 1 to 1,000"] == ["15.0 us", "70.0 us", "9.0 us"]
    assert rows["publishes per CPU-second"] == ["50,000", "-", "-"]
    assert rows["p99 of 1 to 1,000"] == ["3.0 ms", "3.0 ms", "3.0 ms"]
    assert len(rows) == 5


@pytest.mark.parametrize(
    ("pure_us", "compiled_us", "pure", "compiled"),
    [
        ([14], [14], ["0.20 x", "met"], ["0.20 x", "met"]),
        ([21, 99, 14], [16], ["0.30 x", "met"], ["0.23 x", "missed"]),
        ([23], [13], ["0.33 x", "missed"], ["0.19 x", "met"]),
        ([23], [], ["0.33 x", "missed"], ["-", "-"]),
    ],
)
def test_a_cost_is_compared_with_the_better_peer(pure_us, compiled_us, pure, compiled):
    """A cost has, for each Halley, its target, the ratio of medians to the smaller one of the peers, and a verdict."""
    results = costs(Halley=pure_us, Halley_compiled=compiled_us, Faye=[80, 70, 1]) | {
        ("fanout", peers.COMETD_NODE): [result(server_cpu_us=90.0)]
    }
    row = targets_of(results)["CPU per delivery, 1 to 1,000, to the better on Node.js"]
    assert row == ["<= 0.32 x", *pure, "<= 0.2 x", *compiled]


def test_each_peer_has_its_own_target():
    """CometD Java and nchan are not among the peers on Node.js."""
    rows = targets_of(costs(Halley=[40], CometD_Java=[80], nchan=[10]))
    assert rows["CPU per delivery, 1 to 1,000, to the better on Node.js"][:3] == ["<= 0.32 x", "-", "-"]
    assert rows["CPU per delivery, 1 to 1,000, to CometD Java"][:3] == ["<= 0.48 x", "0.50 x", "missed"]
    assert rows["CPU per delivery, 1 to 1,000, to nchan"][:3] == ["<= 1.3 x", "4.00 x", "missed"]


@pytest.mark.parametrize(("halley_us", "shown"), [(8, ["3.75 x", "met"]), (15, ["2.00 x", "missed"])])
def test_a_rate_is_compared_with_the_better_peer(halley_us, shown):
    """For a rate, more is better, so the better peer is the faster one."""
    results = costs("publish", Halley=[halley_us], Faye=[30]) | {
        ("publish", peers.COMETD_NODE): [result(server_cpu_us=40.0)]
    }
    assert targets_of(results)["publishes per CPU-second, to the better on Node.js"][:3] == [">= 2.2 x", *shown]


def test_bounds_need_no_peer():
    """If only Halley is measured, a figure is compared with its bound; without a peer there is no ratio."""
    crowd = result(rss_mb=[(0.0, 200.0), (1.0, 260.0)], connects_per_s=3_100.0, latency_ms={"p99": 499.0})
    rows = targets_of({("crowd", peers.HALLEY): [crowd]})
    assert rows["10,000 held polls: memory"] == ["<= 250 MB", "260.0 MB", "missed", "<= 250 MB", "-", "-"]
    assert rows["10,000 held polls: connects accepted"][:3] == [">= 3,000 /s", "3,100 /s", "met"]
    assert rows["10,000 held polls: p99 of 1 publish/s"][2] == "met"
    assert "CPU per delivery, 1 to 1,000" not in " ".join(rows)


def test_a_target_of_the_compiled_program_alone():
    """A figure for which only the compiled program has a target has no verdict for the other."""
    rows = targets_of(costs("socket-fanout", Halley=[4], Halley_compiled=[2], floor_in_C=[2]))
    assert rows["WebSockets, 1 to 1,000: CPU per delivery, to a floor in C"] == [
        *("-", "2.00 x", "-"),
        *("<= 1.5 x", "1.00 x", "met"),
    ]


def test_versions_and_what_is_unfair_stand_beside_the_figures():
    """The report has a row for each server that was measured, and a line for each that was not."""
    server = servers.Server("Faye", "faye 1", "Node.js v20", "For it: nothing", ["faye"])
    shown = peers.report(costs(Faye=[80]), {"Faye": server}, ["nchan is left out: no nginx."], is_markdown=True)
    assert "| Faye | faye 1 | Node.js v20 | For it: nothing |" in shown.splitlines()
    assert shown.splitlines()[-1] == "nchan is left out: no nginx."


def test_what_a_machine_lacks_is_left_out(monkeypatch):
    """Without programs and packages no peer can be measured, and a sentence says for each what it lacks."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(servers, "HERE", servers.HERE / "nowhere")
    found, left_out = servers.available({**peers.PEERS, "nexus": servers.nexus, "compiled": no_compiled})
    assert found == {}
    assert left_out == [
        "Faye is left out: this machine has no node.",
        "cometd-nodejs is left out: this machine has no node.",
        "CometD Java is left out: this machine has no java.",
        "nchan is left out: this machine has no nginx.",
        "floor in C is left out: this machine has no gcc.",
        "nexus is left out: this machine has no go.",
        "compiled is left out: name a Python in whose environment it is installed with --compiled.",
    ]


def no_compiled():
    return servers.halley_compiled(None)


def program(path, script):
    """Write a shell script, and return its path."""
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(("said", "doubt"), [("", ", which does not say that it is compiled"), (" compiled", "")])
@pytest.mark.parametrize("is_optimized", [True, False])
def test_a_compiled_halley_and_its_python(said, doubt, is_optimized, tmp_path):
    """The version is what `halley --version` says, and the runtime has the build flags of that Python."""
    flags = "--enable-optimizations --with-lto" if is_optimized else "--enable-shared"
    told = {"name": "CPython", "version": "3.13.1", "CONFIG_ARGS": flags, "PY_CFLAGS": "-g -O2 -Wall -O3"}
    script = f"[ \"$3\" = halley ] && echo 'halley 0.1.0{said}' || echo '{json.dumps(told)}'"
    python = program(tmp_path / "python", script)
    server = servers.halley_compiled(python)
    no = "" if is_optimized else "no "
    assert server.version == f"halley 0.1.0{said}{doubt}"
    assert server.runtime == f"CPython 3.13.1: -O3, {no}--enable-optimizations, {no}--with-lto"
    assert ("without the optimizations" in server.unfair) is not is_optimized
    assert server.command[:5] == [str(python), "-I", "-m", "halley", "serve"]


def test_this_halley_and_its_python():
    """Its version and runtime are those of this interpreter."""
    server = servers.halley()
    assert server.version.startswith(f"halley {__version__}")
    assert server.runtime.startswith(f"{platform.python_implementation()} {platform.python_version()}: -O")


def test_a_server_is_built_once(tmp_path, monkeypatch):
    """It is built in the cache folder, and again when a source changes; the sources stay as they are."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    sources = tmp_path / "peer"
    sources.mkdir()
    (sources / "main").write_text("one")
    command = [str(program(tmp_path / "make", f"echo >> {tmp_path}/runs; cp main made"))]
    first, again = servers.built(sources, command), servers.built(sources, command)
    (sources / "main").write_text("two")
    second = servers.built(sources, command)
    assert first == again != second
    assert [(each / "made").read_text() for each in (first, second)] == ["one", "two"]
    assert (tmp_path / "runs").read_text() == "\n\n"
    assert [each.name for each in sources.iterdir()] == ["main"]
    assert {each.parent for each in (first, second)} == {tmp_path / "cache" / "halley-bench"}


def test_a_server_that_cannot_be_built_is_missing(tmp_path, monkeypatch):
    """The message has the first line that the command printed, and nothing is left of the attempt."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "peer").mkdir()
    with pytest.raises(servers.Missing, match=r"^it could not be built: no network$"):
        servers.built(tmp_path / "peer", [str(program(tmp_path / "make", "echo no network; echo sorry; exit 3"))])
    with pytest.raises(servers.Missing, match="nowhere"):
        servers.built(tmp_path / "peer", [str(tmp_path / "nowhere")])
    assert list((tmp_path / "cache" / "halley-bench").iterdir()) == []


class Wire(list):
    """What a receiver wrote, as its transport."""

    write = list.append

    def is_closing(self):
        return False


async def test_nchan_is_polled_from_where_a_receiver_was(monkeypatch):
    """A poll has the ids of the last event, also after one that timed out; a refused one is an error, and repeated."""
    monkeypatch.setattr(sessions, "_RETRY_S", 0)
    tally = Tally()
    receiver = NchanReceiver(NchanRequests("h", "", token=None, browser_headers=False), tally, 0, range(7, 8))
    receiver.transport = wire = Wire()
    await receiver.handshake()
    await receiver.join()
    mark = MARK_TEMPLATE % (1, 0, 0)
    receiver.answered(200, b"HTTP/1.1 200 OK\r\nEtag: 3\r\nLast-Modified: Wed", b'{"mark":"%b"}' % mark)
    receiver.answered(408, b"HTTP/1.1 408 Request Timeout", b"")
    receiver.answered(500, b"HTTP/1.1 500 Oh", b"")
    await asyncio.sleep(0.01)
    first = b"GET /sub/bench/000007 HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
    next_poll = first + b"If-Modified-Since: Wed\r\nIf-None-Match: 3\r\n\r\n"
    assert wire == [first + b"\r\n", next_poll, next_poll, next_poll]
    assert (tally.deliveries, tally.polls, tally.errors) == (1, 2, {"HTTP 500": 1})


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


QUICK = {
    name: replace(peers.LOADS[name], receivers=5, channels=channels, rate=20, seconds=0.5, warm_up_s=0.2)
    for name, channels in {"fanout": 1, "socket-fanout": 1, "socket-one-to-one": 5, "stream-fanout": 1}.items()
}


async def compared(*loads, others):
    """Return the results of one short round over Halley and these peers, none of which may lose anything."""
    makes = {peers.HALLEY: servers.halley, **{name: peers.PEERS[name] for name in others}}
    measured, left_out = servers.available(makes)
    if left_out:
        unavailable(" ".join(left_out))
    results = await peers.compare({name: QUICK[name] for name in loads}, measured, 1, warm_up_s=0.2)
    for (load, name), (found,) in results.items():
        assert found.is_clean, f"{load} at {name}: {peers.summary(found)}"
        assert found.deliveries == (5 if "fanout" in load else 1) * found.published > 0
    return results


@pytest.mark.slow
@pytest.mark.node
async def test_the_peers_get_the_same_load():
    """In one short round over the peers on Node.js, nothing is lost, and the figures of all are in the tables."""
    results = await compared("fanout", others=peers.NODE)
    assert all(cell.endswith(" ms") for cell in figures_of(results, peers.HALLEY, *peers.NODE)["p99 of 1 to 1,000"])
    row = targets_of(results)["p99 of 1 to 1,000, to the best of Bayeux"]
    assert row[1].endswith(" x")


@pytest.mark.nightly
async def test_nchan_gets_the_same_load():
    """It gets every event too, though it does not speak Bayeux, by polls and by streams."""
    require_program("nginx")
    results = await compared("fanout", "stream-fanout", others=[peers.NCHAN])
    assert targets_of(results)["CPU per delivery, 1 to 1,000, to nchan"][1].endswith(" x")
    assert targets_of(results)["event streams, 1 to 1,000: CPU per delivery, to nchan"][1].endswith(" x")


@pytest.mark.nightly
@pytest.mark.node
async def test_the_peers_get_the_same_load_by_websockets():
    """Nothing is lost by WebSockets either, and the floor in C takes part in these loads alone."""
    others = [peers.FAYE, peers.COMETD_JAVA, peers.FLOOR]
    results = await compared("fanout", "socket-fanout", "socket-one-to-one", others=others)
    assert {load for load, name in results if name == peers.FLOOR} == {"socket-fanout", "socket-one-to-one"}
    rows = targets_of(results)
    for than in ("Faye", "CometD Java", "a floor in C"):
        assert rows[f"WebSockets, 1 to 1,000: CPU per delivery, to {than}"][1].endswith(" x")
    assert figures_of(results, *others)["WebSockets, 1 to 1: CPU per delivery"][2].endswith(" us")


async def test_a_halley_that_does_not_start_ends_the_comparison():
    """The exit code is 1, and the message names the load and the server."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, peers.__file__, "--halley", "false {port}", "--only", "fanout", "--servers", peers.HALLEY,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=environment(),
    )  # fmt: skip
    output, complaint = await process.communicate()
    assert (process.returncode, output) == (1, b"")
    assert complaint == b"peers.py: fanout at Halley: the server ended unexpectedly (exit code 1)\n"


@pytest.mark.nightly
async def test_the_whole_comparison_of_what_was_selected():
    """It prints the tables, which servers were left out, and the command that made them."""
    words = ["--only", "fanout", "--servers", *peers.HALLEYS, "--receivers", "5", "--rounds", "1"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, peers.__file__, *words, "--seconds", "0.3", "--warm-up", "0.1",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=environment(),
    )  # fmt: skip
    output, _ = await process.communicate()
    assert process.returncode == 0
    lines = output.decode().splitlines()
    assert any(re.match(r"CPU per delivery, 1 to 1,000 +[\d.]+ us$", line) for line in lines)
    assert any(line.startswith(f"Halley  halley {__version__}") for line in lines)
    assert "Halley compiled is left out: name a Python in whose environment it is installed with --compiled." in lines
    assert lines[-1].startswith("`python tests/bench/peers.py --only fanout --servers Halley 'Halley compiled'")
