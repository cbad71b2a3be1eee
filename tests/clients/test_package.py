"""The npm package `halley-client`: packed, installed into a project with strict TypeScript, used in Node and Chromium.

`project/` is that project. Its tools are those of `tests/static`, and npm gets nothing from a registry.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import shutil
import signal
import subprocess
import tarfile
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from browser.conftest import RestartableServer
from clients.foreign import DEADLINE_S, until
from clients.kinds import HERE
from readme.table import block
from support.folder_server import files
from support.programs import require_program, unavailable
from support.readme import ROOT, page

from halley.access.tokens import hash_of, new_token

PACKAGE = ROOT / "static" / "client"
MANIFEST = json.loads((PACKAGE / "package.json").read_text(encoding="utf-8"))
TOOLS = ROOT / "tests" / "static"
SECRET = "a secret of at least thirty-two bytes"
RULES = """
[[access]]
role = "member"
verb = "*"
pattern = "/**"
"""
JWTS = f"""{RULES}
[jwt]
issuer = "https://login.example"
audience = "halley"
secret = "secret"
leeway_s = 0
"""
SOCKETS = {"long-polling": "--no-experimental-websocket", "websocket": "--experimental-websocket"}


def run(*command, cwd):
    """Run a command to its end, within two minutes; return what it has written."""
    return subprocess.run(
        command, cwd=cwd, check=False, timeout=120, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def done(*command, cwd):
    """Run a command that must succeed; return its output."""
    ended = run(*command, cwd=cwd)
    assert ended.returncode == 0, ended.stdout
    return ended.stdout


def table_of(token):
    """The lines of the settings for a token."""
    return f'[[tokens]]\nid = "ada"\nrole = "member"\nhash = "{hash_of(token)}"\n'


def tool(name):
    """The path of a program of `tests/static`; skips if it is not installed."""
    require_program("npm")
    program = TOOLS / "node_modules" / ".bin" / name
    return str(program) if program.exists() else unavailable(f"{name} is missing: run `npm ci` in tests/static")


@pytest.fixture(scope="module")
def tarball(tmp_path_factory):
    """The package as `npm pack` makes it, of a copy of its folder: servers of other tests read the folder meanwhile."""
    tool("tsc")
    tree = tmp_path_factory.mktemp("tree")
    shutil.copytree(PACKAGE, tree / "static" / "client")
    shutil.copy(ROOT / "LICENSE", tree)
    (tree / "tests" / "static").mkdir(parents=True)
    for file in TOOLS.glob("*.json"):
        shutil.copy(file, tree / "tests" / "static")
    (tree / "tests" / "static" / "node_modules").symlink_to(TOOLS / "node_modules")
    done("npm", "pack", cwd=tree / "static" / "client")
    packed = tree / "static" / "client" / f"halley-client-{MANIFEST['version']}.tgz"
    left = {path.name for path in (tree / "static" / "client").iterdir()} - {path.name for path in PACKAGE.iterdir()}
    assert left == {packed.name}
    return packed


@pytest.fixture(scope="module")
def project(tarball, tmp_path_factory):
    """A project in a folder of its own that has installed the package, and whose program is compiled."""
    folder = tmp_path_factory.mktemp("projects") / "project"
    shutil.copytree(HERE / "project", folder)
    done("npm", "install", "--offline", "--no-audit", "--no-fund", tarball, cwd=folder)
    done(*compiler(), cwd=folder)
    return folder


def compiler():
    """The command that compiles a project."""
    return tool("tsc"), "--project", ".", "--typeRoots", str(TOOLS / "node_modules" / "@types")


def test_it_depends_on_nothing():
    assert {"dependencies", "peerDependencies", "optionalDependencies"}.isdisjoint(MANIFEST)


@pytest.mark.slow
@pytest.mark.node
def test_what_is_packed(tarball):
    """The modules as they are served, their types, the page and the license; nothing else."""
    with tarfile.open(tarball) as archive:
        names = {name.removeprefix("package/") for name in archive.getnames()}
        modules = {path.name for path in PACKAGE.glob("*.js")}
        for name in modules:
            member = archive.extractfile(f"package/{name}")
            assert member is not None
            assert member.read() == (PACKAGE / name).read_bytes()
    types = {f"types/{Path(name).stem}.d.ts{end}" for name in modules for end in ("", ".map")}
    assert names == modules | types | {"package.json", "README.md", "LICENSE"}


@pytest.mark.slow
@pytest.mark.node
def test_types_catch_misuse(project):
    """Each line of `misuse.txt` is an error of the compiler; the project, whose use is right, compiles."""
    lines = (HERE / "project" / "misuse.txt").read_text(encoding="utf-8").splitlines()
    misuse = project.parent / "misuse"
    shutil.copytree(project, misuse, ignore=shutil.ignore_patterns("page.ts", "program.ts", "built"), symlinks=True)
    head = 'import { eventStream, HalleyClient } from "halley-client";'
    (misuse / "misuse.ts").write_text("\n".join([head, *lines, ""]), encoding="utf-8")
    ended = run(*compiler(), "--noEmit", cwd=misuse)
    wrong = {int(line) for line in re.findall(r"^misuse\.ts\((\d+),\d+\): error TS", ended.stdout, re.MULTILINE)}
    assert wrong == set(range(2, len(lines) + 2)), ended.stdout


class NodeProgram:
    """The project's program in Node, and what it has shown, by what it is."""

    def __init__(self, process):
        self._process = process
        self._shown = []
        self._reading = asyncio.create_task(self._read())

    async def _read(self):
        async for line in self._process.stdout:
            self._shown.append(json.loads(line))

    def shown(self, what):
        """All that the program has shown under that name, in order."""
        return [value for name, value in self._shown if name == what]

    def around(self, line, what):
        """What it has shown under that name before a line, and after it."""
        at = self._shown.index(line)
        return ([value for name, value in part if name == what] for part in (self._shown[:at], self._shown[at:]))

    async def until(self, condition):
        """Wait for a condition, and say what was seen if it does not come."""
        try:
            await until(lambda: condition() or self._process.returncode is not None)
            assert self._process.returncode is None
        except (TimeoutError, AssertionError):
            errors = await self.end()
            raise AssertionError(f"the program has shown {self._shown[-20:]}: {errors}") from None

    async def goes_on(self, count):
        """Wait until `count` more events have come in both ways."""
        wanted = [len(self.shown(what)) + count for what in ("subscribed", "streamed")]
        await self.until(lambda: [len(self.shown(what)) for what in ("subscribed", "streamed")] >= wanted)

    async def end(self):
        """Close its standard input, on which it ends; return what it has complained of."""
        self._process.stdin.close()
        async with asyncio.timeout(DEADLINE_S):
            await self._reading
            errors = (await self._process.stderr.read()).decode()
            await self._process.wait()
        return errors


