"""The embedding API beyond the page's examples: what programs can do with sessions, and failures of their code."""

from __future__ import annotations

import asyncio
import sys

import pytest
from support.server import DEADLINE_S, brisk, serving

from halley.embed import Halley, NotProtected, Refused, load
from halley.server.sweeper import Swept
from halley.settings import Access, Settings

HANDSHAKE = {"channel": "/meta/handshake", "version": "1.0", "supportedConnectionTypes": ["long-polling"]}


def connect(client_id, **more):
    return {"channel": "/meta/connect", "clientId": client_id, "connectionType": "long-polling"} | more


async def joined(served, *channels):
    """Open a session that has connected once and subscribed to `channels`; return its connection and id."""
    wire = await served.wire()
    client_id = (await wire.post(HANDSHAKE, user_agent="tester/1")).messages[0]["clientId"]
    await wire.post(connect(client_id))
    if channels:
        await wire.post({"channel": "/meta/subscribe", "clientId": client_id, "subscription": list(channels)})
    return wire, client_id


async def hold(served, wire, client_id):
    """Send a connect and wait until it is held; return a task whose result is the response."""
    answer = asyncio.create_task(wire.post(connect(client_id)))
    await served.until(lambda: served.house.engine.sessions.holds == 1)
    return answer


async def test_a_program_sees_sessions_and_acts_on_them():
    """B27: a program can read a session's data, deliver to it, change its subscriptions, and keep attributes in it."""
    async with serving() as served:
        wire, client_id = await joined(served, "/a/*", "/b")
        session = served.halley.session(client_id)
        assert session is served.halley.session(client_id)
        assert session in served.halley.sessions
        assert (session.id, session.address, session.user_agent) == (client_id, "127.0.0.1", "tester/1")
        assert session.subscriptions == ["/a/*", "/b"]
        assert client_id not in repr(session)
        session.attributes["name"] = "Ada"
        assert served.halley.session(client_id).attributes == {"name": "Ada"}

        assert session.deliver("/private", {"n": 1})
        assert (await wire.post(connect(client_id))).messages[1:] == [{"channel": "/private", "data": {"n": 1}}]

        session.unsubscribe("/b")
        session.subscribe("/c")
        for channel in ("/b", "/c"):
            served.halley.publish(channel, channel)
        assert (await wire.post(connect(client_id))).messages[1:] == [{"channel": "/c", "data": "/c"}]
        with pytest.raises(ValueError, match="not a channel or pattern"):
            session.deliver("no channel", 1)


async def test_a_program_disconnects_a_session_whose_connect_is_held():
    """B13, B14: the held connect ends with /meta/disconnect and advice `none`; afterwards nothing is delivered."""
    async with serving() as served:
        wire, client_id = await joined(served)
        answer = await hold(served, wire, client_id)
        session = served.halley.session(client_id)
        session.disconnect()
        reply, goodbye = (await answer).messages
        assert reply["advice"]["reconnect"] == "none"
        assert goodbye == {"channel": "/meta/disconnect", "successful": True}
        assert not session.is_connected
        assert not session.deliver("/a", 1)
        after = (await wire.post(connect(client_id))).messages[0]
        assert (after["error"], after["advice"]["reconnect"]) == ("402::session_unknown", "handshake")


async def test_changed_terms_are_advised_and_kept():
    """B3, E24: a hold and interval that the program sets are in the next reply's advice, and only there."""
    async with serving() as served:
        wire, client_id = await joined(served, "/a")
        session = served.halley.session(client_id)
        session.hold_s, session.interval_s = 5.0, 0.5
        served.halley.publish("/a", 1)
        advice = (await wire.post(connect(client_id))).messages[0]["advice"]
        assert advice == {"reconnect": "retry", "interval": 500, "timeout": 5000}
        served.halley.publish("/a", 2)
        assert "advice" not in (await wire.post(connect(client_id))).messages[0]


