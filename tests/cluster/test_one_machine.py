"""`halley cluster`: one command that runs NATS, nodes and nginx on this machine, and its verbs."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import stat
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from support.messages import HANDSHAKE, connect, publish
from support.nats import nats_servers
from support.process import Server, ended, environment, spawn
from support.programs import require_program
from support.wire import DEADLINE_S, Wire, post
from websockets.asyncio.client import connect as connect_websocket

from halley.client import Client, HistoryClient
from halley.cluster.members import id_of
from halley.processes import free_port

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

AGAIN_S = 0.05
RIGHTS = """
authorization { users: [
  { user: me, permissions: { publish: ["halley.>", "$JS.API.>"], subscribe: ["halley.>", "_INBOX.>"] } }
] }
no_auth_user: me
"""


class Whole(Server):
    """A started `halley cluster`."""

    @property
    def nodes(self):
        """The URLs of the fronts; of a single node that one's."""
        urls = [line.rpartition(" ")[2] for line in self.lines if line.startswith("node ")]
        return urls[1:] or urls

    @property
    def status(self):
        """The arguments of `halley cluster status` for it."""
        (line,) = (line for line in self.lines if line.startswith("status: "))
        return line.split()[3:]

    def pids(self):
        """The process ids of the programs that it runs, by their names in its log."""
        pid = self.process.pid
        found = {}
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            with suppress(OSError):  # it has just ended
                command = Path(f"/proc/{child}/cmdline").read_text()
                node = command.partition("--node\0")[2].partition("\0")[0]
                found[node or ("nginx" if command.startswith("nginx: ") else "nats")] = int(child)
        return found


@asynccontextmanager
async def one_machine(folder, *arguments, **settings):
    """Run `halley cluster` with one node and without nginx, unless the arguments say otherwise; it serves."""
    few = () if "--nodes" in arguments else ("--nodes", "1", "--no-nginx")
    command = ("cluster", "--port", "0", "--base-port", "0", *few, *arguments)
    whole = Whole(await spawn(*command, cwd=folder, env=environment(**settings)))
    try:
        await whole.until(lambda: whole.port != 0)
        yield whole
    finally:
        await whole.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def whole(tmp_path_factory):
    """A keeper, and two fronts behind nginx, if that is installed."""
    async with one_machine(tmp_path_factory.mktemp("machine"), "--nodes", "2") as whole:
        yield whole
        whole.send_signal(signal.SIGTERM)
        assert await whole.exit_code() == 0


async def published(url, channel, data):
    """Publish without a session, again and again until it is acknowledged; return the position."""
    key = {"ext": {"idempotency_key": f"{channel} {data}"}}
    async with asyncio.timeout(DEADLINE_S):
        while True:
            with suppress(OSError, EOFError, ValueError, AssertionError, IndexError):
                wire = await Wire.open(int(url.rpartition(":")[2]))
                try:
                    reply = (await wire.post(publish(channel, data, **key))).messages[0]
                finally:
                    await wire.close()
                if reply["successful"]:
                    return reply["ext"]["position"]
            await asyncio.sleep(AGAIN_S)


async def rows(whole, last):
    """Return the rows of the keeper up to the position `last`, as soon as it has them."""
    keeper = next(line for line in whole.lines if line.startswith("node keeper"))
    async with asyncio.timeout(DEADLINE_S), HistoryClient(keeper.rpartition(" ")[2]) as client:
        while (await client.log_head())["next"] <= last:
            await asyncio.sleep(AGAIN_S)
        return [json.loads(line) async for _, lines in client.rows(1, last) for line in lines]


async def test_the_nodes_are_one_server(whole):
    """What is published at one is heard at the other; one log has the lines of all."""
    one, other = whole.nodes
    async with Client(other) as client, asyncio.timeout(DEADLINE_S):
        await client.subscribe("/chat/**")
        position = await published(one, "/chat/room", "hello")
        event = await anext(client)
        assert (event.data, event.position) == ("hello", position)
    names = {"keeper", "n1", "n2"}
    await whole.until(lambda: {line["process"] for line in whole.logged("started")} == names)
    await whole.until(lambda: f"n2: halley is listening on {other} (console: {other}/)" in whole.lines)
    whole.send_signal(signal.SIGHUP)
    await whole.until(lambda: {line["process"] for line in whole.logged("reloaded")} == names)


