"""The tutorial's page, whole: its blocks in order, with both backends and two users' Chromium; and its folder."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
from contextlib import suppress

import httpx
import pytest
from browser.conftest import keep
from deploy.chat import HALLEY, NGINX, SHIPPED, Chat
from readme.table import block
from support import authority
from support.image import TOP
from support.programs import require_program
from support.wire import DEADLINE_S

with suppress(ImportError):  # then the fixture `chromium` skips, or fails
    from playwright.async_api import expect

USERS = {"ada": "analytical engine", "alan": "bombe and banburismus"}
EVIL = "<img src=x onerror=\"document.body.textContent = 'gone'\">"
NODE = pytest.param("node", marks=pytest.mark.nightly)
BOTH = pytest.mark.parametrize("backend", ["python", NODE])
WITH_CHROMIUM = pytest.mark.asyncio(loop_scope="session")  # which all tests share


async def prepared(chat):
    """Do the first two steps of the page."""
    made = await chat.paste(block("chat-secret"))
    assert made.code == 0, made.errors
    await chat.answers(block("chat-users"))


async def started(chat):
    """Start Halley, the backend and nginx by the page's blocks."""
    return await chat.start(block("chat-halley"), block("chat-backend"), block("chat-nginx"))


class User:
    """A user with a browser of the own, on the chat's page; `faults` are errors of the page's scripts."""

    def __init__(self, name, page):
        self.name = name
        self.page = page
        self.faults = []
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.state = page.locator("#state")

    @classmethod
    async def opened(cls, chromium, chat, name):
        """Open the page in a new profile, which trusts the page's own certificate."""
        context = await chromium.new_context(ignore_https_errors=True)
        user = cls(name, await context.new_page())
        await user.page.goto(chat.url)
        await expect(user.state).to_have_text("Log in, please.")
        return user

    async def log_in(self, password=""):
        """Log in by the form."""
        await self.page.get_by_label("Name").fill(self.name)
        await self.page.get_by_label("Password").fill(password or USERS[self.name])
        await self.page.get_by_role("button", name="Log in").click()

    async def is_connected(self):
        """Wait until the page says so."""
        await expect(self.state).to_have_text(f"{self.name}, connected by websocket")

    async def say(self, to, text):
        """Send a message by the form, and wait until it is on the page."""
        await self.page.get_by_label("To").fill(to)
        await self.page.get_by_label("Message").fill(text)
        await self.page.get_by_role("button", name="Send").click()
        await expect(self.page.locator("#messages .text").last).to_have_text(text)

    async def sees(self, *lines):
        """Wait until the page has these messages, each as "where from: text"; in this order, and no others."""
        await expect(self.page.locator("#messages li")).to_have_count(len(lines))
        rows = await self.page.locator("#messages li").all()
        parts = [[await row.locator(each).inner_text() for each in (".where", ".from", ".text")] for row in rows]
        assert [f"{where} {sender}: {text}" for where, sender, text in parts] == list(lines)

    async def token(self):
        """Return a token, as the page gets it."""
        return (await self.page.evaluate("() => fetch('/token').then((answer) => answer.json())"))["token"]


async def publish_directly(chat, token, *texts):
    """Publish to the lobby at Halley itself, as where the network of others is lost."""
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {token}", "Host": "localhost"}) as http:
        for text in texts:
            message = {"channel": "/chat/room/lobby", "data": {"text": text}}
            (reply,) = (await http.post(f"{chat.halley}/bayeux", json=message)).json()
            assert reply["successful"], reply


FOREIGN = """async ([token, channel]) => {
    const { Bayeux } = await import("/client/bayeux.js");
    const bayeux = new Bayeux("/bayeux", { token: () => token });
    bayeux.subscribe(channel);
    bayeux.connect();
    return new Promise((resolve) => {
        bayeux.addEventListener("refused", ({ detail }) => resolve(detail.error.message));
        bayeux.addEventListener("change", () => {
            if (bayeux.state === "disconnected" && bayeux.error) resolve(bayeux.error.message);
            if (bayeux.isGranted(channel)) resolve("granted");
        });
    });
}"""


