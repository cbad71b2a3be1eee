"""The settings files on the pages, given to `halley check-config` and to a server."""

from __future__ import annotations

import json
import re

from readme.shell import Shell
from readme.table import block
from support.messages import HANDSHAKE, publish
from support.process import ended, launched
from support.readme import ROOT
from support.wire import request

from halley.configuration import load


async def checked(folder, text):
    """Return what `halley check-config` prints for a settings file; fail if it reports an error."""
    (folder / "halley.toml").write_text(text)
    printed = await Shell(folder).paste("halley check-config")
    assert (printed.code, printed.errors) == (0, "")
    return printed.output


async def test_a_file_says_what_holds(tmp_path):
    """The file's settings, and no others, are shown as set by it; a server uses its hold time and origins."""
    text = block("settings")
    shown = await checked(tmp_path, text)
    named = re.findall(r"^(\w+) = ", text, re.MULTILINE)
    assert re.findall(r"^(?:\w+\.)?(\w+) = .*# .*halley\.toml:", shown, re.MULTILINE) == named
    async with launched("--port", "0", "--operations-port", "0", cwd=tmp_path) as server:
        wire = await server.wire()
        (opened,) = (await wire.post(HANDSHAKE)).messages
        assert opened["advice"]["timeout"] == 25_000
        asked = request("OPTIONS", "/bayeux", origin="https://app.example.com", access_control_request_method="POST")
        assert (await wire.request(asked)).headers["access-control-allow-origin"] == "https://app.example.com"


async def test_realms_and_users(tmp_path):
    """With the key that `halley user` makes for Ann, the example has the realms and users of its section."""
    made = await ended("user", "ann", "staff", cwd=tmp_path, stdin=b"a long secret\n")
    assert made.code == 0, made.lines
    text = block("realms")
    for name in ("key", "salt"):
        (line,) = [line for line in made.output if line.startswith(f"{name} =")]
        assert text.count(f'{name} = "..."') == 1
        text = text.replace(f'{name} = "..."', line)
    await checked(tmp_path, text)
    settings = load(tmp_path / "halley.toml", {}, {}).settings
    assert [realm.name for realm in settings.realm] == ["realm1", "com.example.lab"]
    assert (settings.realm[1].strict_uris, settings.realm[1].disclose) == (True, "never")
    assert [(user.id, user.role) for user in settings.user] == [("ann", "staff")]


async def test_lazy_channels(tmp_path):
    """The example is valid, and makes the channels below /weather lazy for ten seconds."""
    await checked(tmp_path, block("lazy"))
    (rule,) = load(tmp_path / "halley.toml", {}, {}).settings.lazy
    assert (rule.pattern, rule.lazy_s) == ("/weather/**", 10)


async def test_one_server_behind_nginx(tmp_path):
    """With the example's lines and tokens, the file of all platforms lets a member publish, and no other visitor."""
    table: list[str] = []
    for role in ("operator", "pipeline", "member"):  # check-config warns of a role that nobody can have
        made = await ended("token", "--id", "ada", "--role", role, cwd=tmp_path)
        token, *lines = made.output
        table += lines
    rules = (ROOT / "deploy" / "settings" / "halley.toml").read_text(encoding="utf-8")
    await checked(tmp_path, "\n".join([block("one-server"), rules, *table]))
    body = json.dumps([publish("/chat/lobby", "hello")]).encode()
    async with launched(cwd=tmp_path) as server:
        wire = await server.wire()
        nginx = {"host": "halley.example.com", "x_forwarded_for": "192.0.2.1", "x_forwarded_proto": "https"}
        ask = request("POST", "/bayeux", body, **nginx, authorization=f"Bearer {token}")
        assert json.loads((await wire.request(ask)).body)[0]["successful"] is True
        ask = request("POST", "/bayeux", body, **nginx)
        assert json.loads((await wire.request(ask)).body)[0]["successful"] is False
        elsewhere = request("POST", "/bayeux", body, **nginx | {"host": "elsewhere.example.com"})
        assert (await wire.request(elsewhere)).status == 400


async def test_behind_a_proxy(tmp_path):
    """Halley starts with the two proxies, serves requests for the listed host, and refuses those for others."""
    await checked(tmp_path, block("proxies"))
    settings = load(tmp_path / "halley.toml", {}, {}).settings
    assert [str(each) for each in settings.proxies] == ["10.0.0.0/8", "192.0.2.7"]
    async with launched(cwd=tmp_path) as server:
        wire = await server.wire()
        body = json.dumps(HANDSHAKE).encode()
        known = await wire.request(request("POST", "/bayeux", body, host="app.example.com"))
        assert json.loads(known.body)[0]["successful"] is True
        other = await wire.request(request("POST", "/bayeux", body, host="elsewhere.example.com"))
        assert other.status == 400
