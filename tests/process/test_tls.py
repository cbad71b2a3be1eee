"""`halley serve` with a certificate: what it prints, which clients can connect, and what SIGHUP does."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import ssl
from pathlib import Path

import pytest
from support import authority
from support.messages import HANDSHAKE, connect, publish, subscribe
from support.process import ended, environment, launched, started
from support.programs import require_program
from support.wire import DEADLINE_S, post, request

WRONG_USE = 2
FILES = ("--tls-cert", "cert.pem", "--tls-key", "key.pem")


@pytest.fixture
def place(tmp_path):
    """A folder with a certificate and its key."""
    authority.write(tmp_path, authority.make("first"))
    return tmp_path


def shown_certificate(port):
    """Return the certificate that a new connection gets, as PEM."""
    return ssl.get_server_certificate(("127.0.0.1", port), timeout=DEADLINE_S).strip().encode()


# Which clients can connect


async def test_it_says_https_and_its_lines_work_when_pasted(place):
    """The start line, the console and the curl lines have https; curl gets the certificate to trust."""
    require_program("curl")
    async with launched(*FILES, cwd=place) as server:
        url = f"https://127.0.0.1:{server.port}"
        assert f"console: {url}/" in server.lines
        assert f"halley is listening on {url} (console: {url}/)" in server.lines
        lines = [line.strip() for line in server.lines if line.startswith("  ")]
        assert len(lines) == 3
        published, conversed, called = [await pasted(line, place) for line in lines]
        assert json.loads(published) == [{"channel": "/hello", "successful": True, "ext": {"position": 1}}]
        assert [message["data"] for message in json.loads(conversed) if "data" in message] == ["world"]
        assert called.startswith("/**/show([{")


async def pasted(line, cwd):
    """Run a line in bash; return what it prints."""
    without_proxy = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    process = await asyncio.create_subprocess_exec(
        require_program("bash"), "-c", line, cwd=cwd, env=without_proxy, stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(DEADLINE_S):
        output, _ = await process.communicate()
    assert process.returncode == 0
    return output.decode()


async def test_halleys_own_client_speaks_it(place):
    """Publish and subscribe use https; SSL_CERT_FILE adds a certificate to the usual authorities."""
    async with launched(*FILES, cwd=place) as server:
        options = ("--server", f"https://127.0.0.1:{server.port}")
        trusting = environment(SSL_CERT_FILE=str(place / "cert.pem"))
        async with started("subscribe", "/room", *options, cwd=place, env=trusting) as subscriber:
            await subscriber.until_logged("subscribed")
            done = await ended("publish", "/room", "1", *options, cwd=place, SSL_CERT_FILE=str(place / "cert.pem"))
            assert done.code == 0
            (line,) = await subscriber.until_printed(1)
            assert json.loads(line) == {"channel": "/room", "data": 1}
        stranger = await ended("publish", "/room", "1", *options, cwd=place)
        assert stranger.code == 1
        assert "certificate verify failed" in stranger.lines[-1].lower()


async def test_the_cookie_is_secure(place):
    """B1: the cookie has Secure if the request arrived by https."""
    async with launched(*FILES, cwd=place) as server:
        wire = await server.wire(tls=authority.context(place))
        (cookie,) = (await wire.post(HANDSHAKE)).set_cookies
        assert "Secure" in cookie.split("; ")


async def test_a_page_of_the_same_host_without_tls_is_another_site(place):
    """An attacker who can change http://this-host must not use https://this-host with its cookies."""
    async with launched(*FILES, "--host", "127.0.0.1", cwd=place, HALLEY_HOSTS="app.example") as server:
        wire = await server.wire(tls=authority.context(place))
        for origin, status in (("https://app.example", 200), ("http://app.example:443", 403)):
            answer = await wire.request(post(json.dumps(HANDSHAKE).encode(), host="app.example", origin=origin))
            assert answer.status == status


@pytest.mark.parametrize("first", [b"", b"\x16\x03\x01\x02\x00"], ids=["silent", "half-a-record"])
async def test_a_peer_that_never_shakes_hands_is_cut(first, place):
    """S3: the TLS handshake counts towards the time limit of the first head."""
    async with launched(*FILES, cwd=place, HALLEY_LIMITS_HEAD_S="0.3") as server:
        wire = await server.wire()
        await wire.send(first)
        assert await wire.rest() == b""
        await server.until(lambda: bool(server.logged("connection_cut")))
        assert [line["reason"] for line in server.logged("connection_cut")] == ["slow_head"]


