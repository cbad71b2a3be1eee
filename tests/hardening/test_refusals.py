"""What is refused for its name or for want of a right has a rate of its own (S24).

Beyond it a refusal is an answer like any that comes too fast, without a line in the log. It takes nothing from what is
granted, and that goes on.
"""

from __future__ import annotations

import tracemalloc
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from support import wamp
from support.asking import ASK_POLICY, ASK_RULES, places
from support.bayeux import House
from support.growing import results_of
from support.messages import publish, subscribe
from support.server import PARSED, SHORT_WAY, brisk, serving
from support.traced import traced_bytes
from support.wamp_peers import World
from support.wire import post, request

from halley.access.rules import AccessRules, Rule
from halley.broker.names import Match, Pattern
from halley.settings import Access, History, Limits, Wamp
from halley.transports.api.identity import NOT_ALLOWED, TOO_MANY_REFUSED

BURST = 2
RATE = {"exempt": (), "publishes_per_s": 0.001, "publish_burst": BURST}
RULES = (Access("*", "*", "/open/**"),)

DENIED, BAD_URI = "wamp.error.not_authorized", "wamp.error.invalid_uri"
UNAVAILABLE = "wamp.error.unavailable too many requests that are refused"
POLICY, TOO_FAST = "403:denied_by_security_policy:", "403:rate_limited:"


class Client:
    """A client of all protocols, with a session of each."""

    def __init__(self, served, client_id, router):
        self.served = served
        self.id = client_id
        self.router = router

    async def say(self, **message):
        """Send one Bayeux message, and return what it was answered."""
        reply = (await (await self.served.wire()).post(message)).messages[0]
        return reply.get("error", "")

    async def ask(self, kind, options, *rest):
        """Send one WAMP request, and return the error that it was answered."""
        answer = await self.router.ask(kind, options, *rest)
        return " ".join([answer[4], *(answer[5] if len(answer) > 5 else ())]) if answer[0] == wamp.ERROR else ""

    async def get(self, target, body=b""):
        """Send a GET, or a POST of a body, and return the status and the text."""
        answer = await (await self.served.wire()).request(post(body, path=target) if body else request("GET", target))
        return f"{answer.status} {answer.text}"


@asynccontextmanager
async def client(folder):
    """Serve a client that may do all below /open, and nothing else; `folder` is for the history."""
    settings = brisk(access=RULES, limits=RATE, data_dir=str(folder), history=History(free_bytes=0))
    async with serving(settings) as served:
        client_id = await served.open_session()
        async with await wamp.join(served.url) as router:
            yield Client(served, client_id, router)


