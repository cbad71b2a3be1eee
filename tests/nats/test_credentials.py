"""What proves who a client is, read for each connection from real files, and servers that do not accept it."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import asynccontextmanager
from itertools import pairwise

import nkeys
import pytest
import structlog
import uvloop
from support import authority
from support.nats import nats_servers
from support.nats_users import Key, Operator, secrets_in
from support.wire import DEADLINE_S, until

from halley.nats import client as client_module
from halley.nats.client import Client, pause_s
from halley.nats.credentials import UnusableFile, proof_of
from halley.settings import Cluster


class Kind:
    """A way to prove who the client is: `settings` name files in `folder`, with `secrets` so far."""

    def __init__(self, folder, **settings):
        self.folder, self.settings, self.secrets = folder, settings, []

    def renew(self):
        """Write other secrets into the files; return what servers that accept these have in their configuration."""
        raise NotImplementedError


class Password(Kind):
    def __init__(self, folder):
        super().__init__(folder, user="me", password_file=str(folder / "password"))

    def renew(self):
        self.secrets.append(f"open-sesame-{len(self.secrets)}")
        (self.folder / "password").write_text(f"{self.secrets[-1]}\n")
        return f'authorization {{ users: [ {{ user: me, password: "{self.secrets[-1]}" }} ] }}\n'


class Token(Kind):
    def __init__(self, folder):
        super().__init__(folder, token_file=str(folder / "token"))

    def renew(self):
        self.secrets.append(f"abracadabra-{len(self.secrets)}")
        (self.folder / "token").write_text(f"{self.secrets[-1]}\n")
        return f'authorization {{ token: "{self.secrets[-1]}" }}\n'


class Nkey(Kind):
    def __init__(self, folder):
        super().__init__(folder, nkey_file=str(folder / "seed"))

    def renew(self):
        key = Key()
        self.secrets.append(key.seed)
        (self.folder / "seed").write_text(f"{key.seed}\n")
        return f"authorization {{ users: [ {{ nkey: {key.public} }} ] }}\n"


class Credentials(Kind):
    """Of another operator each time: the JWTs of the one before are not valid any more."""

    def __init__(self, folder):
        super().__init__(folder, creds_file=str(folder / "user.creds"))

    def renew(self):
        operator = Operator()
        text = operator.credentials()
        self.secrets += secrets_in(text)
        (self.folder / "user.creds").write_text(text)
        return operator.configuration


class Certificate(Kind):
    """The client's own, which the server knows."""

    def __init__(self, folder):
        (folder / "server").mkdir()
        authority.write(folder / "server", authority.make("nats"))
        names = {f"tls_{what}": str(folder / f"{what}.pem") for what in ("cert", "key")}
        super().__init__(folder, tls_ca=str(folder / "server" / "cert.pem"), **names)

    def renew(self):
        pair = authority.make("node")
        authority.write(self.folder, pair)
        known = self.folder / f"known-{len(self.secrets)}.pem"
        known.write_bytes(pair.cert)
        self.secrets.append(pair.key.decode().splitlines()[1])
        return (
            f'tls {{ cert_file: "{self.folder}/server/cert.pem", key_file: "{self.folder}/server/key.pem", '
            f'ca_file: "{known}", verify: true }}\n'
        )


@pytest.fixture
def lines():
    """What is logged."""
    with structlog.testing.capture_logs() as found:
        yield found


@asynccontextmanager
async def opened(servers, **settings):
    """A client of servers that is connected, within the block."""
    client = Client(Cluster(urls=tuple(servers.urls.split(",")), node="a", **settings))
    try:
        async with asyncio.timeout(DEADLINE_S):
            await client.open()
        yield client
    finally:
        await client.close()


def contents_of(folder):
    """Return the content of each file in a folder."""
    return {file: file.read_bytes() for file in folder.iterdir() if file.is_file()}


def write(contents):
    """Write files."""
    for file, content in contents.items():
        file.write_bytes(content)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("make", [Password, Token, Nkey, Credentials, Certificate])
def test_what_is_replaced_while_a_client_is_connected(tmp_path, lines, make, new_loop):
    """Once by the server's restart after the file, and once by its restart before: then it is refused meanwhile."""
    kind = make(tmp_path)

    async def replace():
        async with nats_servers(tmp_path, more=kind.renew()) as servers, opened(servers, **kind.settings) as client:

            async def restart(more):
                servers.kill(0)
                await until(lambda: client.away_since is not None)
                servers.change(more)
                servers.start(0)

            await restart(kind.renew())
            await until(lambda: client.away_since is None)
            assert (client.is_unauthorized, client.last_error) == (False, "")
            before = contents_of(tmp_path)
            more = kind.renew()
            after = contents_of(tmp_path)
            write(before)
            await restart(more)
            await until(lambda: client.is_unauthorized)
            assert client.away_since is not None
            reason = client.last_error
            write(after)
            client.reload()
            await until(lambda: client.away_since is None)
            assert (client.is_unauthorized, client.last_error) == (False, "")
            return reason

    with asyncio.Runner(loop_factory=new_loop) as runner:
        reason = runner.run(replace())
    assert "alert" in reason if make is Certificate else reason == "Authorization Violation"
    assert [line["reason"] for line in lines if line["event"] == "cluster_away"].count(reason) == 1
    text = json.dumps(lines)
    assert not [secret for secret in kind.secrets if secret in text]