async def test_nginx_serves_bayeux_and_websockets(whole):
    """A held poll, JSONP's query and a WebSocket go through to a node."""
    require_program("nginx")
    url = f"http://127.0.0.1:{whole.port}"
    assert url not in whole.nodes
    async with Client(url) as client, asyncio.timeout(DEADLINE_S):
        await client.subscribe("/web/**")
        await published(whole.nodes[0], "/web/room", 1)
        assert (await anext(client)).data == 1
        wire = await whole.wire()
        client_id = (await wire.get(HANDSHAKE)).called[1][0]["clientId"]
        reply = (await wire.get(publish("/web/room", 2, clientId=client_id))).called[1][0]
        assert reply["successful"]
        assert (await anext(client)).data == 2
        async with connect_websocket(f"ws://127.0.0.1:{whole.port}/ws", subprotocols=["wamp.2.json"]) as socket:
            await socket.send(json.dumps([1, "realm1", {"roles": {"publisher": {}}}]))
            assert json.loads(await socket.recv())[0] == 2
            await socket.send(json.dumps([16, 1, {"acknowledge": True}, "web.room", [3]]))
            assert json.loads(await socket.recv())[0] == 17
        assert (await anext(client)).data == 3
    async with HistoryClient(url) as client:
        assert (await client.log_head())["next"] > 3


async def test_nginx_sends_a_browser_to_the_node_of_its_cookie(whole):
    """By any connection, also by a WebSocket."""
    require_program("nginx")
    for number, url in enumerate(whole.nodes, start=1):
        wire = await whole.wire(int(url.rpartition(":")[2]))
        cookie = (await wire.post(HANDSHAKE)).set_cookies[0].partition(";")[0]
        for _ in range(3):
            client_id = (await (await whole.wire()).post(HANDSHAKE, cookie=cookie)).messages[0]["clientId"]
            assert client_id[:4] == id_of(f"n{number}")
            socket_url = f"ws://127.0.0.1:{whole.port}/bayeux"
            async with connect_websocket(socket_url, additional_headers={"Cookie": cookie}) as socket:
                await socket.send(json.dumps([HANDSHAKE]))
                assert json.loads(await socket.recv())[0]["clientId"][:4] == id_of(f"n{number}")


async def test_what_is_killed_is_started_again(whole):
    """Each program is killed while events are published: what was acknowledged is there once."""
    acknowledged, are_back = {}, asyncio.Event()

    async def publish_all():
        while not are_back.is_set():
            number = len(acknowledged)
            acknowledged[number] = await published(whole.nodes[number % 2], "/kill/room", number)

    publishing = asyncio.create_task(publish_all())
    killed = ["n2", "keeper", "nats", *(["nginx"] if "nginx" in whole.pids() else [])]
    for name in killed:
        count = len(acknowledged)
        async with asyncio.timeout(DEADLINE_S):
            while len(acknowledged) < count + 10:
                await asyncio.sleep(AGAIN_S)
        before = whole.pids()
        os.kill(before[name], signal.SIGKILL)
        async with asyncio.timeout(DEADLINE_S):
            while whole.pids().get(name) in (None, before[name]):
                await asyncio.sleep(AGAIN_S)
    are_back.set()
    await publishing
    await published(f"http://127.0.0.1:{whole.port}", "/kill/end", "by nginx, if it is there")
    last = max(acknowledged.values())
    kept = [row for row in await rows(whole, last) if row["topic"] == "kill/room"]
    stored = {row["offset"]: json.loads(row["payload"]) for row in kept}
    assert stored == {position: number for number, position in acknowledged.items()}
    endings = {line["name"]: line["code"] for line in whole.logged("process_ended")}
    assert endings == dict.fromkeys(killed, -signal.SIGKILL)


async def test_status_shows_the_nodes(whole, tmp_path):
    """A table, or JSON; a space without a stream is one line and exit code 1."""
    position = await published(whole.nodes[0], "/chat/room", "for the status")
    result, as_json = await asyncio.gather(
        ended("cluster", *whole.status, cwd=tmp_path), ended("cluster", *whole.status, "--json", cwd=tmp_path)
    )
    columns = ["node", "role", "version", "sequence", "behind", "saved", "offset", "sessions", "refusal"]
    assert (result.code, result.output[1].split()) == (0, columns)
    roles = [line.split()[:2] for line in result.output[2:]]
    assert roles == [["keeper", "keeper"], ["n1", "front"], ["n2", "front"]]
    shown = json.loads(as_json.output[0])
    assert {(node["node"], node["behind"], node["offset"] >= position) for node in shown["nodes"]} == {
        ("keeper", 0, True),
        ("n1", 0, True),
        ("n2", 0, True),
    }
    result = await ended("cluster", *whole.status, "--space", "other", cwd=tmp_path)
    assert (result.code, result.lines) == (1, ["halley: the stream other: stream not found"])
    result = await ended("cluster", "check", *whole.status[1:], cwd=tmp_path)
    assert (result.code, result.output[0].partition(" ")[0]) == (0, "good:"), "settled_by is that of the stream"