ACK = {"acknowledge": True}
NO_READING = f"403 {NOT_ALLOWED['subscribe']}"
DOORS = {
    "bayeux publish": (
        lambda who: who.say(**publish("/no", 1, clientId=who.id)),
        POLICY + "publish_denied",
        TOO_FAST + "publish_denied",
    ),
    "bayeux publish of a batch's form": (
        lambda who: who.say(**publish("/no", 1, clientId=who.id, ext={})),
        POLICY + "publish_denied",
        TOO_FAST + "publish_denied",
    ),
    "bayeux publish without a session": (
        lambda who: who.say(**publish("/no", 1)),
        POLICY + "publish_denied",
        TOO_FAST + "publish_denied",
    ),
    "bayeux publish to a bad name": (
        lambda who: who.say(**publish("/bad name", 1, clientId=who.id)),
        "405::channel_invalid",
        TOO_FAST + "publish_denied",
    ),
    "bayeux publish to a pattern": (
        lambda who: who.say(**publish("/no/*", 1, clientId=who.id)),
        "400:/no/*:channel_is_a_wildcard",
        TOO_FAST + "publish_denied",
    ),
    "bayeux subscribe": (
        lambda who: who.say(**subscribe(who.id, "/no")),
        POLICY + "subscribe_denied",
        TOO_FAST + "subscribe_denied",
    ),
    "bayeux subscribe to a bad name": (
        lambda who: who.say(**subscribe(who.id, "/bad name")),
        "403::subscription_invalid",
        TOO_FAST + "subscribe_denied",
    ),
    "wamp publish": (lambda who: who.ask(wamp.PUBLISH, ACK, "no"), DENIED, UNAVAILABLE),
    "wamp publish to a bad name": (lambda who: who.ask(wamp.PUBLISH, ACK, "bad name"), BAD_URI, UNAVAILABLE),
    "wamp subscribe": (lambda who: who.ask(wamp.SUBSCRIBE, {"match": "prefix"}, "no"), DENIED, UNAVAILABLE),
    "wamp subscribe to a bad name": (lambda who: who.ask(wamp.SUBSCRIBE, {}, "bad name"), BAD_URI, UNAVAILABLE),
    "wamp call": (lambda who: who.ask(wamp.CALL, {}, "wamp.session.count"), DENIED, UNAVAILABLE),
    "wamp call of nothing": (
        lambda who: who.ask(wamp.CALL, {}, "made.up"),
        "wamp.error.no_such_procedure",
        UNAVAILABLE,
    ),
    "wamp call with a topic": (
        lambda who: who.ask(wamp.CALL, {}, "wamp.subscription.lookup", ["no"]),
        DENIED,
        UNAVAILABLE,
    ),
    "wamp testament": (
        lambda who: who.ask(wamp.CALL, {}, "wamp.session.add_testament", ["no", [1], {}]),
        DENIED,
        UNAVAILABLE,
    ),
    "wamp register": (
        lambda who: who.ask(wamp.REGISTER, {}, "no"),
        f"{DENIED} clients cannot register procedures",
        UNAVAILABLE,
    ),
    "post": (lambda who: who.get("/events/no", body=b"1"), "403 denied_by_security_policy: publish_denied", None),
    "history": (lambda who: who.get("/history/no"), NO_READING, f"429 {TOO_MANY_REFUSED}"),
    "history of a bad name": (
        lambda who: who.get("/history/bad*name"),
        "400 channel: expected a Bayeux channel, or one that ends in /* or /**",
        f"429 {TOO_MANY_REFUSED}",
    ),
    "log": (lambda who: who.get("/log/head"), f"403 {NOT_ALLOWED['export']}", f"429 {TOO_MANY_REFUSED}"),
    "stream": (lambda who: who.get("/events/no"), NO_READING, f"429 {TOO_MANY_REFUSED}"),
    "stream of a bad name": (lambda who: who.get("/events/bad*name"), "400 ", f"429 {TOO_MANY_REFUSED}"),
}
"""How a request is refused at each door, with its own answer, and with the answer beyond the rate."""
DOORS["post"] = (*DOORS["post"][:2], "429 rate_limited: publish_denied")

PLACES = {
    "protocols/bayeux/authorization.py authorize": ["bayeux publish of a batch's form", "bayeux subscribe"],
    "protocols/bayeux/authorization.py check_rules": ["bayeux publish of a batch's form", "bayeux subscribe"],
    "protocols/bayeux/hooks.py permit": "all who ask it are here",
    "protocols/bayeux/hooks.py permit_each": "all who ask it are here",
    "protocols/bayeux/publishing.py _event": ["bayeux publish", "bayeux publish without a session", "post"],
    "protocols/bayeux/publishing.py publish": ["bayeux publish of a batch's form", "bayeux publish without a session"],
    "protocols/bayeux/revoking.py revoke": "takes away, and refuses nothing",
    "protocols/bayeux/subscribing.py subscribe": ["bayeux subscribe"],
    "protocols/events/stream.py rights_changed": "takes away, and refuses nothing",
    "protocols/nt4/engine.py _if_permitted": "NetworkTables answers nothing, and logs nothing",
    "protocols/nt4/publishing.py publish": "NetworkTables answers nothing, and logs nothing",
    "protocols/nt4/publishing.py set_properties": "NetworkTables answers nothing, and logs nothing",
    "protocols/nt4/subscribing.py rights_changed": "takes away, and refuses nothing",
    "protocols/nt4/tables.py update_subscriber": "leaves out, and refuses nothing",
    "protocols/wamp/engine.py if_permitted": ["wamp publish", "wamp subscribe"],
    "protocols/wamp/engine.py resume": ["wamp publish", "wamp subscribe"],
    "protocols/wamp/procedures.py call": ["wamp call"],
    "protocols/wamp/publishing.py event_of": ["wamp publish", "wamp testament"],
    "protocols/wamp/state.py _deliver": "chooses who hears of a subscription",
    "protocols/wamp/subscribing.py has_right": ["wamp subscribe", "wamp call with a topic"],
    "protocols/wamp/testaments.py publish": "the session has ended",
    "transports/api/application.py _show_rights": "names the caller's rights, and refuses nothing",
    "transports/api/history.py page": ["history"],
    "transports/api/identity.py authorize": ["history", "stream"],
    "transports/api/identity.py may_any": "all who ask it are here",
    "transports/api/identity.py require": "all who ask it are here",
    "transports/api/identity.py require_still": "all who ask it are here",
    "transports/api/log.py head": ["log"],
    "transports/api/log.py rows": ["log"],
    "transports/api/log.py purge": ["log"],
    "transports/api/log.py consumer": ["log"],
    "transports/events.py _beginning_of": ["stream"],
}
"""Each function that asks for a right: the doors below that lead to it, or why there is none."""


