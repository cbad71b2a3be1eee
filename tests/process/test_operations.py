"""Health and metrics as an operator's programs request them: on a separate listener."""

from __future__ import annotations

import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families
from support.messages import HANDSHAKE, publish
from support.process import launched
from support.wire import request

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory):
    async with launched(cwd=tmp_path_factory.mktemp("operations")) as server:
        yield server


async def ask(server, path, method="GET", port=None):
    wire = await server.wire(port or server.operations_port)
    return await wire.request(request(method, path))


async def metrics(server):
    """Return the current value of every sample, by its name and labels."""
    text = (await ask(server, "/metrics")).text
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.mark.parametrize(("path", "text"), [("/health/live", "live\n"), ("/health/ready", "ready\n")])
async def test_a_server_that_serves_is_live_and_ready(path, text, server):
    """The response is 200 with a word, and must not be cached."""
    answer = await ask(server, path)
    assert (answer.status, answer.text) == (200, text)
    assert answer.headers["cache-control"] == "no-store"


async def test_metrics_are_prometheus_text(server):
    """They have Prometheus' content type, its parser reads them, and the numbers follow what happens."""
    answer = await ask(server, "/metrics")
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    named = [line.split()[2] for line in answer.text.splitlines() if line.startswith("# TYPE ")]
    assert len(named) == len(set(named))  # else a scraper rejects the whole response
    before = await metrics(server)
    wire = await server.wire()
    await wire.post(HANDSHAKE)
    await wire.post(publish("/a", 1), publish("/a", 2))
    await wire.post(publish("no-channel", 1))
    after = await metrics(server)

    def grown(*sample):
        return after[sample] - before.get(sample, 0)

    assert grown("halley_sessions_opened_total", "bayeux") == 1
    assert grown("halley_sessions", "bayeux") == 1
    assert grown("halley_published_total") == 2
    assert grown("halley_messages_refused_total", "405") == 1
    assert after["halley_connections",] >= 1
    assert after["halley_sweeper_age_seconds",] < 10
    assert after["process_open_fds",] > 0
    assert grown("halley_history_commit_seconds_count") >= 1
    assert after["halley_loop_lag_seconds_count",] == after["halley_loop_lag_seconds_bucket", "30.0"]
    assert after["halley_waiting_bytes_peak",] >= after["halley_waiting_bytes",]
    assert after["halley_delay_seconds_count", "nt4"] == after["halley_delay_seconds_count", "wamp"] == 0
    assert after["halley_conflated_total",] == after["halley_history_lost_values_total",] == 0


@pytest.mark.parametrize("path", ["/health/live", "/health/ready", "/metrics"])
async def test_s43_the_public_listener_tells_nothing_of_it(path, server):
    """S43: these paths get 404 there."""
    assert (await ask(server, path, port=server.port)).status == 404


@pytest.mark.parametrize(("method", "path", "status"), [("POST", "/metrics", 405), ("GET", "/", 404)])
async def test_the_operations_listener_has_nothing_else(method, path, status, server):
    """It serves no Bayeux and no pages, and nothing that changes state."""
    assert (await ask(server, path, method)).status == status


async def test_it_can_be_left_out(server, tmp_path):
    """`operations.enabled = false`: there is one listener, and no log line about another."""
    async with launched(cwd=tmp_path, HALLEY_OPERATIONS_ENABLED="off") as alone:
        assert alone.operations_port == 0
        assert (await (await alone.wire()).post(HANDSHAKE)).messages[0]["successful"]
