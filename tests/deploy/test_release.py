"""A release: its version, what `deploy/release.py` refuses and builds, and installations of it in fresh Pythons."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from asyncio.subprocess import DEVNULL, PIPE
from contextlib import asynccontextmanager

import pytest
from deploy.workflows import Job
from readme.shell import to_run
from readme.table import block
from support.distributions import built
from support.messages import publish
from support.process import Server, environment
from support.programs import unavailable
from support.pythons import COMPILED_FOR, PYPROJECT, VERSIONS
from support.readme import ROOT
from support.wire import request

from halley import __version__

STEP_S = 900
PYTHONS = [version for version in VERSIONS if version in COMPILED_FOR or shutil.which(f"python{version}")]
TAG = f"v{__version__}"


def run(*command, cwd=None, **variables):
    """Run a command to its end, without settings of Halley except for those that are given."""
    return subprocess.run(
        [str(each) for each in command],
        cwd=cwd,
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=STEP_S,
        check=False,
    )


# The version


def test_the_version_is_in_one_place():
    """The package has it; the distributions take it from there, and the changelog's first heading is about it."""
    assert "version" not in PYPROJECT["project"]
    assert PYPROJECT["tool"]["hatch"]["version"] == {"path": "app/halley/__init__.py"}
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert re.fullmatch(rf"{re.escape(__version__)} - (unreleased|\d{{4}}-\d\d-\d\d)", headings[0])


def test_packages_for_npm_have_the_same_version():
    """In npm's form, in which a candidate is `1.0.0-rc.1`. Those that are never published have none."""
    npms = re.sub(r"rc(\d+)$", r"-rc.\1", __version__)
    for file in ROOT.glob("static/**/package.json"):
        if "node_modules" not in file.parts:
            package = json.loads(file.read_text())
            assert package.get("private") or package["version"] == npms, file


# What is refused


@pytest.fixture
def sources(tmp_path):
    """The top of a repository with what `--tag` reads, of version 1.2.0."""
    for name, text in {
        "deploy/release.py": (ROOT / "deploy/release.py").read_text(),
        "app/halley/__init__.py": '"""Halley."""\n\n__version__ = "1.2.0"\n',
        "CHANGELOG.md": "# Changelog\n\n## 1.2.0 - 2027-01-31\n\n### Added\n\n## 1.1.0 - 2026-12-24\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_tag_that_fits(sources):
    assert run(sys.executable, sources / "deploy/release.py", "--tag", "v1.2.0").returncode == 0


@pytest.mark.parametrize(
    ("tag", "changelog", "sentence"),
    [
        ("1.2.0", None, "The tag 1.2.0 does not fit the version 1.2.0: its tag is v1.2.0."),
        ("v1.2.1", None, "The tag v1.2.1 does not fit the version 1.2.0: its tag is v1.2.0."),
        (
            "v1.2.0",
            "## 1.2.0 - unreleased\n",
            "CHANGELOG.md says that 1.2.0 is unreleased: write the date of the release there.",
        ),
        (
            "v1.2.0",
            "## 1.1.0 - 2026-12-24\n",
            "The first heading of CHANGELOG.md is about 1.1.0, and the version is 1.2.0.",
        ),
        ("v1.2.0", "# Changelog\n", "CHANGELOG.md has no heading of the form `## VERSION - YYYY-MM-DD`."),
    ],
)
def test_a_tag_that_does_not_fit(tag, changelog, sentence, sources):
    """The workflow ends before anything is built, with what to do."""
    if changelog is not None:
        (sources / "CHANGELOG.md").write_text(changelog)
    done = run(sys.executable, sources / "deploy/release.py", "--tag", tag)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"{sentence}\n")


def test_without_the_tools(sources):
    """An interpreter without packages builds nothing, and says what to install."""
    done = run(sys.executable, "-S", sources / "deploy/release.py")
    needed = "build, twine, check-wheel-contents, cyclonedx-bom"
    assert (done.returncode, done.stderr) == (2, f"A release is built with {needed}: pip install '.[release]'\n")
    assert not (sources / "dist").exists()


def test_a_folder_that_has_files(sources):
    """What was built before is not mixed with what is built now, nor deleted."""
    (sources / "dist").mkdir()
    (sources / "dist/halley_server-1.1.0.tar.gz").touch()
    for module in ("build", "twine", "check_wheel_contents", "cyclonedx_py"):
        (sources / f"{module}.py").touch()
    done = run(sys.executable, sources / "deploy/release.py", PYTHONPATH=str(sources))
    sentence = f"{sources / 'dist'} is not an empty folder: delete it, or name another one by --folder.\n"
    assert (done.returncode, done.stderr) == (2, sentence)
    assert [each.name for each in (sources / "dist").iterdir()] == ["halley_server-1.1.0.tar.gz"]


@pytest.mark.slow
def test_what_pip_says_about_a_python_or_a_platform_that_does_not_fit(tmp_path):
    """An old Python and a wheel for another platform: pip says so by itself, and installs nothing."""
    wheel = built("wheel", tmp_path / "dist")
    pip = (sys.executable, "-m", "pip")
    none = tmp_path / "none"
    for_old = ("download", "--python-version", "3.10", "--only-binary", ":all:", "--no-index", "--no-deps", "-d", none)
    done = run(*pip, *for_old, wheel)
    assert done.returncode != 0
    assert re.search(r"requires a different Python: 3\.10\S* not in '>=3\.11'", done.stderr)
    foreign = wheel.rename(wheel.with_name(wheel.name.replace("py3-none-any", "cp311-cp311-win_amd64")))
    done = run(*pip, "install", "--no-index", "--no-deps", "--target", none, foreign)
    assert done.returncode != 0
    assert f"{foreign.name} is not a supported wheel on this platform" in done.stderr
    assert not none.exists() or not any(none.iterdir())