@asynccontextmanager
async def program(project, port, *options):
    """Run the project's program with Node's options, for a server at that port."""
    process = await asyncio.create_subprocess_exec(
        *(require_program("node"), *options, str(project / "built" / "program.js"), f"http://127.0.0.1:{port}", SECRET),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield NodeProgram(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.mark.nightly
@pytest.mark.node
@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("transport", SOCKETS)
async def test_a_program_loses_nothing_over_kills_and_expired_tokens(transport, project, tmp_path):
    """A program in Node publishes, subscribes and reads a stream; each event comes once and in order in both ways.

    Meanwhile the server is killed twice and started again, and the tokens, which are valid for four seconds, expire.
    """
    (tmp_path / "secret").write_text(SECRET)
    server = RestartableServer(tmp_path, JWTS)
    await server.start()
    try:
        async with program(project, server.port, SOCKETS[transport]) as client:
            for _ in range(2):
                await client.goes_on(20)
                await server.stop(signal.SIGKILL)
                await server.start()
            for purpose in ("client token", "stream token"):
                before = len(client.shown(purpose))
                await client.until(lambda purpose=purpose, before=before: len(client.shown(purpose)) >= before + 2)
            await client.goes_on(20)
            await client.end()
    finally:
        await server.close()
    published, subscribed, streamed = (client.shown(what) for what in ("published", "subscribed", "streamed"))
    assert len(subscribed) > 60
    assert [number for number, _ in subscribed] == list(range(len(subscribed)))
    assert [position for _, position in subscribed] == sorted({position for _, position in subscribed})
    assert streamed[: len(subscribed)] == subscribed[: len(streamed)]
    assert published[: len(subscribed)] == subscribed[: len(published)]
    assert {*client.shown("open")} == {transport}
    assert "token_expired" in client.shown("stream token")
    assert client.shown("rejected") == client.shown("gap") == client.shown("end") == []


@pytest.mark.slow
@pytest.mark.node
@pytest.mark.asyncio(loop_scope="session")
async def test_a_log_that_was_replaced_is_reported(project, tmp_path):
    """A server whose data was deleted does not have the positions: both ways say so once, and go on."""
    (tmp_path / "secret").write_text(SECRET)
    server = RestartableServer(tmp_path, JWTS)
    await server.start()
    try:
        async with program(project, server.port) as client:
            await client.goes_on(20)
            await server.stop(signal.SIGKILL)
            shutil.rmtree(tmp_path / "halley-data")
            await server.start()
            await client.until(lambda: len(client.shown("gap")) == 2)
            await client.goes_on(20)
            await client.end()
    finally:
        await server.close()
    gaps = sorted(client.shown("gap"), key=lambda gap: "channel" in gap)
    assert [(gap.get("channel"), gap["reason"]) for gap in gaps] == [(None, "ahead"), ("/orders/*", "ahead")]
    for gap, what in zip(gaps, ("streamed", "subscribed"), strict=True):
        old, new = client.around(["gap", gap], what)
        assert old[-1][1] <= gap["from"]
        assert gap["to"] < new[0][1]
        assert new == sorted(new)


@pytest.mark.nightly
@pytest.mark.node
@pytest.mark.browser
@pytest.mark.asyncio(loop_scope="session")
async def test_a_page_that_vite_has_built_works(project, chromium, tmp_path):
    """In Chromium, on another origin than the server's, with a token in the header of its stream."""
    done(tool("vite"), "build", "--base", "./", cwd=project)
    token = new_token()
    server = RestartableServer(tmp_path, RULES + table_of(token))
    await server.start()
    browser = await chromium.browser()
    tab = await (await browser.new_context()).new_page()
    complaints = []
    tab.on("console", lambda message: complaints.append(message.text))
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    try:
        with files(project / "dist") as origin:
            await tab.goto(f"{origin}/index.html?server={server.url}&token={token}")
            await tab.wait_for_function("streamed.textContent && subscribed.textContent")
            assert await tab.title() == "websocket"
            await server.stop(signal.SIGKILL)
            await server.start()
            async with httpx.AsyncClient(headers={"Authorization": f"Bearer {token}"}) as http:
                assert (await http.post(f"{server.url}/events/room/a", json="again")).status_code == 200
            await tab.wait_for_function("[streamed, subscribed].every(({ innerText }) => innerText.includes('again'))")
            texts = [await tab.text_content(f"#{name}") for name in ("subscribed", "streamed")]
    finally:
        await tab.context.close()
        await server.close()
    assert texts == ["hello again "] * 2
    assert [text for text in complaints if "net::ERR_" not in text] == []  # the browser's own, of the lost connections


@pytest.mark.slow
@pytest.mark.node
@pytest.mark.asyncio(loop_scope="session")
async def test_the_examples_of_the_page_run(tarball, tmp_path):
    """Installed as the page says, but from the file; its programs print what is published."""
    install = block("client-install").replace("halley-client", f"--offline --no-audit --no-fund {tarball}")
    done("bash", "-c", install, cwd=tmp_path)
    token = new_token()
    (tmp_path / "token").write_text(token)
    everyone = '[[access]]\nrole = "anonymous"\nverb = "*"\npattern = "/orders/*"\n'
    server = RestartableServer(tmp_path, f"{everyone}{RULES}{table_of(token)}")
    await server.start()
    try:
        for example in (block("client-orders"), block("client-stream")):
            script = tmp_path / "example.mjs"
            script.write_text(example.replace("http://127.0.0.1:8080", server.url))
            process = await asyncio.create_subprocess_exec(
                require_program("node"), str(script), cwd=tmp_path, stdout=asyncio.subprocess.PIPE
            )
            try:
                async with asyncio.timeout(DEADLINE_S):
                    lines = [await process.stdout.readline()]
                    if lines[0].startswith(b"published at "):  # the reply may come before the event, or after it
                        lines.append(await process.stdout.readline())
                assert b" /orders/new { id: 7 }\n" in lines[-1]
            finally:
                process.kill()
                await process.communicate()
    finally:
        await server.close()


@pytest.mark.slow
@pytest.mark.node
def test_its_size_is_printed():
    """`npm run size` says how much a page loads, and the page about the package says the same."""
    tool("vite")
    printed = done("npm", "run", "--silent", "size", cwd=PACKAGE)
    sizes = re.fullmatch(r"halley-client: (\d+\.\d) KB minified, (\d+\.\d) KB with gzip\n", printed)
    assert sizes is not None
    minified, compressed = (math.ceil(float(size)) for size in sizes.groups())
    assert f"Up to {minified} KB minified, {compressed} KB with gzip" in page("static/client/README.md")