async def rules_hold(ada, token):
    """Ada's page gets the private channel of her own, another's is refused, and so is a wrong token."""
    assert await ada.page.evaluate(FOREIGN, [token, "/chat/user/ada"]) == "granted"
    refused = await ada.page.evaluate(FOREIGN, [token, "/chat/user/alan"])
    assert refused == "403:denied_by_security_policy:subscribe_denied"
    assert (await ada.page.evaluate(FOREIGN, ["wrong", "/chat/user/ada"])).startswith("403:token_invalid:")


@WITH_CHROMIUM
@BOTH
async def test_the_page_whole(tmp_path, chromium, backend):
    """Each step shows what the page says; then two users talk over a lost network and a kill, and nothing is lost."""
    async with Chat(tmp_path, backend) as chat:
        await prepared(chat)
        assert {oct((chat.folder / "data" / name).stat().st_mode)[-3:] for name in ("secret", "users.json")} == {"600"}
        await chat.answers(block("chat-ask"))
        halley, _, nginx = await started(chat)
        await chat.answers(block("chat-login"))
        await chat.answers(block("chat-wrong"))

        ada, alan = [await User.opened(chromium, chat, name) for name in USERS]
        await ada.log_in("a guess")
        await expect(ada.state).to_have_text("wrong name or password")
        for user in (ada, alan):
            await user.log_in()
            await user.is_connected()
        await ada.say("#lobby", EVIL)
        await alan.say("@ada", "in private")
        await ada.say("#help", "in another room")
        lines = [f"#lobby ada: {EVIL}", "to @ada alan: in private", "#help ada: in another room"]
        for user in (ada, alan):
            await user.sees(*lines)
        await ada.page.reload()
        await ada.sees(*lines)
        await ada.is_connected()
        await keep(ada.page, f"chat-{backend}")

        token = await ada.token()
        await rules_hold(ada, token)

        nginx.send_signal(signal.SIGTERM)
        await nginx.exit_code()
        for user in (ada, alan):
            await expect(user.state).to_contain_text("The network is lost")
        await publish_directly(chat, token, "one", "two", "three")
        await chat.start_nginx(block("chat-nginx"))
        lines += [f"#lobby ada: {text}" for text in ("one", "two", "three")]
        for user in (ada, alan):
            await user.sees(*lines)
            await user.is_connected()

        halley.send_signal(signal.SIGKILL)
        await halley.exit_code()
        for user in (ada, alan):
            await expect(user.state).to_contain_text("The network is lost")
        again = await chat.begin(block("chat-halley"))
        await again.until_logged("halley is listening on")
        await publish_directly(chat, token, "four")
        lines.append("#lobby ada: four")
        for user in (ada, alan):
            await user.is_connected()
            await user.sees(*lines)
        await alan.say("#lobby", "five")
        await ada.sees(*lines, "#lobby alan: five")
        await ada.page.get_by_role("button", name="Log out").click()
        await expect(ada.state).to_have_text("Logged out.")
        await ada.page.reload()
        await expect(ada.state).to_have_text("Log in, please.")
        assert ada.faults + alan.faults == []
        assert token not in "".join(halley.lines + again.lines)


@pytest.mark.nightly
@WITH_CHROMIUM
async def test_tokens_are_renewed_before_and_after_they_expire(tmp_path, chromium):
    """A session that ends with its token goes on with the next one; so does a page that was away for longer."""
    async with Chat(tmp_path, CHAT_TOKEN_S="2", HALLEY_JWT_LEEWAY_S="0") as chat:
        await prepared(chat)
        halley, _, nginx = await started(chat)
        ada = await User.opened(chromium, chat, "ada")
        await ada.log_in()
        await ada.say("#lobby", "with the first token")
        await halley.until_logged('"reason":"token_expired","event":"session_closed"')
        await ada.say("#lobby", "with another")
        token = await ada.token()
        await publish_directly(chat, token, "while it is valid")
        nginx.send_signal(signal.SIGTERM)
        await nginx.exit_code()
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {token}", "Host": "localhost"}) as http:
            async with asyncio.timeout(DEADLINE_S):
                while (await http.get(f"{chat.halley}/history/chat/room/lobby")).status_code != 401:
                    await asyncio.sleep(0.1)
        await chat.start_nginx(block("chat-nginx"))
        await ada.is_connected()
        await ada.say("#lobby", "after a pause")
        texts = ("with the first token", "with another", "while it is valid", "after a pause")
        await ada.sees(*(f"#lobby ada: {text}" for text in texts))


