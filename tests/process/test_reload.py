"""`halley serve` at SIGHUP: the settings file and the keys are read again, with clients of all protocols connected."""

from __future__ import annotations

import asyncio
import json
import signal
import time

import pytest
from access.signing import AUDIENCE, ISSUER, jwk, jwks, rsa_key, sign
from support.messages import HANDSHAKE, connect, publish, subscribe
from support.nt4 import connect as nt4_connect
from support.process import launched, replace_text
from support.wamp import EVENT, GOODBYE, UNSUBSCRIBED
from support.wamp import connect as wamp_connect
from support.wire import post

from halley.access.tokens import hash_of, new_token

ADAS, BOBS, EVES = new_token(), new_token(), new_token()
HEARS_CHAT = ("*", "subscribe", "/chat/**")
SPEAKS = ("*", "publish", "/**")
HEARS_NEWS = ("*", "subscribe", "/news")
REVOKES = {"publisher": {}, "caller": {}, "subscriber": {"features": {"subscription_revocation": True}}}


class Place:
    """The folder of a server, with its settings file."""

    def __init__(self, folder):
        self.folder = folder
        self.file = folder / "halley.toml"

    def write(self, *rules, tokens=(), top="", more=""):
        """Write the settings: rules as (role, verb, pattern), tokens as (id, text)."""
        lines = [top]
        for role, verb, pattern in rules:
            lines += ["[[access]]", f'role = "{role}"', f'verb = "{verb}"', f'pattern = "{pattern}"']
        for name, token in tokens:
            lines += ["[[tokens]]", f'id = "{name}"', 'role = "member"', f'hash = "{hash_of(token)}"']
        self.file.write_text("\n".join([*lines, more]))


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


async def reload(server, outcome="reloaded"):
    """Send SIGHUP, and return the line about the settings that the server then logs."""
    before = len(told(server, outcome))
    server.send_signal(signal.SIGHUP)
    await server.until(lambda: len(told(server, outcome)) > before)
    return told(server, outcome)[-1]


def told(server, event):
    return [line for line in server.logged(event) if line["what"] == "settings"]


class Page:
    """A client of Bayeux: one connection, and one session."""

    def __init__(self, wire, client_id):
        self.wire = wire
        self.id = client_id

    @classmethod
    async def open(cls, server, *channels, token=None):
        wire = await server.wire()
        ext = {} if token is None else {"ext": {"authentication": token}}
        page = cls(wire, (await wire.post(HANDSHAKE | ext)).messages[0]["clientId"])
        await page.connect()
        for channel in channels:
            assert (await wire.post(subscribe(page.id, channel))).messages[0]["successful"]
        return page

    async def connect(self):
        return (await self.wire.post(connect(self.id))).messages

    async def hold(self):
        await self.wire.send(post(json.dumps([connect(self.id)]).encode()))

    async def answer(self):
        return (await self.wire.read()).messages


def notice(channel):
    return {"channel": "/meta/unsubscribe", "subscription": channel, "successful": True, "ext": {"revoked": True}}


