"""The wheel, installed beside a program that has packages of the names that Halley's own folders have."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from asyncio.subprocess import DEVNULL, PIPE
from pathlib import Path

import pytest
from support.distributions import built
from support.messages import HANDSHAKE
from support.process import Server, environment
from support.readme import ROOT
from support.tarballs import unpack

PROGRAM = {
    "app/__init__.py": '"""The program\'s own package, as in the tutorials of FastAPI and Flask."""\n',
    "static/__init__.py": "",
    "app/main.py": """
from contextlib import asynccontextmanager

from fastapi import FastAPI

from halley.embed import Halley, Settings
from halley.settings import History

halley = Halley(Settings(history=History(enabled=False)))
runs = []


@asynccontextmanager
async def lifespan(program):
    runs.append("begun")
    async with halley.lifespan(program):
        yield
    runs.append("ended")


program = FastAPI(lifespan=lifespan)


@program.get("/")
async def home():
    return await halley.publish("/visits", {"path": "/"})


program.mount("/realtime", halley.app)
""",
    "app/hooks.py": """
def setup(halley):
    @halley.service("/service/greet")
    def greet(session, message):
        return f"Hello, {message.data}!"
""",
    "check.py": """
import json
import sys

from fastapi.testclient import TestClient

import halley
import static
from app.main import program, runs

HANDSHAKE = json.loads(sys.argv[1])
seen = {"halley": halley.__file__, "static": static.__file__, "clients": []}
for _ in range(2):
    with TestClient(program, base_url="http://127.0.0.1") as client:
        (shaken,) = client.post("/realtime/bayeux", json=[HANDSHAKE]).json()
        page = client.get("/realtime/")
        seen["clients"].append([client.get("/").json()["successful"], shaken["successful"], "Halley" in page.text])
print(json.dumps({**seen, "runs": runs}))
""",
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return built("wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory):
    """A virtual environment's Python, with the wheel installed; all else is that of the tests."""
    place = tmp_path_factory.mktemp("environment")
    venv.create(place, symlinks=True)
    names = {"base": str(place), "platbase": str(place)}
    site = Path(sysconfig.get_path("purelib", scheme="venv", vars=names))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    (site / "others.pth").write_text("".join(f"{each}\n" for each in sys.path if each.endswith("site-packages")))
    return place / "bin" / "python"


@pytest.fixture
def program(tmp_path):
    """The folder of the program."""
    for name, text in PROGRAM.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def top(names):
    """Return the first part of each path."""
    return {name.split("/")[0] for name in names}


def test_it_installs_one_package_with_everything_inside(wheel):
    """Nothing else is at the top, and the console and the mark for type checkers are inside."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name for name in top(names) if not name.endswith(".dist-info")} == {"halley"}
    assert {"halley/py.typed", "halley/embed/__init__.py", "halley/static/index.html"} <= {*names}


def test_it_has_the_project_that_halley_pipeline_init_writes(wheel):
    """The files of the project, most of which are not Python, are in the wheel as they are in the repository."""
    template = ROOT / "app/halley/pipeline/project/template"
    files = [path for path in template.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert len(files) >= 11
    with zipfile.ZipFile(wheel) as archive:
        for path in files:
            assert archive.read(f"halley/{path.relative_to(ROOT / 'app/halley')}") == path.read_bytes()


@pytest.mark.slow
def test_the_source_distribution_makes_the_same_wheel(wheel, tmp_path):
    """Whoever builds from the source distribution installs what the wheel has."""
    source = built("sdist", tmp_path / "sdist")
    with tarfile.open(source) as archive:
        unpack(archive, tmp_path)
    (folder,) = [each for each in tmp_path.iterdir() if each.name != "sdist"]
    again = built("wheel", tmp_path / "wheel", folder)
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(again) as other:
        assert {*one.namelist()} == {*other.namelist()}


def test_a_program_with_a_package_named_app_embeds_it(python, program):
    """Both have their own modules; the program's lifespan runs Halley's, in each of two test clients."""
    done = subprocess.run(
        [python, "check.py", json.dumps(HANDSHAKE)],
        cwd=program,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])  # after the log
    assert seen["halley"].startswith(str(python.parents[1]))
    assert seen["static"].startswith(str(program))
    assert seen["clients"] == [[True, True, True]] * 2
    assert seen["runs"] == ["begun", "ended"] * 2


async def test_hooks_of_a_package_named_app_are_loaded(python, program):
    """`halley serve --load app.hooks:setup` finds the module in the working directory."""
    free_ports = ("--port", "0", "--operations-port", "0")
    arguments = ("-m", "halley", "serve", *free_ports, "--load", "app.hooks:setup", "--history", "off")
    pipes = {"stdin": DEVNULL, "stdout": PIPE, "stderr": PIPE}
    server = Server(await asyncio.create_subprocess_exec(python, *arguments, cwd=program, env=environment(), **pipes))
    try:
        await server.until(lambda: server.port != 0)
        wire = await server.wire()
        (shaken,) = (await wire.post(HANDSHAKE)).messages
        asked = {"channel": "/service/greet", "data": "Ada", "clientId": shaken["clientId"]}
        answers = (await wire.post(asked)).messages
        assert {"channel": "/service/greet", "data": "Hello, Ada!"}.items() <= answers[-1].items()
    finally:
        await server.close()