async def test_a_batch_reaches_the_client_in_one_answer():
    """B7: while a batch is open, a held connect stays held; then all events are delivered in one response."""
    async with serving() as served:
        wire, client_id = await joined(served, "/a")
        answer = await hold(served, wire, client_id)
        with served.halley.session(client_id).batch():
            for number in range(3):
                served.halley.publish("/a", number)
                await asyncio.sleep(0)
            assert served.house.engine.sessions.holds == 1
        assert [message["data"] for message in (await answer).messages[1:]] == [0, 1, 2]


async def test_occasions_are_told_in_order():
    """B12, B24, B27: the hooks of a session's occasions are called in order, up to its close with the reason."""
    told = []

    def register(halley):
        for occasion in ("session_opened", "session_closed", "subscribed", "unsubscribed", "suspended", "resumed"):
            halley.on(occasion)(lambda session, *news, occasion=occasion: told.append((occasion, *news)))
        halley.on("channel_created")(lambda channel: told.append(("channel_created", channel)))

    async with serving(register=register) as served:
        wire, client_id = await joined(served, "/a")
        answer = await hold(served, wire, client_id)
        other = await served.wire()
        await other.post({"channel": "/a", "data": 1}, {"channel": "/new", "data": 1})
        await answer
        await other.post(
            {"channel": "/meta/unsubscribe", "clientId": client_id, "subscription": "/a"},
            {"channel": "/meta/disconnect", "clientId": client_id},
        )
        assert told == [
            ("session_opened",),
            ("channel_created", "/a"),
            ("subscribed", "/a"),
            ("suspended",),
            ("channel_created", "/new"),
            ("resumed",),
            ("unsubscribed", "/a"),
            ("session_closed", "disconnected"),
        ]


async def test_authorizers_decide_about_their_part_of_the_channels():
    """B23, E55: a channel needs a grant if authorizers cover it; a denial overrides grants; other channels are free."""

    def register(halley):
        halley.authorizer("/mine/**")(lambda session, operation, channel, message: operation != "publish" or None)
        halley.authorizer("/mine/shared")(lambda session, operation, channel, message: True)
        halley.authorizer("/mine/shared/secret")(lambda session, operation, channel, message: False)
        halley.authorizer("/mine/shared/*")(lambda session, operation, channel, message: True)

    async with serving(register=register) as served:
        wire, client_id = await joined(served)
        publishes = [
            {"channel": channel, "data": 1, "clientId": client_id}
            for channel in ("/free", "/mine/a", "/mine/shared", "/mine/shared/secret")
        ]
        subscribe = {"channel": "/meta/subscribe", "clientId": client_id, "subscription": "/mine/**"}
        replies = (await wire.post(*publishes, subscribe)).messages
        assert [reply.get("error") for reply in replies[:5]] == [
            None,
            "403:denied_by_not_granting:publish_denied",
            None,
            "403:denied_by_security_policy:channel_create_denied",
            None,
        ]


async def test_hooks_that_fail_do_not_fail_the_request():
    """If a hook raises, a listener and a service have no effect, and a policy and an authorizer count as denials."""

    def fail(*_):
        raise RuntimeError("a program's own mistake")

    class Policy:
        can_subscribe = fail

    def register(halley):
        halley.listener("/a")(fail)
        halley.service("/service/a")(fail)
        halley.authorizer("/b")(fail)
        halley.set_policy(Policy())
        halley.add_extension(type("Broken", (), {"incoming": fail, "outgoing": fail})())
        halley.on("session_opened")(fail)

    async with serving(register=register) as served:
        wire, client_id = await joined(served)
        replies = await wire.post(
            *({"channel": channel, "data": 1, "clientId": client_id} for channel in ("/a", "/service/a", "/b")),
            {"channel": "/meta/subscribe", "clientId": client_id, "subscription": "/a"},
        )
        assert [reply["successful"] for reply in replies.messages] == [True, True, False, False]