async def test_plain_http_is_told_what_is_spoken_here(place):
    """A user who has typed http instead of https gets an explanation."""
    async with launched(*FILES, cwd=place) as server:
        wire = await server.wire()
        answer = await wire.request(post(b"[]"))
        assert (answer.status, answer.text) == (400, "this port speaks only https:\n")
        assert await wire.is_closed()


@pytest.mark.parametrize(("least", "is_served"), [("1.2", True), ("1.3", False)])
async def test_the_least_version_is_a_setting(least, is_served, place):
    """RFC 8996 forbids versions older than 1.2; an operator may want 1.3 only."""
    trusts = authority.context(place)
    trusts.maximum_version = ssl.TLSVersion.TLSv1_2
    async with launched(*FILES, cwd=place, HALLEY_TLS_MIN_VERSION=least) as server:
        if is_served:
            assert (await (await server.wire(tls=trusts)).post(HANDSHAKE)).status == 200
            return
        with pytest.raises(ssl.SSLError):
            await server.wire(tls=trusts)
        await server.until(lambda: bool(server.logged("tls_failed")))
        assert server.logged("tls_failed")[0]["reason"] == "UNSUPPORTED_PROTOCOL"


# What prevents it from starting


def spoil(place, how):
    """Make the certificate or its key unusable."""
    cert, key = place / "cert.pem", place / "key.pem"
    other = authority.make("other")
    match how:
        case "missing":
            cert.unlink()
        case "no-key":
            key.unlink()
        case "another's":
            key.write_bytes(other.key)
        case "another-kind's":
            key.write_bytes(authority.make("other", kind="rsa").key)
        case "swapped":
            authority.write(place, authority.Pair(other.key, other.cert))
        case "encrypted":
            authority.write(place, authority.make("other", password=b"secret"))
        case "cut":
            cert.write_bytes(cert.read_bytes()[:100])


SAID = {
    "missing": "cert.pem cannot be read (No such file or directory)",
    "no-key": "key.pem cannot be read (No such file or directory)",
    "another's": "the key in key.pem does not belong to the certificate in cert.pem",
    "another-kind's": "the key in key.pem does not belong to the certificate in cert.pem",
    "swapped": "cert.pem contains no certificate (expected PEM)",
    "encrypted": "the key in key.pem is encrypted (expected an unencrypted key)",
    "cut": "cert.pem or key.pem is damaged (no valid PEM)",
}


@pytest.mark.parametrize("verb", ["serve", "check-config"])
@pytest.mark.parametrize("how", SAID)
async def test_files_that_cannot_be_used_end_with_2_and_a_sentence(how, verb, place):
    """The message has the file and the reason; `check-config` reports the same."""
    spoil(place, how)
    settings = {"HALLEY_TLS_CERT": "cert.pem", "HALLEY_TLS_KEY": "key.pem", "HALLEY_PORT": "0"}
    code, output, lines = await ended(verb, cwd=place, **settings)
    assert (code, output, lines) == (WRONG_USE, [], [f"halley: {SAID[how]}"])


async def test_the_key_may_stand_in_the_certificates_file(place):
    """Some programs write both into one file."""
    (place / "both.pem").write_bytes((place / "cert.pem").read_bytes() + (place / "key.pem").read_bytes())
    async with launched("--tls-cert", "both.pem", cwd=place) as server:
        assert (await (await server.wire(tls=authority.context(place))).post(HANDSHAKE)).status == 200


async def test_a_certificate_alone_is_not_enough(place):
    """The message names the missing flag."""
    _, _, lines = await ended("serve", "--tls-cert", "cert.pem", "--port", "0", cwd=place)
    assert lines == ["halley: cert.pem contains no private key (expected PEM); name its file with --tls-key"]


async def test_a_key_alone_is_wrong_use(place):
    """Otherwise the server would serve without TLS by mistake."""
    code, _, lines = await ended("serve", "--tls-key", "key.pem", "--port", "0", cwd=place)
    assert (code, lines) == (WRONG_USE, ["halley: --tls-key: tls.key: expected tls.cert (--tls-cert) too"])


