"""The shipped alerts and the dashboard: by promtool, and by Debian's Prometheus that scrapes real servers."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
import shutil
import subprocess
from contextlib import asynccontextmanager
from itertools import combinations

import httpx
import pytest
import pytest_asyncio
from support import wamp
from support.image import TOP
from support.messages import connect, publish
from support.process import launched
from support.programs import require_module, require_program
from support.readme import anchor, page, section, titles_of
from support.relayed import POLL, running, session
from support.wire import DEADLINE_S, request

from halley.processes import free_port

DEPLOY = TOP / "deploy"
RULES = DEPLOY / "prometheus" / "alerts.yaml"
RULES_TEST = TOP / "tests" / "deploy" / "alerts_test.yaml"
DASHBOARD = DEPLOY / "grafana" / "halley.json"

NOT_SHOWN = {
    "halley_history_segments": "a file for each day or so: its number means little",
    "process_start_time_seconds": "a restart is seen by all other charts",
    "process_virtual_memory_bytes": "resident memory is what counts",
    "python_info": "the version of Python",
    "python_gc_collections_total": "the loop's lag has what the collector costs",
    "python_gc_objects_collected_total": "the same",
    "python_gc_objects_uncollectable_total": "the same",
}
"""Metrics that the dashboard leaves out, and why."""

QUIET = {"State of the history", "Limits reached"}
"""Charts that have no line while nothing is wrong."""


def yaml_of(path):
    require_module("yaml", "pip install '.[deploy]'")
    import yaml

    return yaml.safe_load(path.read_text())


def promtool(*arguments):
    """Run promtool, and return what it says where it fails."""
    command = [require_program("promtool"), *map(str, arguments)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    return "" if ended.returncode == 0 else ended.stdout + ended.stderr


def rules():
    return yaml_of(RULES)["groups"][0]["rules"]


def panels():
    """Return the dashboard's charts, without the titles of its rows."""
    return [each for each in json.loads(DASHBOARD.read_text())["panels"] if each["type"] != "row"]


def metrics_in(query):
    """Return the names of the metrics in a query; a histogram's is that of its buckets."""
    return set(re.findall(r"\b(?:halley|process)_\w+", query))


def test_promtool_accepts_the_shipped_files():
    """The rules, and the example of what a Prometheus needs."""
    assert promtool("check", "rules", RULES) == ""
    assert promtool("check", "config", DEPLOY / "prometheus" / "prometheus.yaml") == ""


def test_when_alerts_fire():
    """By series that promtool plays: each alert is silent for some, and fires for others with all that it says."""
    assert promtool("test", "rules", RULES_TEST) == ""


def test_each_alert_is_tested_and_explained():
    """In both ways, and in the page to which it leads; it says in one sentence what is wrong."""
    cases = [each for test in yaml_of(RULES_TEST)["tests"] for each in test["alert_rule_test"]]
    names = [rule["alert"] for rule in rules()]
    for is_firing in (False, True):
        assert [*dict.fromkeys(case["alertname"] for case in cases if bool(case["exp_alerts"]) == is_firing)] == names
    explained = section("deploy/README.md", "Alerts")
    assert re.findall(r"^\| `(Halley\w+)`", explained, re.MULTILINE) == names
    for rule in rules():
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert set(rule["annotations"]) == {"summary", "runbook"}
        path, _, at = rule["annotations"]["runbook"].partition("#")
        assert at in map(anchor, titles_of(page(path)))