async def test_a_policy_that_takes_too_long_counts_as_no():
    """A policy that exceeds its deadline counts as a denial, and the session is unchanged."""

    class Policy:
        async def can_subscribe(self, session, channel, message):
            await asyncio.sleep(3600)
            return True

    async with serving(brisk(bayeux={"policy_s": 0.05}), lambda halley: halley.set_policy(Policy())) as served:
        wire, client_id = await joined(served)
        subscribe = {"channel": "/meta/subscribe", "clientId": client_id, "subscription": "/a"}
        reply = (await wire.post(subscribe)).messages[0]
        assert reply["error"] == "403:denied_by_security_policy:subscribe_denied"
        assert served.halley.session(client_id).subscriptions == []


async def test_a_session_that_ends_while_a_policy_thinks_is_not_subscribed():
    """E27: if a session ends while its policy is asked about a subscription, the subscription is refused."""
    asked, go_on = asyncio.Event(), asyncio.Event()

    class Policy:
        async def can_subscribe(self, session, channel, message):
            asked.set()
            await go_on.wait()
            return True

    async with serving(register=lambda halley: halley.set_policy(Policy())) as served:
        wire, client_id = await joined(served)
        subscribe = {"channel": "/meta/subscribe", "clientId": client_id, "subscription": "/a"}
        answer = asyncio.create_task(wire.post(subscribe))
        async with asyncio.timeout(DEADLINE_S):
            await asked.wait()
        served.halley.session(client_id).disconnect()
        go_on.set()
        assert (await answer).messages[0]["error"] == "402::session_unknown"
        assert not served.house.broker.index.subscriptions


async def test_a_listener_may_publish_and_say_why_it_refuses():
    """E49, B22: events that a listener publishes are delivered; the reply has the text of its `Refused`."""

    def register(halley):
        @halley.listener("/orders")
        def check(session, message):
            if message.data == 0:
                raise Refused("nothing_ordered")
            halley.publish("/audit", message.data)

    async with serving(register=register) as served:
        wire, client_id = await joined(served, "/audit")
        order = {"channel": "/orders", "clientId": client_id}
        replies = (await wire.post(order | {"data": 0}, order | {"data": 2})).messages
        assert replies[0]["error"] == "403:nothing_ordered:publish_denied"
        assert replies[2] == {"channel": "/audit", "data": 2}


async def test_local_sessions_hear_in_order_and_survive_what_they_call():
    """B31: a local session gets events in order, even if a callback fails, and none after it is closed."""
    heard = []
    async with serving() as served:
        local = served.halley.local_session("auditor")

        def fail(channel, data):
            raise RuntimeError("a program's own mistake")

        local.subscribe("/a/**", fail)
        local.subscribe("/a/*", lambda channel, data: heard.append((channel, data)))
        for number in range(2500):  # more than fit in one outbox
            local.publish("/a/b", number)
        await served.until(lambda: len(heard) == 2500)
        assert heard == [("/a/b", number) for number in range(2500)]
        reply = await local.publish("/a/*", 1)
        assert reply["error"] == "400:/a/*:channel_is_a_wildcard"
        local.close()
        served.halley.publish("/a/b", "unheard")
        await asyncio.sleep(0)
        assert len(heard) == 2500
        assert (await local.publish("/a/b", 1))["error"] == "402::session_unknown"


async def test_the_programs_own_publishes_pass_listeners_and_asynchronous_services():
    """B31: a program's publishes pass listeners and services, and return when asynchronous services are done."""
    seen = []

    def register(halley):
        halley.listener("/**")(lambda session, message: seen.append((session.is_local, message.channel)))

        @halley.service("/service/slow")
        async def slow(session, message):
            await asyncio.sleep(0)
            seen.append(message.data)

    async with serving(register=register) as served:
        assert (await served.halley.publish("/a", 1))["successful"]
        assert (await served.halley.publish("/service/slow", "asked"))["successful"]
        assert seen == [(True, "/a"), (True, "/service/slow"), "asked"]