async def test_a_users_jwt_that_expires(tmp_path, lines):
    """The server ends the connection; the next one is made with what the file has by then."""
    operator, file = Operator(), tmp_path / "user.creds"
    async with nats_servers(tmp_path, more=operator.configuration) as servers:
        file.write_text(operator.credentials(for_s=3))  # from here on: servers may take seconds to start
        async with opened(servers, creds_file=str(file)) as client:
            file.write_text(operator.credentials())
            await until(lambda: any(line["event"] == "cluster_back" for line in lines))
            (away,) = (line for line in lines if line["event"] == "cluster_away")
            assert (away["reason"], away["server"]) == ("User Authentication Expired", f"127.0.0.1:{servers.ports[0]}")
            assert not client.is_unauthorized


async def test_files_that_cannot_be_used_while_the_client_runs(tmp_path, lines):
    """They are read again and again, and it is as if the servers refused what is in them."""
    kind = Password(tmp_path)
    file = tmp_path / "password"
    async with nats_servers(tmp_path, more=kind.renew()) as servers, opened(servers, **kind.settings) as client:
        text = file.read_text()
        file.unlink()
        client.reload()
        assert (lines[-1]["event"], lines[-1]["reason"]) == ("reload_failed", f"No such file or directory: {file}")
        assert client.away_since is None
        client.renew()
        await until(lambda: client.is_unauthorized)
        assert client.last_error == f"No such file or directory: {file}"
        file.write_text("")
        await until(lambda: client.last_error == f"nothing is in it: {file}")
        file.write_text(text)
        await until(lambda: client.away_since is None)
        client.reload()
        assert (lines[-1]["event"], lines[-1]["files"]) == ("reloaded", [str(file)])


async def test_a_server_that_is_away_does_not_hide_that_another_one_refuses(tmp_path):
    kind = Token(tmp_path)
    async with nats_servers(tmp_path, more=kind.renew()) as servers:
        kind.renew()
        client = Client(Cluster(urls=("nats://127.0.0.1:1", servers.urls), node="a", **kind.settings))
        client.begin()
        await until(lambda: client.is_unauthorized)
        for _ in range(3):
            turn = client._turn
            await until(lambda turn=turn: client._turn != turn)
            assert (client.is_unauthorized, client.last_error) == (True, "Authorization Violation")
        servers.kill(0)
        await until(lambda: not client.is_unauthorized)
        assert client.last_error != "Authorization Violation"
        await client.close()


def test_pauses_grow_after_each_round_of_all_servers():
    """To some seconds, to more where only other files help, and never to the same for all nodes."""

    def longest(attempts, servers=1, *, is_unauthorized=False):
        found = [pause_s(attempts, servers, is_unauthorized=is_unauthorized) for _ in range(200)]
        assert min(found) < 0.6 * max(found)
        return max(found)

    pauses = [longest(attempts) for attempts in range(1, 40)]
    assert pauses[0] <= 0.2
    assert all(later > earlier for earlier, later in pairwise(pauses[:4]))
    assert 2 < max(pauses[-20:]) <= 3
    assert 10 < longest(40, is_unauthorized=True) <= 15
    assert 2 < longest(10**9) <= 3
    assert max(longest(attempts, 3) for attempts in (1, 2, 40, 41)) <= 0.1
    assert 2 < longest(39, 3) <= 3


async def test_an_attempt_that_waits_is_made_at_once_when_the_files_are_read_again(tmp_path, monkeypatch):
    kind, pauses = Token(tmp_path), []

    def pause_for_long(*attempts, **why):
        pauses.append((attempts, why))
        return 1_000.0

    async with nats_servers(tmp_path, more=kind.renew()) as servers, opened(servers, **kind.settings) as client:
        monkeypatch.setattr(client_module, "_SHORT_S", 0.0)
        monkeypatch.setattr(client_module, "pause_s", pause_for_long)
        right = (tmp_path / "token").read_text()
        kind.renew()
        client.renew()
        await until(lambda: pauses)
        assert pauses == [((1, 1), {"is_unauthorized": True})]
        (tmp_path / "token").write_text(right)
        client.reload()
        await until(lambda: client.away_since is None)


def test_files_that_are_not_what_the_settings_say(tmp_path):
    """The error names the file, and has nothing of what is in it."""
    account, secret = Key(nkeys.PREFIX_BYTE_ACCOUNT).seed, Key().seed
    contents = {
        "nothing": b" \n",
        "bytes": b"\xff\xfe\x80",
        "secret": secret.encode(),
        "account": account.encode(),
        "short": secret[:20].encode(),
        "half": Operator().credentials().encode()[:300],
        "certificate": authority.make("other").cert,
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    wrong = [
        ({"user": "me"}, "password_file", ("none", "nothing", "bytes")),
        ({}, "token_file", ("none", "nothing", "bytes")),
        ({}, "nkey_file", ("none", "nothing", "bytes", "account", "short", "half")),
        ({}, "creds_file", ("none", "nothing", "bytes", "secret", "half")),
        ({}, "tls_ca", ("none", "nothing", "bytes", "secret")),
        ({}, "tls_cert", ("none", "nothing", "bytes", "secret", "certificate")),
    ]
    for settings, setting, names in wrong:
        for name in names:
            file = str(tmp_path / name)
            with pytest.raises(UnusableFile, match=rf": {re.escape(file)}$") as raised:
                proof_of(Cluster(**settings, **{setting: file}))
            assert secret not in str(raised.value)
            assert account not in str(raised.value)


def test_a_proof_has_no_text():
    """Which could come into a log with it."""
    assert "open" not in repr(proof_of(Cluster(user="open")))