def test_the_dashboard_is_what_its_program_makes():
    """Who changes the program writes the file again."""
    require_module("grafana_foundation_sdk", "pip install '.[deploy]'")
    spec = importlib.util.spec_from_file_location("dashboard", DEPLOY / "grafana" / "dashboard.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.made() == DASHBOARD.read_text()


def test_the_dashboard_can_be_imported_anywhere():
    """It names no Prometheus of its own; no panel has the number or the place of another."""
    board = json.loads(DASHBOARD.read_text())
    assert [(each["name"], each["type"]) for each in board["templating"]["list"]] == [
        ("datasource", "datasource"),
        ("instance", "query"),
    ]
    queries = [target for panel in panels() for target in panel["targets"]]
    assert {each["datasource"]["uid"] for each in (*panels(), *queries)} == {"${datasource}"}
    ids = [each["id"] for each in board["panels"]]
    assert len(set(ids)) == len(ids)
    places = [each["gridPos"] for each in board["panels"]]
    assert all(each["x"] >= 0 and each["x"] + each["w"] <= 24 for each in places)
    for one, other in combinations(places, 2):
        is_beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert is_beside or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
    for panel in panels():
        assert panel["description"].endswith(".")
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])


# A live Prometheus


class Prometheus:
    """A running Prometheus; `get` asks its API."""

    def __init__(self, port):
        self._url = f"http://127.0.0.1:{port}/api/v1/"

    async def get(self, path, **parameters):
        """Return the data of an answer, which must be a success; None while it does not answer yet."""
        async with httpx.AsyncClient(timeout=DEADLINE_S) as client:
            try:
                answer = (await client.get(self._url + path, params=parameters)).json()
            except (httpx.TransportError, ValueError):
                return None
        assert answer["status"] == "success", f"{parameters}: {answer}"
        assert "warnings" not in answer
        return answer["data"]

    async def result(self, query):
        """Return the present values that a query finds."""
        return (await self.get("query", query=query))["result"]

    async def until(self, condition):
        """Wait until what it is asked is true."""
        async with asyncio.timeout(2 * DEADLINE_S):
            while not await condition():
                await asyncio.sleep(0.2)


@asynccontextmanager
async def prometheus(folder, *ports):
    """Run Debian's Prometheus with the shipped files, for servers with these operations ports."""
    program = require_program("prometheus")
    config = yaml_of(DEPLOY / "prometheus" / "prometheus.yaml")
    config["global"] = {"scrape_interval": "500ms", "evaluation_interval": "500ms"}
    (job,) = config["scrape_configs"]
    job["static_configs"] = [{"targets": [f"127.0.0.1:{port}" for port in ports]}]
    folder.mkdir()
    shutil.copy(RULES, folder)
    (folder / "prometheus.yml").write_text(json.dumps(config))  # YAML has JSON in it
    port = free_port()
    arguments = ["--config.file=prometheus.yml", f"--storage.tsdb.path={folder / 'data'}"]
    with (folder / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            program, *arguments, f"--web.listen-address=127.0.0.1:{port}", cwd=folder, stdout=log, stderr=log
        )
        try:
            running = Prometheus(port)
            await running.until(lambda: running.get("status/buildinfo"))
            yield running
        finally:
            process.kill()
            await process.wait()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def watched(tmp_path_factory):
    """A server that serves robots, two nodes of a cluster, another server, and a Prometheus that scrapes them."""
    require_program("prometheus")
    folder = tmp_path_factory.mktemp("watched")
    (folder / "alone").mkdir()
    async with (
        running(folder, ("a", "b")) as cluster,
        launched("--data-dir", "data", "--nt4", cwd=folder / "alone", HALLEY_NT4_PORT="0") as alone,
        launched("--data-dir", "other", cwd=folder / "alone") as other,
    ):
        servers = [alone, *cluster.nodes, other]
        async with prometheus(folder / "prometheus", *(each.operations_port for each in servers)) as prometheus_:
            await prometheus_.until(lambda: _has_scraped(prometheus_, len(servers)))
            for server in servers:
                await _traffic(server)
            await _scraped(prometheus_, 6)  # a rate needs two scrapes after the first value of a series
            for server in servers:
                await _traffic(server)
            await _scraped(prometheus_, 4)
            yield prometheus_, servers