async def test_the_clientid_of_a_local_session_opens_nothing_over_http():
    """A remote client cannot use a program's local session, which has more rights."""
    async with serving() as served:
        local = served.halley.local_session("own")
        wire = await served.wire()
        reply = await wire.post({"channel": "/a", "data": 1, "clientId": local._session.id})
        assert reply.messages[0]["error"] == "402::session_unknown"


async def test_a_sweeper_that_meets_an_error_goes_on():
    """F5: an error in one sweep does not stop later sweeps, so deadlines are still enforced (CometD #1627)."""
    async with serving(brisk(bayeux={"max_interval_s": 0.3})) as served:
        calls = []

        def fail(now):
            calls.append(now)
            raise RuntimeError("injected")

        served.house.add(Swept(fail))
        _, client_id = await joined(served)
        await served.until(lambda: client_id not in served.house.broker.sessions)
        assert len(calls) > 1
        assert served.house.sweeper.is_live


def test_a_host_that_others_can_reach_needs_a_word_of_consent():
    """A host that others can reach is an error without `open`, so that no server is exposed by accident."""
    with pytest.raises(NotProtected, match="or use --open"):
        Halley(Settings(host="0.0.0.0"))
    assert Halley(Settings(host="0.0.0.0", open=True)).server.access.rights.anonymous_publish is False


@pytest.mark.parametrize("channel", ["/chat", "service/x", "/service/"])
def test_a_service_lives_below_service(channel):
    """A service on a channel outside of /service/ is an error at its registration."""
    with pytest.raises(ValueError, match=r"channel|service"):
        Halley().service(channel)


def test_hooks_that_must_answer_at_once_are_no_coroutine_functions():
    """Registering a coroutine function is an error, since its coroutine would count as True and not run."""

    async def slow(*_):
        return False

    halley = Halley()
    for register in (halley.listener("/a"), halley.authorizer("/a"), halley.on("session_opened")):
        with pytest.raises(TypeError, match="coroutine function"):
            register(slow)


def test_load_calls_a_function_of_a_module_in_the_working_directory(tmp_path, monkeypatch):
    """`--load MODULE:FUNCTION` finds modules in the working directory, and its errors name what is missing."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "my_chat.py").write_text("def setup(halley):\n    halley.loaded = True\n")
    halley = Halley()
    load("my_chat:setup", halley)
    assert halley.loaded
    with pytest.raises(ImportError, match="there is no absent"):
        load("my_chat:absent", halley)
    with pytest.raises(ImportError, match="MODULE:FUNCTION"):
        load("my_chat", halley)


async def test_a_background_task_runs_with_the_server_and_ends_with_it():
    """A `background` task begins with the server and is cancelled at its end; one that fails affects nothing else."""
    states = []

    def register(halley):
        @halley.background
        async def work():
            states.append("begun")
            try:
                await asyncio.sleep(3600)
            finally:
                states.append("ended")

        @halley.background
        async def fail():
            raise RuntimeError("a program's own mistake")

    async with serving(register=register) as served:
        await served.until(lambda: states == ["begun"])
        wire = await served.wire()
        assert (await wire.post(HANDSHAKE)).status == 200
    assert states == ["begun", "ended"]


# Identities


OWN = (Access("*", "*", "/user/{authid}/**"), Access("*", "*", "/team/{claim.team}/**"))


class Login:
    """A policy with names and passwords of its own, which CometD's users send in `ext.authentication`."""

    def __init__(self):
        self.trouble = []
        self.names = []

    def can_handshake(self, session, message):
        shown = (message.ext or {}).get("authentication")
        if shown is None:
            return True
        if shown["password"] != "secret":
            return False
        session.identify(shown["user"], "member", {"team": "red"})
        with pytest.raises(ValueError, match="one identity") as refused:
            session.identify("eve", "member")
        self.trouble.append(refused.value)
        return True

    def can_publish(self, session, channel, message):
        self.names.append((message.identity.authid, message.identity.is_proved, dict(message.identity.claims)))
        return True