def test_every_place_that_asks_for_a_right_has_a_door():
    """Whoever asks for a right elsewhere says here how a client comes there, or why nothing is refused."""
    assert places(ASK_RULES | ASK_POLICY) == sorted(PLACES)
    assert {door for doors in PLACES.values() if isinstance(doors, list) for door in doors} <= DOORS.keys()


@pytest.mark.faces(SHORT_WAY, PARSED)
@pytest.mark.parametrize("door", DOORS)
async def test_beyond_the_rate_a_refusal_is_only_that(door, tmp_path):
    """So many are answered and logged as what they are; then they are too many, and what is granted goes on."""
    refused, own, too_many = DOORS[door]
    async with client(tmp_path) as who:
        answers = [await refused(who) for _ in range(BURST + 2)]
        assert all(answer.startswith(own) for answer in answers[:BURST]), answers
        assert answers[BURST:] == [too_many] * 2
        denied = [line for line in who.served.log if line["event"] == "message_refused"]
        assert len(denied) in (0, BURST)
        assert who.served.house.broker.hits["publishes_per_s"] == 2
        for _ in range(BURST):
            assert await who.say(**publish("/open/a", 1, clientId=who.id)) == ""
            assert await who.say(**publish("/open/a", 1)) == ""
            assert await who.ask(wamp.PUBLISH, ACK, "open.a") == ""
        assert await who.say(**subscribe(who.id, "/open/b")) == ""
        assert await who.ask(wamp.SUBSCRIBE, {}, "open.b") == ""


async def test_what_is_granted_takes_nothing_from_refusals(tmp_path):
    """A client that has published as much as it may still learns what it may not."""
    async with client(tmp_path) as who:
        for _ in range(BURST):
            assert await who.say(**publish("/open/a", 1, clientId=who.id)) == ""
        assert await who.say(**publish("/open/a", 1, clientId=who.id)) == TOO_FAST + "publish_denied"
        assert await who.say(**publish("/no", 1, clientId=who.id)) == POLICY + "publish_denied"


async def test_a_session_has_refusals_of_its_own(tmp_path):
    """Another session at the same address is told what it may not."""
    async with client(tmp_path) as who, await wamp.join(who.served.url) as other:
        assert [await who.ask(wamp.PUBLISH, ACK, "no") for _ in range(3)] == [DENIED, DENIED, UNAVAILABLE]
        assert (await other.ask(wamp.PUBLISH, ACK, "no"))[4] == DENIED


async def test_publications_that_are_not_acknowledged_count_too(tmp_path):
    """They have no answer, but a count by its reason."""
    async with client(tmp_path) as who:
        await who.router.send(*([wamp.PUBLISH, number, {}, "no"] for number in range(100, 104)))
        assert await who.ask(wamp.PUBLISH, ACK, "no") == UNAVAILABLE
        counts = who.served.house.protocol("wamp").unacknowledged
        assert counts == {DENIED: 2, UNAVAILABLE.partition(" ")[0]: 2}