async def test_its_files_are_not_for_other_users(whole):
    """NATS would be a way past access rules: its password can be read by the user of the server alone."""
    folder = Path(whole.status[whole.status.index("--password-file") + 1]).parent
    assert {stat.S_IMODE((folder / name).stat().st_mode) for name in ("nats.conf", "nats.password")} == {0o600}
    result = await ended("cluster", "status", whole.status[1], cwd=folder, HALLEY_CLUSTER_JOIN_S="1")
    assert (result.code, "authorization" in result.lines[-1].lower()) == (1, True), result.lines


async def test_it_drains_and_a_second_signal_cuts_that_short(tmp_path):
    """A second signal ends it at once. It goes on with the same history, and drains: a poll is answered by nginx."""
    async with one_machine(tmp_path, HALLEY_DRAIN_NOT_READY_S="60") as whole:
        position = await published(whole.nodes[0], "/chat/room", 1)
        whole.send_signal(signal.SIGTERM)
        await whole.until_logged('"then":"shuts down"')
        whole.send_signal(signal.SIGTERM)
        assert await whole.exit_code() == 128 + signal.SIGTERM
    async with one_machine(tmp_path, "--nodes", "1") as whole:
        assert await published(whole.nodes[0], "/chat/room", 2) > position
        pids = whole.pids()
        wire = await whole.wire()
        client_id = (await wire.post(HANDSHAKE)).messages[0]["clientId"]
        await wire.post(connect(client_id))
        await wire.send(post(json.dumps([connect(client_id)]).encode()))
        await until_held(whole, 1)
        whole.send_signal(signal.SIGINT)
        assert (await wire.read()).messages[0]["advice"]["reconnect"] == "retry"
        assert await whole.exit_code() == 130
    assert [line["is_cut_short"] for line in whole.logged("stopped")] == [False]
    assert not any(map(is_alive, pids.values()))


async def until_held(whole, count):
    """Wait until the first node holds so many connects."""
    await whole.until_logged("keeper: health")
    (port,) = (line.partition("//127.0.0.1:")[2].partition("/")[0] for line in whole.lines if "keeper: health" in line)
    async with asyncio.timeout(DEADLINE_S), httpx.AsyncClient(verify=False) as client:
        while f"\nhalley_holds {count}.0\n" not in (await client.get(f"http://127.0.0.1:{port}/metrics")).text:
            await asyncio.sleep(AGAIN_S)


def is_alive(pid):
    """Whether a process runs; one that has ended can wait in the process table for its parent."""
    with suppress(OSError):
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    return False


@pytest.mark.parametrize(
    ("arguments", "settings", "text"),
    [
        (("--nodes", "0"), {}, "'--nodes': 0 is not in the range"),
        (("--nats", "http://127.0.0.1:1"), {}, "'--nats': expected URLs like nats://host:4222"),
        (("--nats-server", "/nowhere/nats-server"), {}, "/nowhere/nats-server cannot be started"),
        (("--host", "0.0.0.0"), {}, "expected access rules"),
        (("--host", "0.0.0.0", "--open"), {}, "hosts: expected the names and addresses that clients use"),
        (("--port", "65536"), {}, "--port: port"),
        (("status",), {}, "expected URLs like nats://host:4222"),
        (("check", "nats:127.0.0.1"), {}, "expected URLs like nats://host:4222"),
    ],
)
async def test_wrong_use_is_one_line(tmp_path, arguments, settings, text):
    """Exit code 2, and the last line says why."""
    ports = () if arguments[:1] in (("status",), ("check",)) else ("--base-port", "0", "--no-nginx", "--nodes", "1")
    result = await ended("cluster", *ports, *arguments, cwd=tmp_path, **settings)
    assert (result.code, text in result.lines[-1]) == (2, True), result.lines