# What is built, and installed


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """The folder `dist` after the steps of the workflow, in a copy of what git tracks, whose changelog has a date."""
    top = tmp_path_factory.mktemp("release") / "clone"
    for name in run("git", "-C", ROOT, "ls-files", "-z").stdout.split("\0"):
        if (ROOT / name).is_file():
            (top / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, top / name)
    changelog = top / "CHANGELOG.md"
    changelog.write_text(
        changelog.read_text().replace(f"## {__version__} - unreleased", f"## {__version__} - 2027-01-31")
    )
    job = Job("release.yml", "distributions")
    output = job.run(top, python=fresh(sys.executable, top.parent / "tools"), GITHUB_REF_NAME=TAG)
    assert f"To publish it: git tag {TAG} && git push origin {TAG}." in output
    return top / "dist"


def fresh(python, place):
    """Make an environment with nothing but pip, and return its Python."""
    done = run(python, "-m", "venv", place)
    assert done.returncode == 0, done.stdout + done.stderr
    return place / "bin/python"


def python_of(version):
    """Return the path of the CPython of a version, or skip; shims of pyenv are there for Pythons that are not."""
    found = shutil.which(f"python{version}")
    if found is None or run(found, "--version").returncode != 0:
        unavailable(f"python{version} is missing on PATH")
    return found


@asynccontextmanager
async def serving(program, folder):
    """Start a server by a command line, and stop it as service managers do."""
    folder.mkdir()
    pipes = {"stdin": DEVNULL, "stdout": PIPE, "stderr": PIPE}
    server = Server(await asyncio.create_subprocess_exec(*program, cwd=folder, env=environment(), **pipes))
    try:
        await server.until(lambda: server.port != 0)
        yield server
        server.send_signal(signal.SIGTERM)
        assert await server.exit_code() == 0
    finally:
        await server.close()


async def answers(program, folder):
    """Check that a server starts, has the console, and records a publish."""
    async with serving(program, folder) as server:
        wire = await server.wire()
        (reply,) = (await wire.post(publish("/chat/lobby", "hello"))).messages
        assert reply["successful"] is True
        assert reply["ext"]["position"] == 1
        page = await wire.request(request("GET", "/", accept="text/html"))
        assert b"Halley" in page.body


@pytest.mark.slow
@pytest.mark.nightly
def test_the_workflow_builds_the_distributions_and_their_sbom(released):
    """By the steps as they are written: both distributions, and a CycloneDX document of what the wheel installs."""
    name = f"halley_server-{__version__}"
    names = {f"{name}.tar.gz", f"{name}-py3-none-any.whl", f"{name}.cdx.json"}
    assert {each.name for each in released.iterdir()} == names
    document = json.loads((released / f"{name}.cdx.json").read_text())
    assert document["bomFormat"] == "CycloneDX"
    assert document["metadata"]["component"]["name"] == "halley-server"
    assert document["metadata"]["component"]["version"] == __version__
    listed = {each["name"].lower().replace("_", "-") for each in document["components"]}
    assert {"starlette", "uvicorn", "orjson", "prometheus-client", "pyjwt", "cryptography"} <= listed
    assert all(each["version"] and each["purl"] for each in document["components"])
    assert "pip" not in listed


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("version", PYTHONS)
async def test_a_fresh_python_installs_it_and_serves(version, released, tmp_path):
    """By the page's line, with the release in place of the package index; every dependency has a wheel."""
    python = fresh(python_of(version), tmp_path / "environment")
    install, serve = to_run(block("published").strip()).split(" && ")
    this = tmp_path / "this"
    this.write_text(f"halley-server=={__version__}\n")  # rather than a newer one
    source = {"PIP_FIND_LINKS": str(released), "PIP_ONLY_BINARY": ":all:", "PIP_CONSTRAINT": str(this)}
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    done = run("bash", "-c", install, PATH=path, **source)
    assert done.returncode == 0, done.stderr
    assert run(python, "-m", "halley", "--version").stdout == f"halley {__version__}\n"
    program = shlex.split(serve)
    await answers([python.parent / program[0], *program[1:]], tmp_path / "server")


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("version", PYTHONS)
async def test_it_is_compiled_for_a_python_from_the_source_distribution(version, released, tmp_path):
    """The wheel is for that Python and this platform, says that it is compiled, and serves."""
    python = fresh(python_of(version), tmp_path / "environment")
    (source,) = released.glob("*.tar.gz")
    wheels = tmp_path / "wheels"
    done = run(python, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", wheels, source, HALLEY_COMPILE="1")
    assert done.returncode == 0, done.stderr
    (wheel,) = wheels.iterdir()
    number = version.replace(".", "")
    assert f"-cp{number}-cp{number}-linux_" in wheel.name
    done = run(python, "-m", "pip", "install", "--only-binary", ":all:", wheel)
    assert done.returncode == 0, done.stderr
    assert run(python, "-m", "halley", "--version").stdout == f"halley {__version__} (compiled)\n"
    await answers([python.parent / "halley", "serve", "--port", "0", "--operations-port", "0"], tmp_path / "server")