# What connections keep


COUNT = 30
LONG_BYTES = 250_000
KEPT_BYTES = 120_000
"""More than OpenSSL takes for a connection, and less than what is sent on it."""


async def long_request(wire):
    padded = json.dumps([HANDSHAKE]).replace("[", "[" + " " * LONG_BYTES, 1)
    assert (await wire.request(post(padded.encode()))).status == 200


async def long_response(wire):
    response = await wire.request(request("GET", "/history/long?limit=8"))
    assert len(response.body) > LONG_BYTES


def resident_bytes(pid):
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("use", [long_request, long_response])
async def test_an_open_connection_keeps_little_of_a_long_request_or_response(use, place):
    """OpenSSL's buffers, which tracemalloc does not see, never shrink, so they must not grow."""
    async with launched(*FILES, cwd=place) as server:
        trusts = authority.context(place)
        publisher = await server.wire(tls=trusts)
        for _ in range(8):
            await publisher.post(publish("/long", "x" * 60_000))

        async def used():
            for _ in range(COUNT):
                await use(await server.wire(tls=trusts))

        await used()  # until the server's allocator has reached its size
        grown = []
        for _ in range(3):  # in any one of them the allocator may take another piece from the system
            before = resident_bytes(server.process.pid)
            await used()
            grown.append((resident_bytes(server.process.pid) - before) / COUNT)
        assert min(grown) < KEPT_BYTES


# SIGHUP


@pytest.mark.parametrize("kind", ["ec", "rsa"])
async def test_sighup_reads_the_certificate_again(kind, place):
    """New connections get the new one, on the same port; a held poll and old connections continue."""
    async with launched(*FILES, cwd=place) as server:
        wire = await server.wire(tls=authority.context(place))
        client_id = (await wire.post(HANDSHAKE)).messages[0]["clientId"]
        await wire.post(connect(client_id))
        await wire.post(subscribe(client_id, "/a"))
        await wire.send(post(json.dumps([connect(client_id)]).encode()))
        await server.until_held(1)
        renewed = authority.make("second", kind=kind)
        authority.write(place, renewed)
        server.send_signal(signal.SIGHUP)
        await server.until(lambda: len(server.logged("reloaded")) == 2)
        assert await asyncio.to_thread(shown_certificate, server.port) == renewed.cert.strip()
        other = await server.wire(tls=authority.context(place))
        assert (await other.post(publish("/a", 1))).status == 200
        assert (await wire.read()).data == [1]
        assert (await wire.post(publish("/a", 2))).status == 200
        assert sorted(line["what"] for line in server.logged("reloaded")) == ["certificate", "settings"]


@pytest.mark.parametrize("how", SAID)
async def test_sighup_keeps_the_old_certificate_if_the_new_one_cannot_be_used(how, place):
    """One log line has the reason; a later certificate that is valid is used."""
    async with launched(*FILES, cwd=place) as server:
        old = (place / "cert.pem").read_bytes()
        spoil(place, how)
        server.send_signal(signal.SIGHUP)
        await server.until_logged("reload_failed")
        assert [line["reason"] for line in server.logged("reload_failed")] == [SAID[how]]
        assert await asyncio.to_thread(shown_certificate, server.port) == old.strip()
        renewed = authority.make("second")
        authority.write(place, renewed)
        server.send_signal(signal.SIGHUP)
        await server.until(lambda: "certificate" in [line["what"] for line in server.logged("reloaded")])
        assert await asyncio.to_thread(shown_certificate, server.port) == renewed.cert.strip()


async def test_sighup_without_tls_changes_nothing(tmp_path):
    """A terminal that closes, or a log rotation that signals all processes, must not end the server."""
    async with launched(cwd=tmp_path) as server:
        server.send_signal(signal.SIGHUP)
        line = await server.until_logged('"reloaded"')
        assert json.loads(line)["what"] == "settings"
        assert (await (await server.wire()).post(HANDSHAKE)).status == 200


async def test_the_operations_listener_stays_plain(place):
    """Health checks need no certificate."""
    async with launched(*FILES, cwd=place) as server:
        with socket.create_connection(("127.0.0.1", server.operations_port), timeout=DEADLINE_S) as plain:
            plain.sendall(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert plain.recv(1_000).startswith(b"HTTP/1.1 200 ")
