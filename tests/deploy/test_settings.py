"""The shipped settings file, and that the files shipped with it agree with the settings."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from support.nginx import SHIPPED
from support.process import ended, launched
from support.wire import request

from halley.broker.policy import Proof
from halley.cli.access import may
from halley.configuration import load
from halley.settings import Settings

SETTINGS = Path(__file__).parents[2] / "deploy" / "settings" / "halley.toml"
ELSEWHERE = {"HALLEY_HOST": "0.0.0.0", "HALLEY_PROXIES": "172.30.80.10"}


def directives(name):
    """Return the values of a directive in the shipped nginx configuration, in their order."""
    return re.findall(rf"^ *{name} ([^;]+);", (SHIPPED / "halley.conf").read_text(), re.MULTILINE)


def directive(name):
    """Return the value of a directive that the configuration has only once."""
    (value,) = directives(name)
    return value


def seconds(name):
    """Return the value of a directive that the configuration has only once, in seconds."""
    return in_seconds(directive(name))


def in_seconds(text):
    """Return the seconds in a time such as `60s`."""
    return int(text.removesuffix("s"))


async def test_a_server_that_others_reach_starts_with_it(tmp_path):
    """`halley check-config` accepts a container's listener with the file, and refuses it without the file."""
    assert (await ended("check-config", "--config", str(SETTINGS), cwd=tmp_path, **ELSEWHERE)).code == 0
    bare = await ended("check-config", cwd=tmp_path, **ELSEWHERE)
    assert bare.code == 2
    assert "access rules" in bare.lines[0]


@pytest.mark.parametrize(
    ("role", "verb", "channel", "is_allowed"),
    [
        ("anonymous", "subscribe", "/chat/lobby", False),
        ("anonymous", "publish", "/chat/lobby", False),
        ("anonymous", "subscribe", "/halley/rates", False),
        ("anonymous", "export", "/**", False),
        ("member", "publish", "/chat/lobby", True),
        ("member", "subscribe", "/stats/10s/chat/lobby", True),
        ("member", "publish", "/stats/10s/chat/lobby", False),
        ("member", "subscribe", "/halley/sessions", False),
        ("member", "export", "/**", False),
        ("member", "erase", "/**", False),
        ("operator", "subscribe", "/halley/sessions", True),
        ("pipeline", "export", "/**", True),
        ("pipeline", "publish", "/stats/10s/chat/lobby", True),
        ("pipeline", "publish", "/alerts/chat/lobby", True),
        ("pipeline", "publish", "/halley/pipeline", True),
        ("pipeline", "publish", "/chat/lobby", False),
    ],
)
def test_nobody_may_more_than_they_need(role, verb, channel, is_allowed):
    """The rules grant each role what it needs and no more, as `halley check-config --role --verb --channel` shows."""
    assert may(load(SETTINGS, {}, {}), Proof(None, role), verb, channel)[0] is is_allowed


def test_nobody_has_a_token_yet():
    """The file has no tokens, users or keys, since a published secret is useless."""
    shipped = tomllib.loads(SETTINGS.read_text())
    assert not {"tokens", "user", "jwt"} & shipped.keys()


async def test_probes_come_by_the_address_of_a_pod(tmp_path):
    """The operations listener accepts any Host header, since kubelets send the pod's address."""
    elsewhere = {"HALLEY_OPERATIONS_HOST": "0.0.0.0", "HALLEY_OPERATIONS_PORT": "0"}
    async with launched("--history", "off", "--config", str(SETTINGS), cwd=tmp_path, **elsewhere) as server:
        line = await server.until_logged("health and metrics")
        port = int(re.search(r":(\d+)/", line)[1])
        answer = await (await server.wire(port)).request(request("GET", "/health/ready", host="10.244.1.7:8081"))
        assert (answer.status, answer.text) == (200, "ready\n")


def test_nginx_waits_longer_than_halley_does():
    """The proxy waits longer than Halley's polls and pings take, and closes idle connections to Halley before it."""
    settings = Settings()
    assert seconds("proxy_read_timeout") > 2 * settings.bayeux.hold_s
    assert seconds("proxy_read_timeout") > settings.wamp.ping_s + settings.wamp.pong_s
    to_halley, to_clients = map(in_seconds, directives("keepalive_timeout"))
    assert to_halley < settings.limits.keep_alive_s == to_clients
    assert directive("proxy_next_upstream") == directive("proxy_buffering") == directive("gzip") == "off"
    assert directive("proxy_http_version") == "1.1"


def test_nginx_bounds_are_halleys():
    """The limits of nginx and Halley are the same, so neither refuses what the other accepts."""
    limits = Settings().limits
    assert int(directive("client_max_body_size").removesuffix("k")) * 1_024 == limits.body_bytes
    assert seconds("client_header_timeout") == limits.head_s
    assert seconds("client_body_timeout") == limits.body_s
    assert seconds("send_timeout") == limits.write_s
    assert directive("large_client_header_buffers") == f"4 {limits.head_bytes // 1_024}k"
    assert directive("limit_conn halley_per_address") == str(2 * limits.sessions_per_address)
