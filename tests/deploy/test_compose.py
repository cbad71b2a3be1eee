"""The shipped compose file: that it follows the Compose specification's schema, and that its parts fit together."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from support.image import TOP
from support.programs import require_module

from halley.configuration import load

FOLDER = TOP / "deploy" / "compose"
FILE = FOLDER / "compose.yaml"


@pytest.fixture(scope="module")
def services():
    """Return the services by name, with anchors and merges resolved."""
    return parsed()["services"]


def parsed():
    require_module("yaml", "pip install '.[deploy]'")
    import yaml

    return yaml.safe_load(FILE.read_text())


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["compose.yaml", "cluster.yaml"])
def test_it_is_a_compose_file(name):
    """The file follows the schema of the Compose specification."""
    require_module("check_jsonschema", "pip install '.[deploy]'")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", FOLDER / name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_service_is_walled_in(services):
    """Every service is read-only and without capabilities, except for those that nginx needs at its start."""
    assert {*services} == {"halley", "nginx", "spark-master", "spark-worker", "pipeline"}
    for name, service in services.items():
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert ("cap_add" in service) == (name == "nginx")


@pytest.mark.parametrize("name", ["compose.yaml", "cluster.yaml"])
def test_every_service_is_there_again_after_the_machine_was_restarted(name):
    """With `on-failure` Docker does not restart a container when its daemon starts."""
    require_module("yaml", "pip install '.[deploy]'")
    import yaml

    services = yaml.safe_load((FOLDER / name).read_text())["services"]
    assert {service["restart"] for service in services.values()} == {"unless-stopped"}


def test_only_nginx_can_be_reached_from_outside(services):
    assert [name for name, service in services.items() if "ports" in service] == ["nginx"]
    assert parsed()["networks"]["inside"]["internal"] is True


def test_the_files_that_it_mounts_are_there(services):
    """Mounted files of the repository exist; the certificate is provided by the operator."""
    mounted = [mount.split(":")[0] for service in services.values() for mount in service["volumes"]]
    files = [FOLDER / each for each in mounted if each.startswith("..")]
    assert len(files) == 3
    assert all(file.is_file() for file in files)
    assert {each for each in mounted if not each.startswith(".")} == {*parsed()["volumes"]}


def test_halley_believes_nginx_and_has_time_to_leave(services):
    """Halley trusts nginx' address, which is fixed, and the stop grace period covers the drain."""
    environment = services["halley"]["environment"] | {"HALLEY_DRAIN_NOT_READY_S": "5"}
    settings = load(TOP / "deploy/settings/halley.toml", environment, {}).settings
    assert settings.proxies == (services["nginx"]["networks"]["front"]["ipv4_address"],)
    leaving_s = settings.drain.not_ready_s + settings.drain.spread_s + settings.drain.grace_s
    assert int(services["halley"]["stop_grace_period"].removesuffix("s")) >= leaving_s + settings.history.commit_s
    assert f"server halley:{settings.port} " in (TOP / "deploy/nginx/halley.conf").read_text()


@pytest.mark.parametrize("name", ["spark-master", "spark-worker", "pipeline"])
def test_command_lines_have_options_that_there_are(name, services):
    """The options in the command lines are those that the programs' `--help` lists."""
    if name == "pipeline":
        program, given = ["-m", "halley", "pipeline", "run"], services[name]["command"][2:]
    else:
        script, *given = services[name]["entrypoint"]
        program = [TOP / "deploy" / script]
    text = subprocess.run([sys.executable, *program, "--help"], capture_output=True, text=True, check=True).stdout
    options = {each.partition("=")[0] for each in given if each.startswith("--")}
    assert options
    assert options <= set(re.findall(r"--[a-z-]+", text))