async def test_subscriptions_that_rules_no_longer_grant_are_taken_away(place):
    """In all three protocols, each with its own words; other subscriptions go on, and what is granted again returns."""
    place.write(HEARS_CHAT, HEARS_NEWS, SPEAKS)
    async with launched("--nt4", "--nt4-port", "0", cwd=place.folder, HALLEY_NT4_PONG_S="60") as server:
        url = f"http://127.0.0.1:{server.port}"
        speaker = await server.wire()
        page = await Page.open(server, "/chat/**", "/news")
        await page.hold()
        await server.until_held(1)
        robot, board = await nt4_connect(url, "robot"), await nt4_connect(url, "board")
        await robot.publish("/chat/x", 1)
        await robot.put(1, 0, 1.5)
        await board.subscribe("/chat/", prefix=True)
        assert (await board.value("/chat/x")).value == 1.5
        board.left()
        assert [message["data"] for message in await page.answer() if "data" in message] == [1.5]
        knowing, plain = await wamp_connect(url), await wamp_connect(url)
        async with robot, board, knowing, plain:
            await knowing.join(roles=REVOKES)
            await plain.join()
            number, news = await knowing.subscribe("chat.y"), await knowing.subscribe("news")
            await plain.subscribe("chat.y")
            plains = await plain.subscribe("news")
            await page.hold()
            await server.until_held(1)

            place.write(HEARS_NEWS, SPEAKS)
            line = await reload(server)
            assert (line["ended_sessions"], line["ended_subscriptions"]) == (0, 4)
            assert notice("/chat/**") in await page.answer()
            assert await knowing.receive() == [
                UNSUBSCRIBED,
                0,
                {"subscription": number, "reason": "wamp.error.not_authorized"},
            ]
            assert (await board.text("unannounce"))["name"] == "/chat/x"
            refused = (await page.wire.post(subscribe(page.id, "/chat/**"))).messages[0]
            assert refused["error"] == "403:denied_by_security_policy:subscribe_denied"

            await robot.put(1, 0, 2.5)
            await robot.time()
            assert (await speaker.post(publish("/chat/y", "secret"), publish("/news", "told"))).status == 200
            (event,) = [message for message in await page.connect() if "data" in message]
            assert (event["channel"], event["data"]) == ("/news", "told")
            assert (await knowing.receive())[:2] == [EVENT, news]
            assert (await plain.receive())[:2] == [EVENT, plains]
            assert await board.quiet() == []

            place.write(HEARS_CHAT, HEARS_NEWS, SPEAKS)
            await reload(server)
            assert (await board.text("announce"))["name"] == "/chat/x"
            assert (await board.value("/chat/x")).value == 2.5
            assert await knowing.subscribe("chat.y") == number
            await speaker.post(publish("/chat/y", "open"))
            assert (await knowing.receive())[:2] == [EVENT, number]


async def test_queued_events_of_such_a_channel_are_not_delivered(place):
    """What waits for a client that does not poll at the moment is dropped, and other events that wait are not."""
    place.write(HEARS_CHAT, HEARS_NEWS, SPEAKS)
    async with launched(cwd=place.folder) as server:
        page = await Page.open(server, "/chat/**", "/news")
        speaker = await server.wire()
        await speaker.post(publish("/chat/x", "secret"), publish("/news", "told"), publish("/chat/y", "secret"))
        place.write(HEARS_NEWS, SPEAKS)
        await reload(server)
        reply, *events = await page.connect()
        assert reply["successful"]
        assert [event.get("data") for event in events] == ["told", None]
        assert events[1] == notice("/chat/**")


async def test_sessions_whose_token_is_gone_end(place):
    """They end as if the token had expired; sessions of other tokens and anonymous ones go on, new tokens count."""
    place.write(HEARS_NEWS, tokens=[("ada", ADAS), ("ada", BOBS)])
    async with launched(cwd=place.folder) as server:
        url = f"http://127.0.0.1:{server.port}"
        gone, kept, anonymous = [await Page.open(server, token=token) for token in (ADAS, BOBS, None)]
        for page in (gone, kept, anonymous):
            await page.hold()
        await server.until_held(3)
        async with await wamp_connect(url) as ticketed, await wamp_connect(url) as other:
            for client, token in ((ticketed, ADAS), (other, BOBS)):
                assert (await client.hello(authmethods=["ticket"], authid="ada"))[1] == "ticket"
                await client.send([5, token, {}])
                assert (await client.receive())[0] == 2

            place.write(HEARS_NEWS, ("member", "publish", "/news"), tokens=[("ada", BOBS), ("eve", EVES)])
            line = await reload(server)
            assert (line["ended_sessions"], line["ended_subscriptions"]) == (2, 0)
            (reply,) = await gone.answer()
            assert (reply["error"], reply["advice"]["reconnect"]) == ("403::token_expired", "handshake")
            assert (await ticketed.receive())[::2] == [GOODBYE, "wamp.close.token_expired"]
            assert await other.publish("news", ["still here"])
            refused = (await gone.wire.post(HANDSHAKE | {"ext": {"authentication": ADAS}})).messages[0]
            assert refused["error"] == "403:token_invalid:handshake_denied"
            await Page.open(server, token=EVES)
            await server.until_held(2)
            assert [line["reason"] for line in server.logged("session_closed")] == ["token_expired"] * 2


