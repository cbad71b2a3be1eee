"""The shipped Kubernetes manifests: Kubernetes' schemas, and the values on which operation and security depend."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from itertools import chain

import pytest
from support.image import DOCKERFILE, TOP
from support.process import ended
from support.programs import require_module, require_wheel

from halley.configuration import load

MANIFESTS = TOP / "deploy" / "kubernetes"
BYTES = {"Mi": 2**20, "Gi": 2**30}
UID = 10001
FOLDERS = {"server": MANIFESTS, "pipeline": MANIFESTS / "pipeline", "cluster": MANIFESTS / "cluster"}
every_folder = pytest.mark.parametrize("folder", FOLDERS.values(), ids=FOLDERS)


@cache
def manifests(folder):
    """Return what `kubectl apply -k` would send, by kind and name; skip the test if kubectl or PyYAML is missing."""
    require_module("yaml", "pip install '.[deploy]'")
    import yaml

    command = [require_wheel("kubectl", "pip install '.[deploy]'"), "kustomize", folder]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(text)}


@pytest.fixture(scope="module")
def server():
    """Return the manifests of the server."""
    return manifests(MANIFESTS)


@pytest.fixture(scope="module")
def pod(server):
    return server["Deployment", "halley"]["spec"]["template"]["spec"]


@pytest.fixture(scope="module")
def container(pod):
    (container,) = pod["containers"]
    return container


@pytest.fixture(scope="module")
def settings(server, container):
    """Return Halley's settings in the pod, from the ConfigMap's file and the environments of the image and the pod."""
    (file,) = [each for (kind, _), each in server.items() if kind == "ConfigMap"]
    assert file["data"]["halley.toml"] == (TOP / "deploy/settings/halley.toml").read_text()
    of_image = dict(re.findall(r"^ +(HALLEY_\w+)=(\S+?)(?: \\)?$", DOCKERFILE.read_text(), re.MULTILINE))
    of_image.pop("HALLEY_CONFIG")
    of_pod = {each["name"]: each["value"] for each in container["env"]}
    return load(TOP / "deploy/settings/halley.toml", of_image | of_pod, {}).settings


@every_folder
def test_kubernetes_would_take_them(folder):
    """The manifests follow Kubernetes' schemas; unknown fields are errors."""
    require_module("kubernetes_validate", "pip install '.[deploy]'")
    import kubernetes_validate

    for manifest in manifests(folder).values():
        for version in ("1.30", kubernetes_validate.latest_version()):
            kubernetes_validate.validate(manifest, version, strict=True)


@every_folder
def test_pods_are_restricted(folder):
    """Pods follow Kubernetes' Pod Security Standard `restricted`, have no API token, and have a read-only root."""
    running = [each for (kind, _), each in manifests(folder).items() if kind in {"Deployment", "StatefulSet"}]
    assert len(running) == (3 if folder.name == "cluster" else 1)
    for each in running:
        check_pod(each["spec"]["template"]["spec"])


def check_pod(pod):
    """Check that a pod is restricted."""
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == pod["securityContext"]["fsGroup"] == UID
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    for container in chain(pod["containers"], pod.get("initContainers", ())):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        resources = container["resources"]
        assert resources["limits"]["memory"] == resources["requests"]["memory"]
    allowed = {"persistentVolumeClaim", "configMap", "emptyDir", "secret"}
    assert all(volume.keys() - {"name"} <= allowed for volume in pod["volumes"])


def test_the_namespace_insists_on_it(server):
    labels = server["Namespace", "halley"]["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"


def test_there_is_one_writer(server):
    """The old pod is stopped before the new one is started, since both would write the same history."""
    spec = server["Deployment", "halley"]["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})


def test_ports_are_what_the_settings_say(server, container, settings):
    """The ports of the container, its probes, the service and Prometheus' annotations are those of the settings."""
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"http": settings.port, "operations": settings.operations.port}
    assert settings.operations.host == settings.host == "0.0.0.0"
    probes = [container[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")]
    assert [probe["path"] for probe in probes] == ["/health/live", "/health/live", "/health/ready"]
    assert {probe["port"] for probe in probes} == {"operations"}
    (port,) = server["Service", "halley"]["spec"]["ports"]
    assert (port["port"], port["targetPort"]) == (settings.port, "http")
    template = server["Deployment", "halley"]["spec"]["template"]
    assert template["metadata"]["annotations"]["prometheus.io/port"] == str(settings.operations.port)
    assert server["Service", "halley"]["spec"]["selector"].items() <= template["metadata"]["labels"].items()


def test_there_is_time_to_leave(pod, container, settings):
    """The grace period covers preStop, the whole drain and the slowest write; it also covers the longest poll."""
    pre_stop_s = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    leaving_s = settings.drain.not_ready_s + settings.drain.spread_s + settings.drain.grace_s
    assert (pre_stop_s, settings.drain.not_ready_s) == (5, 5)
    assert pod["terminationGracePeriodSeconds"] >= pre_stop_s + leaving_s + settings.history.commit_s
    assert pod["terminationGracePeriodSeconds"] >= pre_stop_s + settings.bayeux.hold_s + settings.history.commit_s


def test_readiness_fails_at_once_and_liveness_slowly(container, settings):
    """Kubernetes notices within drain.not_ready_s that a pod is not ready, but restarts it only after 30 s."""
    ready, live = container["readinessProbe"], container["livenessProbe"]
    assert ready["periodSeconds"] * ready["failureThreshold"] < settings.drain.not_ready_s
    assert live["periodSeconds"] * live["failureThreshold"] >= 30


def test_the_volume_holds_the_history(server, settings):
    """The volume has room for 1.5 times max_bytes, which slow consumers can cause, and for free_bytes."""
    size = server["PersistentVolumeClaim", "halley-history"]["spec"]["resources"]["requests"]["storage"]
    assert int(size[:-2]) * BYTES[size[-2:]] > 1.5 * settings.history.max_bytes + settings.history.free_bytes


async def test_a_service_of_that_name_does_not_change_settings(pod, tmp_path):
    """Service links are off, since they would set HALLEY_PORT to a URL, with which Halley would not start."""
    assert pod["enableServiceLinks"] is False
    linked = await ended("check-config", cwd=tmp_path, HALLEY_PORT="tcp://10.0.0.1:8080")
    assert linked.code == 2


def test_who_may_connect(server):
    """Only listed peers may connect, monitoring to the operations port; Halley itself may not connect anywhere."""
    policy = server["NetworkPolicy", "halley"]["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert not policy.get("egress")
    assert [rule["ports"] for rule in policy["ingress"]] == [[{"port": "http"}], [{"port": "operations"}]]
    assert all(rule["from"] for rule in policy["ingress"])