async def test_others_are_left_alone_and_nothing_survives_it(tmp_path):
    """A folder in use, one of a single server and a taken port are refused; killed with -9, it leaves no process."""
    async with one_machine(tmp_path, "--nodes", "1") as whole:
        result = await ended("cluster", "--base-port", "0", cwd=tmp_path)
        assert (result.code, "is in use by another server" in result.lines[-1]) == (2, True), result.lines
        more = ("--base-port", "0", "--port", str(whole.nodes[0].rpartition(":")[2]), "--data-dir", "more")
        (tmp_path / "single").mkdir()
        (tmp_path / "single" / "log.json").touch()
        result = await ended("cluster", "--data-dir", "single", cwd=tmp_path)
        assert (result.code, "has the history of a single server" in result.lines[-1]) == (2, True), result.lines
        if shutil.which("nginx"):
            result = await ended("cluster", *more, cwd=tmp_path)
            assert (result.code, "choose another with --port" in result.lines[-1]) == (2, True), result.lines
        pids = whole.pids()
        assert len(pids) == (3 if shutil.which("nginx") else 2)
        whole.send_signal(signal.SIGKILL)
        await whole.exit_code()
        async with asyncio.timeout(DEADLINE_S):
            while any(map(is_alive, pids.values())):
                await asyncio.sleep(AGAIN_S)


async def test_what_ends_at_once_again_and_again_ends_all(tmp_path):
    """Five times, with pauses that grow; the exit code is that of the program."""
    program = tmp_path / "nats-server"
    program.write_text("#!/bin/sh\necho 'it is broken' >&2\nexit 3\n")
    program.chmod(0o700)
    result = await ended("cluster", "--nodes", "1", "--base-port", "0", "--nats-server", str(program), cwd=tmp_path)
    assert (result.code, result.lines[-1]) == (3, "halley: nats ended at once 5 times: it is broken")
    assert sum(line == "nats: it is broken" for line in result.lines) == 5


async def check(folder, *arguments, settled_by="keeper"):
    """Run `halley cluster check`; return its exit code and its findings."""
    settings = {"HALLEY_CLUSTER_SETTLED_BY": settled_by, "HALLEY_CLUSTER_JOIN_S": "1"}
    result = await ended("cluster", "check", *arguments, cwd=folder, **settings)
    assert not result.lines
    return result.code, result.output


async def test_check_says_what_is_wrong(tmp_path):
    """Nothing is wrong with one server for a keeper, much is for a stream; nothing of the check is left."""
    async with nats_servers(tmp_path) as nats:
        monitor = f"http://127.0.0.1:{nats.monitors[0]}"
        code, (line,) = await check(tmp_path, nats.urls, "--monitor", monitor)
        assert (code, line) == (0, f"good: {nats.urls}")
        code, (line,) = await check(tmp_path, nats.urls, settled_by="stream")
        assert (code, "replicas > 1 not supported" in line) == (1, True), line
        assert 'with one, set it to "keeper"' in line
        gone = f"nats://127.0.0.1:{free_port()}"
        code, (line,) = await check(tmp_path, f"{nats.urls},{gone}")
        assert (code, line.startswith(f"{gone}: cannot be reached")) == (1, True), line
        code, (line,) = await check(tmp_path, nats.urls, "--monitor", f"http://127.0.0.1:{nats.ports[0]}")
        assert (code, "no monitoring of a NATS server" in line) == (1, True), line
        async with httpx.AsyncClient(verify=False) as client:
            assert (await client.get(f"{monitor}/jsz")).json()["streams"] == 0


@pytest.mark.parametrize(
    ("more", "has_jetstream", "settled_by", "texts"),
    [
        ("", False, "keeper", ["JetStream does not answer", "the server has no JetStream"]),
        ("max_payload: 1000\n", True, "keeper", ["max_payload is 1000 bytes"]),
        (RIGHTS, True, "keeper", ['not all rights: Permissions Violation for Publish to "$JS.FC.halley.']),
    ],
)
async def test_check_of_a_nats_that_does_not_do(tmp_path, more, has_jetstream, settled_by, texts):
    """No JetStream, messages that are too small, rights that are missing."""
    async with nats_servers(tmp_path, more=more, has_jetstream=has_jetstream) as nats:
        monitor = f"http://127.0.0.1:{nats.monitors[0]}"
        code, lines = await check(tmp_path, nats.urls, "--monitor", monitor, settled_by=settled_by)
    assert code == 1
    assert [text in line for text, line in zip(texts, lines, strict=True)] == [True] * len(texts), lines