async def test_a_program_proves_identities_itself():
    """What it says in `can_handshake` counts as a token does: for rules, hooks and `session.authid`."""
    login = Login()
    async with serving(brisk(access=OWN), lambda halley: halley.set_policy(login)) as served:
        wire = await served.wire()

        async def handshake(**authentication):
            (reply,) = (await wire.post(HANDSHAKE | {"ext": {"authentication": authentication}})).messages
            return reply

        assert (await handshake(user="ada", password="wrong"))["successful"] is False
        client_id = (await handshake(user="ada", password="secret"))["clientId"]
        session = served.halley.session(client_id)
        assert (session.authid, session.role) == ("ada", "member")
        for channel, allowed in (("/user/ada/x", True), ("/team/red/x", True), ("/user/bob/x", False)):
            (reply,) = (await wire.post({"channel": channel, "data": 1, "clientId": client_id})).messages
            assert reply["successful"] is allowed
        assert login.names == [("ada", True, {"team": "red"})] * 2
        with pytest.raises(ValueError, match="one identity"):
            session.identify("bob", "member")

        anonymous = (await wire.post(HANDSHAKE)).messages[0]["clientId"]
        with pytest.raises(ValueError, match="one identity"):
            served.halley.session(anonymous).identify("bob", "member")
        by_script = await wire.get(HANDSHAKE | {"ext": {"authentication": {"user": "ada", "password": "secret"}}})
        assert by_script.called[1][0]["error"] == "403:token_in_url:handshake_denied"


@pytest.mark.parametrize(
    ("authid", "role", "claims"),
    [
        ("", "member", {}),
        (7, "member", {}),
        ("a\0", "member", {}),
        ("\ud800", "member", {}),
        ("x" * 256, "member", {}),
        ("ada", "server", {}),
        ("ada", "anonymous", {}),
        ("ada", "a b", {}),
        ("ada", "member", {"a": object()}),
        ("ada", "member", {"a": "x" * 1_024}),
    ],
)
async def test_a_program_cannot_prove_what_no_token_could(authid, role, claims):
    """The handshake is refused, as after any error in a policy."""

    class Policy:
        def can_handshake(self, session, message):
            session.identify(authid, role, claims)
            return True

    async with serving(register=lambda halley: halley.set_policy(Policy())) as served:
        (reply,) = (await (await served.wire()).post(HANDSHAKE)).messages
        assert reply["successful"] is False
        (fault,) = served.faults("policy.can_handshake")
        assert isinstance(fault, dict)


async def test_listeners_services_and_authorizers_know_who_asks():
    """They get the same identity as policies; the program's own publishes are its own."""
    heard = []

    def register(halley):
        @halley.listener("/a")
        def listen(session, message):
            heard.append(("listener", message.identity.protocol, message.identity.is_proved))

        @halley.service("/service/a")
        def serve(session, message):
            heard.append(("service", message.identity.protocol, message.identity.is_proved))

        @halley.authorizer("/a")
        def authorize(session, operation, channel, message):
            heard.append((operation, message.identity.protocol, message.identity.is_proved))
            return True

    async with serving(register=register) as served:
        wire, client_id = await joined(served)
        for message in ({"channel": "/a", "data": 1}, {"channel": "/service/a", "data": 1, "clientId": client_id}):
            assert (await wire.post(message)).messages[0]["successful"]
        await served.halley.publish("/a", 1)
    assert heard == [
        ("create", "http", False),
        ("publish", "http", False),
        ("listener", "http", False),
        ("service", "bayeux", False),
        ("listener", "local", True),
    ]
