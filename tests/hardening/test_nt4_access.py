"""A NetworkTables client neither sees nor sets topics that rules deny it, by any kind of subscription."""

import asyncio

import pytest
from support import nt4
from support.messages import publish
from support.server import brisk, serving

from halley.settings import Access

SECRET = (Access("nt4", "*", "/secret/**", allow=False),)
ALL = (*SECRET, Access("*", "*", "/**"))
WAYS = {
    "everything": {"topics": ("",), "prefix": True},
    "a prefix": {"topics": ("/se",), "prefix": True},
    "exactly": {"topics": ("/secret/code",)},
    "both": {"topics": ("", "/secret/code", "/secret/"), "prefix": True},
    "its meta topics": {"topics": ("$pub$/secret/code", "$sub$/secret/code")},
    "all meta topics": {"topics": ("$",), "prefix": True},
    "everybody's publishers": {"topics": ("$serverpub", "$clientpub$", "$clientsub$"), "prefix": True},
}


def guarded(*rules, **options):
    return serving(brisk(access=rules, nt4={"enabled": True, "port": 0, "bridge_in": ("/",), **options}))


async def entered(served, name="robot"):
    return await nt4.connect(f"http://127.0.0.1:{served.nt4_port}", name)


async def curl(served, channel, data):
    return (await (await served.wire()).post(publish(channel, data))).messages[0]


@pytest.mark.parametrize("way", WAYS)
async def test_what_is_denied_is_not_told_of(way):
    """Neither value nor name of a denied topic is sent: before it exists, when it is created, and afterwards."""
    async with guarded(*ALL) as served, await entered(served) as before, await entered(served) as after:
        topics = WAYS[way]["topics"]
        options = {name: value for name, value in WAYS[way].items() if name != "topics"}
        await before.subscribe(*topics, all=True, **options)
        await before.time()
        for code in (1, 2):
            assert (await curl(served, "/secret/code", code))["successful"]
        await after.subscribe(*topics, all=True, **options)
        await before.subscribe("/open", subuid=2)
        await curl(served, "/open", 3)
        await before.value("/open")
        for client in (before, after):
            came = [*client.left(), *await client.quiet()]
            assert "secret" not in str([each for each in came if getattr(each, "name", "") != "/open"])
            assert b"secret" not in b"".join(client.frames)


async def test_what_is_denied_is_not_set():
    """A publish, values and properties for a denied topic are ignored, and the topic does not change."""
    async with guarded(*ALL) as served, await entered(served) as client:
        await curl(served, "/secret/code", 1)
        topic = served.house.protocol("nt4").tables.topics.get("/secret/code")
        before = (topic.value, dict(topic.properties), topic.type, len(topic.publishers))
        await client.publish("/secret/code", 1, properties={"persistent": True})
        await client.put(1, 1, 7.0)
        await client.set_properties("/secret/code", retained=True)
        await client.publish("/secret/new", 2)
        assert await client.quiet() == []
        assert (topic.value, dict(topic.properties), topic.type, len(topic.publishers)) == before
        assert served.house.protocol("nt4").tables.topics.get("/secret/new") is None


@pytest.mark.parametrize(
    ("rules", "told"),
    [
        (ALL, False),
        ((Access("nt4", "*", "/**"),), False),
        ((Access("nt4", "subscribe", "/$nt4/**"), *ALL), True),
        ((Access("nt4", "subscribe", "/$nt4/$clients"), *ALL), True),
        ((Access("nt4", "subscribe", "/$nt4/**", allow=False), *ALL), False),
        ((), True),
    ],
)
async def test_meta_topics_are_for_whom_a_rule_names_them(rules, told):
    """Meta topics show names of clients and topics, so they need a rule that names them, unless there are no rules."""
    async with guarded(*rules) as served, await entered(served) as client:
        await client.subscribe("$clients")
        came = await client.quiet()
        assert bool(came) is told


async def test_names_without_a_slash_need_no_rule_of_their_own():
    """`/**` also covers names without a slash, which only NetworkTables has."""
    async with guarded(*ALL) as served, await entered(served) as client:
        await client.publish("own", 1)
        assert (await client.text("announce"))["name"] == "own"


class Asked:
    """A program's policy that denies `/no`, fails for `/raises`, and decides on `/wait` once `told` is set."""

    def __init__(self):
        self.told = asyncio.Event()
        self.asked = []

    def can_publish(self, session, channel, message):
        self.asked.append(("publish", channel))
        if channel == "/raises":
            raise RuntimeError("no")
        return self._thinks() if channel == "/wait" else channel != "/no"

    def can_subscribe(self, session, channel, message):
        self.asked.append(("subscribe", channel))
        return channel not in ("/no", "/**")

    async def _thinks(self):
        await self.told.wait()
        return True


async def test_a_programs_policy_is_asked():
    """The policy decides on each name: what it denies or fails at is ignored, what it allows later is done then.

    Later messages of the client wait for the decision; the client still gets the time, and others are served.
    """
    asked = Asked()
    settings = brisk(nt4={"enabled": True, "port": 0})
    async with serving(settings, lambda halley: setattr(halley.server.hooks, "policy", asked)) as served:
        async with await entered(served) as client, await entered(served, "other") as other:
            for pubuid, name in enumerate(("/no", "/raises", "/yes")):
                await client.publish(name, pubuid)
            await client.subscribe("/no", "/yes")
            await client.subscribe("", subuid=2, prefix=True)
            await client.set_properties("/no", a=1)
            assert [each.params["name"] for each in await client.quiet()] == ["/yes"]
            await client.publish("/wait", 7)
            await client.put(7, 1, 7.0)
            await client.publish("/behind", 8)
            assert await client.quiet() == []
            await other.publish("/beside", 1)
            assert (await other.text("announce"))["name"] == "/beside"
            asked.told.set()
            assert [(await client.text("announce"))["name"] for _ in range(2)] == ["/wait", "/behind"]
            assert served.house.protocol("nt4").tables.topics.get("/wait").value == 7.0
            assert {("publish", "/no"), ("subscribe", "/no"), ("subscribe", "/**")} <= set(asked.asked)
        assert served.faults("policy.can_publish")
        served.log.clear()