@pytest.mark.nightly
@WITH_CHROMIUM
async def test_a_backend_with_another_secret(tmp_path, chromium):
    """The page says what to do."""
    async with Chat(tmp_path) as chat:
        await prepared(chat)
        other = tmp_path / "other"
        other.write_text("of another site " * 4)
        _, logins, _ = await started(chat)
        logins.send_signal(signal.SIGTERM)
        await logins.exit_code()
        again = await chat.begin(block("chat-backend"), CHAT_SECRET=str(other))
        await again.until_printed(1)
        ada = await User.opened(chromium, chat, "ada")
        await ada.log_in()
        await expect(ada.state).to_contain_text("let it and the backend read the same secret")


@pytest.mark.nightly
@BOTH
async def test_one_command_runs_it_and_ends_it(tmp_path, backend):
    """It prints where the chat is, which then serves; and at Ctrl-C nothing of it is left."""
    async with Chat(tmp_path, backend) as chat:
        command = block("chat-run").replace(". .venv/bin/activate && deploy/examples/chat/", "./").rstrip()
        run = await chat.begin(f"{command} {backend}\n")
        await run.until(lambda: any(line.startswith("Log in as ada") for line in run.output))
        assert any(chat.url in line for line in run.output)
        trust = authority.context(chat.folder / "data" / "tls")
        async with httpx.AsyncClient(verify=trust, trust_env=False) as http:
            answer = await http.post(f"{chat.url}/login", json={"name": "ada", "password": USERS["ada"]})
            assert answer.json()["name"] == "ada"
        run.send_signal(signal.SIGINT)
        assert await run.exit_code() == 0
        async with httpx.AsyncClient(trust_env=False) as http:
            for url in (chat.halley, chat.logins):
                with pytest.raises(httpx.ConnectError):
                    await http.get(url)


async def test_wrong_use_gets_a_sentence(tmp_path):
    """Each mistake is answered by one line on standard error."""
    async with Chat(tmp_path) as chat:
        wrong = {
            "./run ruby\n": (2, "usage: run [python|node]"),
            "python backend.py\n": (1, "usage: backend.py add NAME | serve"),
            "python backend.py serve\n": (
                1,
                "backend: data/secret: No such file or directory: make it as step 1 of the page says",
            ),
            "python backend.py add Ada </dev/null\n": (
                1,
                "backend: a name has up to 32 of a-z, 0-9, _ and -, and begins with a letter",
            ),
            "python backend.py add ada </dev/null\n": (1, "backend: a password cannot be empty"),
        }
        for command, expected in wrong.items():
            printed = await chat.paste(command)
            assert (printed.code, printed.errors) == expected


@pytest.mark.nightly
@BOTH
async def test_a_backend_refuses_what_is_wrong(tmp_path, backend):
    """Bad requests get a reason and no cookie; the cookie is one that scripts and other sites cannot use."""
    async with Chat(tmp_path, backend) as chat:
        await prepared(chat)
        logins = await chat.begin(block("chat-backend"))
        await logins.until_printed(1)
        right = {"name": "ada", "password": USERS["ada"]}
        async with httpx.AsyncClient(base_url=chat.logins, trust_env=False) as http:
            json = {"Content-Type": "application/json"}
            bad = [
                (400, await http.post("/login", content=b"{", headers=json)),
                (400, await http.post("/login", json=["ada"])),
                (400, await http.post("/login", json={"name": "ada", "password": 1})),
                (400, await http.post("/login", json={"name": "ada"})),
                (413, await http.post("/login", json=right | {"more": "x" * 5_000})),
                (415, await http.post("/login", data=right)),
                (401, await http.post("/login", json=right | {"password": "a guess"})),
                (401, await http.post("/login", json=right | {"name": "__proto__"})),
                (401, await http.get("/token")),
            ]
            assert [(answer.status_code, list(answer.json())) for _, answer in bad] == [
                (status, ["error"]) for status, _ in bad
            ]
            assert not any("set-cookie" in answer.headers for _, answer in bad)
            answer = await http.post("/login", json=right)
            cookie = answer.headers["set-cookie"]
            for attribute in ("__Host-session=", "HttpOnly", "Secure", "Path=/", "SameSite=Strict"):
                assert attribute.lower() in cookie.lower()
            session = {"Cookie": cookie.partition(";")[0]}
            assert (await http.get("/token", headers=session)).json()["name"] == "ada"
            assert (await http.post("/logout", headers=session)).status_code == 204
            assert (await http.get("/token", headers=session)).status_code == 401