async def test_programs_of_this_machine_have_no_rate_of_refusals():
    """`limits.exempt` is for refusals too."""
    async with serving(brisk(access=RULES, limits={"publishes_per_s": 0.001, "publish_burst": 1})) as served:
        wire = await served.wire()
        for _ in range(4):
            assert (await wire.post(publish("/no", 1))).messages[0]["error"] == POLICY + "publish_denied"


def test_meters_of_refusals_are_forgotten_when_they_are_full():
    """A session has none before its first refusal, and none when it has been quiet."""
    world = World(limits=replace(Limits(), publishes_per_s=1, publish_burst=1), rights=AccessRules([]))
    world.broker.account_of = lambda address: address
    peer = world.joined()
    meters = world.broker.rates._refusals
    assert len(meters) == 0
    assert peer.is_refused([wamp.PUBLISH, 1, ACK, "no"]) == DENIED
    assert peer.is_refused([wamp.PUBLISH, 2, ACK, "no"]) == UNAVAILABLE.partition(" ")[0]
    assert len(meters) == 1
    world.pass_time(2)
    world.broker.rates.sweep(world.now)
    assert len(meters) == 0
    assert peer.is_refused([wamp.PUBLISH, 3, ACK, "no"]) == DENIED


MOST_BYTES = 500_000
LONG = "".join(chr(0x1F300 + number) for number in range(250))


def uri_of(number, components=16):
    """Return a URI that no other message has, of 15 characters beyond the BMP in each component."""
    text = f"{number:04}" + LONG
    return ".".join([text[at * 15 : at * 15 + 15] for at in range(components)])


WAMP_NAMES = {
    "publish": (lambda number: [wamp.PUBLISH, number, ACK, uri_of(number)], DENIED),
    "prefix": (lambda number: [wamp.SUBSCRIBE, number, {"match": "prefix"}, uri_of(number)], DENIED),
    "wildcard": (lambda number: [wamp.SUBSCRIBE, number, {"match": "wildcard"}, uri_of(number, 14) + ".."], DENIED),
    "call": (lambda number: [wamp.CALL, number, {}, uri_of(number)], "wamp.error.no_such_procedure"),
}


@pytest.mark.parametrize("way", WAMP_NAMES)
def test_names_of_the_refused_are_not_kept(way):
    """A thousand refused messages with names of the greatest length leave nothing, also without a rate."""
    rules = AccessRules([Rule("member", "*", Pattern(Match.DESCENDANTS, ""), allow=True)])
    world = World(options=Wamp(publishes_per_s=0), rights=rules)
    peer, (message, error) = world.joined(), WAMP_NAMES[way]

    def refuse(number):
        assert peer.is_refused(message(number)) == error

    assert grown(refuse) < MOST_BYTES


@pytest.mark.parametrize("kind", ["publish", "subscribe"])
def test_channels_of_the_refused_are_not_kept(kind):
    """The same in Bayeux, whose names are shorter, so that a table may have some of them, but no more than that."""
    rights = AccessRules([])
    house = House(rights=rights)
    for table in (rights._decisions, results_of(house.engine.sessions.to_topic)):
        table.most_bytes = 80_000
    peer = house.join()

    def refuse(number):
        channel = "/" + "/".join([f"{number:08}~~~~~~"] * 16)[:254]
        message = publish(channel, 1, clientId=peer.id) if kind == "publish" else subscribe(peer.id, channel)
        assert not house.send(message).replies[0]["successful"]
        house.replies.clear()

    assert grown(refuse) < MOST_BYTES


def grown(refuse):
    """Return the bytes that a thousand refused messages leave; what is made once is made before."""
    tracemalloc.start()
    try:
        for number in range(1, 200):
            refuse(number)
        before = traced_bytes()
        for number in range(200, 1_200):
            refuse(number)
        return traced_bytes() - before
    finally:
        tracemalloc.stop()