async def _has_scraped(watching, count):
    return len(await watching.result('up{job="halley"} == 1')) == count


async def _scraped(watching, times):
    """Wait until each server was scraped so many times more."""

    async def least():
        counts = await watching.result('count_over_time(up{job="halley"}[1h])')
        return min(int(each["value"][1]) for each in counts)

    enough = await least() + times

    async def is_enough():
        return await least() >= enough

    await watching.until(is_enough)


async def _traffic(server):
    """Have a server do something of most of what is measured."""
    url = f"http://127.0.0.1:{server.port}"
    client_id = await session(server, "/chat/a")
    wire = await server.wire()
    for number in range(20):
        await wire.post(publish("/chat/a", number, clientId=client_id), traceparent="malformed")
    await wire.post(publish("/meta/forbidden", 1), {"channel": "/meta/subscribe", "clientId": "x"})
    await wire.post({**connect(client_id), **POLL})
    await (await server.wire()).request(request("POST", "/bayeux", b"no JSON"))
    await (await server.wire()).request(
        request("POST", "/log/consumers/lake", b'{"offset": 1}', content_type="application/json")
    )
    hearer = await wamp.join(url)
    try:
        await hearer.subscribe("chat.a")
        await hearer.publish("chat.a", [1], exclude_me=False)
        await hearer.ask(wamp.PUBLISH, {"acknowledge": True}, "wamp.forbidden", [1])
    finally:
        await hearer.close()


@pytest.mark.asyncio(loop_scope="module")
async def test_every_chart_has_data(watched):
    """Each query is answered, and each chart has a line for what these servers do."""
    watching, _ = watched
    for panel in panels():
        found = []
        for target in panel["targets"]:
            query = target["expr"].replace("$instance", ".+").replace("$__rate_interval", "10s")
            found += await watching.result(query)
        assert found or panel["title"] in QUIET, panel["title"]


@pytest.mark.asyncio(loop_scope="module")
async def test_every_alert_is_judged_and_silent(watched):
    """A server that is well has no alert; the last one another test has killed."""
    watching, (*_, other) = watched
    (group,) = (await watching.get("rules"))["groups"]
    assert [each["name"] for each in group["rules"]] == [rule["alert"] for rule in rules()]
    assert {each["health"] for each in group["rules"]} == {"ok"}
    alerts = [alert["labels"] for each in group["rules"] for alert in each["alerts"] if alert["state"] == "firing"]
    assert [each for each in alerts if each["instance"] != f"127.0.0.1:{other.operations_port}"] == []


@pytest.mark.asyncio(loop_scope="module")
async def test_every_metric_is_known_and_shown(watched):
    """Queries name what servers export; and what they export is on the dashboard, or is left out for a reason."""
    _, servers = watched
    exported = set()
    for server in servers[:-1]:
        text = (await (await server.wire(server.operations_port)).request(request("GET", "/metrics"))).text
        for name, kind in re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE):
            exported.add(f"{name}_bucket" if kind == "histogram" else name)
    exported -= {name for name in exported if name.endswith("_created")}
    shown = {name for panel in panels() for target in panel["targets"] for name in metrics_in(target["expr"])}
    alerted = {name for rule in rules() for name in metrics_in(rule["expr"])}
    assert (shown | alerted) - exported == set()
    assert exported - shown - NOT_SHOWN.keys() == set()
    assert NOT_SHOWN.keys() <= exported


@pytest.mark.asyncio(loop_scope="module")
async def test_a_server_that_is_killed_is_noticed(watched):
    """The first alert anybody needs: it is pending, and fires a minute later."""
    watching, (*_, other) = watched
    gone = f"127.0.0.1:{other.operations_port}"
    await other.close()

    async def is_noticed():
        alerts = (await watching.get("alerts"))["alerts"]
        return [each["labels"]["instance"] for each in alerts if each["labels"]["alertname"] == "HalleyDown"] == [gone]

    await watching.until(is_noticed)