def test_excerpts_are_what_the_files_have():
    """The page's excerpts are in the files word for word, and its commands are those of `run`."""
    excerpts = {
        "halley.toml": block("chat-rules"),
        "page/chat.js": block("chat-follow"),
        "sender.py": block("chat-sender"),
    }
    for file, excerpt in excerpts.items():
        assert excerpt in (SHIPPED / file).read_text(), file
    run = re.sub(r"\s+", " ", (SHIPPED / "run").read_text().replace('"${backend[@]}"', "python backend.py"))
    commands = block("chat-secret").replace("\\\n", "").splitlines()
    commands += [line[2:] for line in block("chat-users").splitlines() if line.startswith("$ ")]
    commands += [block(name) for name in ("chat-halley", "chat-backend", "chat-nginx")]
    for command in commands:
        assert re.sub(r"\s+", " ", command.strip()) in run.replace("\\ ", ""), command


def test_systemd_understands_the_units(tmp_path):
    """Every line of both units is understood, with existing programs in them."""
    for unit in (TOP / "deploy/systemd/halley.service", SHIPPED / "systemd" / "chat.service"):
        text = re.sub(r"/opt/halley/bin/(halley|python)", sys.executable, unit.read_text())
        (tmp_path / unit.name).write_text(text)
    (tmp_path / "halley.service.d").mkdir()
    (tmp_path / "halley.service.d" / "chat.conf").write_text((SHIPPED / "systemd" / "halley.conf").read_text())
    command = [require_program("systemd-analyze"), "verify", tmp_path / "halley.service", tmp_path / "chat.service"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


async def test_without_halley_a_reader_of_a_stream_is_sent_away_for_seconds(tmp_path):
    """Its stream would end for ever at another status; a publish gets the error."""
    async with Chat(tmp_path) as chat:
        await prepared(chat)
        await chat.start_nginx(block("chat-nginx"))
        ask = f"curl -ksi -H 'Accept: text/event-stream' {chat.url}/events/chat/room/lobby"
        told = (await chat.paste(f"{ask}\n")).output
        assert told.startswith("HTTP/2 200")
        assert "\ncontent-type: text/event-stream" in told
        assert told.endswith("\nretry: 3000")
        assert (await chat.paste(f"{ask} -d 1\n")).output.startswith("HTTP/2 502")


def test_nginx_takes_the_site_as_it_is_edited_for_production(tmp_path):
    """With the address, name, certificate and folder of a site, in an nginx that has other sites too."""
    program = require_program("nginx")
    edits = {
        f"listen 127.0.0.1:{NGINX} ssl": "listen 443 ssl",
        "server_name localhost": "server_name chat.example.com",
        "data/tls/": f"{authority.folder()}/",
        "root page": "root /opt/chat/page",
    }
    site = (SHIPPED / "site.conf").read_text()
    for shipped, edited in edits.items():
        assert shipped in site
        site = site.replace(shipped, edited)
    (tmp_path / "site.conf").write_text(site)
    whole = f"pid {tmp_path}/pid;\nerror_log stderr;\nevents {{}}\nhttp {{ include {tmp_path}/site.conf; }}\n"
    (tmp_path / "nginx.conf").write_text(whole)
    command = [program, "-t", "-e", "stderr", "-p", tmp_path, "-c", tmp_path / "nginx.conf"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"127.0.0.1:{HALLEY}" in site