async def test_the_first_token_and_the_first_rule_count_too(place):
    """A server without any accepts tokens and obeys rules once the file has some; without tokens it looks at none."""
    place.write()
    async with launched(cwd=place.folder) as server:
        wire = await server.wire()
        page = await Page.open(server, "/a", token=ADAS)  # the token is not looked at
        place.write(HEARS_NEWS, tokens=[("ada", ADAS)])
        assert (await reload(server))["ended_subscriptions"] == 1
        assert notice("/a") in await page.connect()
        refused = (await wire.post(HANDSHAKE | {"ext": {"authentication": BOBS}})).messages[0]
        assert refused["error"] == "403:token_invalid:handshake_denied"
        place.write(HEARS_NEWS)
        await reload(server)
        await Page.open(server, "/news", token=BOBS)


MISTAKES = {
    "not TOML": ('[[access]]\nrole = "x', "halley.toml:2: expected TOML: Unterminated string"),
    "a wrong rule": (
        '[[access]]\nrole = "server"\nverb = "*"\npattern = "/**"\n',
        'halley.toml:2: access.role: "server" is allowed everything; no rule can change that',
    ),
    "a wrong setting elsewhere": ("port = 70_000", "halley.toml:1: port: expected a whole number from 0 to 65535"),
    "no file": (None, "halley.toml: cannot be read: No such file or directory"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
async def test_a_file_with_mistakes_changes_nothing_but_the_log(mistake, place):
    """One line at `error` has the text that the server would not start with; sessions, tokens and rules stay."""
    place.write(HEARS_NEWS, tokens=[("ada", ADAS)])
    async with launched(cwd=place.folder) as server:
        page = await Page.open(server, "/news", token=ADAS)
        await page.hold()
        await server.until_held(1)
        text, problem = MISTAKES[mistake]
        if text is None:
            place.file.unlink()
        else:
            place.file.write_text(text)
        line = await reload(server, "reload_failed")
        assert line["level"] == "error"
        assert len(line["problems"]) == 1
        assert line["problems"][0].startswith(problem)
        assert server.logged("restart_needed") == []
        assert told(server, "reloaded") == []
        await Page.open(server, token=ADAS)
        await server.until_held(1)
        refused = (await (await server.wire()).post(publish("/news", 1))).messages[0]
        assert refused["error"] == "403:denied_by_security_policy:publish_denied"
        place.write(HEARS_NEWS, SPEAKS)
        await reload(server)
        assert (await page.answer())[0]["error"] == "403::token_expired"


async def test_all_mistakes_are_in_the_one_line(place):
    """As at the start, where each has a line."""
    place.write(("a b", "publish", "/x"), ("server", "publish", "x"))
    async with launched(cwd=place.folder.parent, HALLEY_CONFIG="") as server:
        assert told(server, "reload_failed") == []
    place.write(HEARS_NEWS)
    async with launched(cwd=place.folder) as server:
        place.write(("a b", "publish", "/x"), ("server", "publish", "x"))
        assert len((await reload(server, "reload_failed"))["problems"]) == 3


async def test_what_needs_a_restart_is_named(place):
    """Other settings that have changed in the file are in the log by name, and do not count; flags stay stronger."""
    place.write(HEARS_NEWS)
    async with launched("--history", "off", cwd=place.folder, HALLEY_SWEEP_S="0.2") as server:
        top = "sweep_s = 0.1\nhosts = ['elsewhere']"
        place.write(HEARS_NEWS, SPEAKS, top=top, more="[bayeux]\nhold_s = 1\n[history]\nenabled = true\n")
        await reload(server)
        (line,) = server.logged("restart_needed")
        assert (line["settings"], line["level"]) == (["hosts", "bayeux.hold_s"], "warning")
        assert (await (await server.wire()).post(publish("/a", 1))).messages[0]["successful"]
        place.write(HEARS_NEWS, SPEAKS)
        await reload(server)
        assert len(server.logged("restart_needed")) == 1


async def test_rules_for_a_realm_that_needs_a_restart_change_nothing(place):
    """The new realm is named as what needs a restart, and the rule that needs it as the mistake."""
    place.write(HEARS_NEWS)
    async with launched(cwd=place.folder) as server:
        realms = '[[realm]]\nname = "realm1"\n[[realm]]\nname = "lab"\n'
        rule = '[[access]]\nrole = "*"\nverb = "*"\npattern = "/**"\nrealm = "lab"\n'
        place.write(HEARS_NEWS, SPEAKS, more=realms + rule)
        line = await reload(server, "reload_failed")
        assert [each["settings"] for each in server.logged("restart_needed")] == [["realm"]]
        assert "access.realm: " in line["problems"][0]
        refused = (await (await server.wire()).post(publish("/news", 1))).messages[0]
        assert refused["error"] == "403:denied_by_security_policy:publish_denied"


async def test_the_last_rule_does_not_go_while_the_server_runs(place):
    """A file that has been emptied is valid, but only a restart opens a server; then new rules count again."""
    place.write(HEARS_NEWS)
    async with launched(cwd=place.folder) as server:
        for empty in ("", "# all gone\n", "[history]\nenabled = true\n"):
            place.file.write_text(empty)
            line = await reload(server, "reload_failed")
            assert line["level"] == "error"
            assert "only a restart opens a server" in line["problems"][0]
            refused = (await (await server.wire()).post(publish("/news", 1))).messages[0]
            assert refused["error"] == "403:denied_by_security_policy:publish_denied"
        place.write(HEARS_NEWS, SPEAKS)
        await reload(server)
        assert (await (await server.wire()).post(publish("/news", 1))).messages[0]["successful"]


async def test_the_last_rule_may_go_where_the_server_was_started_open(place):
    """`open = true` in the file that is read again does not count, as no such setting does; at the start it does."""
    place.write(HEARS_NEWS)
    async with launched(cwd=place.folder) as server:
        place.file.write_text("open = true\n")
        await reload(server, "reload_failed")
        assert [each["settings"] for each in server.logged("restart_needed")] == [["open"]]
    place.write(HEARS_NEWS)
    async with launched("--open", cwd=place.folder) as server:
        place.file.write_text("")
        await reload(server)
        assert (await (await server.wire()).post(publish("/news", 1))).messages[0]["successful"]


async def test_the_last_rule_of_a_server_that_others_can_reach_stays(place):
    """Without `open`, such a server does not start without rules; nor does it go on without them."""
    place.write(HEARS_NEWS, top='proxies = ["10.0.0.1"]')
    async with launched(cwd=place.folder) as server:
        place.write()
        line = await reload(server, "reload_failed")
        assert [each["settings"] for each in server.logged("restart_needed")] == [["proxies"]]
        assert "expected open = true (--open) too" in line["problems"][0]
        refused = (await (await server.wire()).post(publish("/news", 1))).messages[0]
        assert refused["successful"] is False


@pytest.mark.parametrize("how", ["emptied", "removed"])
async def test_a_set_of_keys_that_is_emptied_or_removed_trusts_nobody(how, place):
    """It is said once, at `error`; a session that exists lasts as long as its token, and a new set counts again."""
    keys = place.folder / "jwks.json"
    keys.write_text(jwks(jwk(rsa_key(), kid="r1")))
    options = f'[jwt]\nissuer = "{ISSUER}"\naudience = "{AUDIENCE}"\njwks = "jwks.json"\nkeys_check_s = 0.1\n'
    place.write(HEARS_NEWS, more=options)
    token = sign(rsa_key(), "RS256", header={"kid": "r1"}, exp=time.time() + 600)

    async def is_trusted(server):
        reply = (await (await server.wire()).post(HANDSHAKE | {"ext": {"authentication": token}})).messages[0]
        assert reply["successful"] or reply["error"] == "403:token_invalid:handshake_denied"
        return reply["successful"]

    async with launched(cwd=place.folder) as server:
        assert await is_trusted(server)
        page = await Page.open(server, "/news", token=token)
        if how == "emptied":
            replace_text(keys, jwks())
        else:
            keys.unlink()
        line = json.loads(await server.until_logged('"keys"'))
        assert line["level"] == "error"
        assert line["what"].endswith("; no token is trusted by it any more")
        assert not await is_trusted(server)
        await reload(server)
        assert not await is_trusted(server)
        assert (await page.wire.post(subscribe(page.id, "/news"))).messages[0]["successful"]
        await asyncio.sleep(0.5)  # several more checks of the file
        assert len(server.logged("keys")) == 1
        replace_text(keys, jwks(jwk(rsa_key(), kid="r1")))
        await server.until(lambda: len(server.logged("keys")) == 2)
        assert await is_trusted(server)
