"""Policies and authorizers: who can handshake, create, subscribe and publish (B23, A68, E21, E55)."""

import pytest
from support.bayeux import House, Later, local_session
from support.bayeux_peers import handshake
from support.messages import connect, publish

from halley.protocols.bayeux.hooks import Refused
from halley.protocols.bayeux.names import to_pattern
from halley.protocols.bayeux.outcomes import Transport

POLICY = "denied_by_security_policy"
NOT_GRANTING = "denied_by_not_granting"


def boom(*_):
    raise RuntimeError("boom")


def refused(*_):
    raise Refused("too_late", advice={"reconnect": "handshake"}, ext={"why": "closed"})


def ask(house, question):
    """Send a message about which `question` is asked, and return its only reply."""
    if question == "can_handshake":
        return house.send(handshake()).only
    peer = house.join()
    if question == "can_subscribe":
        return peer.subscribe("/a").only
    return peer.publish("/a", 1).only


DENIALS = {
    "can_handshake": ("403::handshake_denied", "403:too_late:handshake_denied"),
    "can_create": (f"403:{POLICY}:channel_create_denied", "403:too_late:channel_create_denied"),
    "can_subscribe": (f"403:{POLICY}:subscribe_denied", "403:too_late:subscribe_denied"),
    "can_publish": (f"403:{POLICY}:publish_denied", "403:too_late:publish_denied"),
}


@pytest.mark.parametrize("question", DENIALS)
@pytest.mark.parametrize("answer", [False, None, 0, 1, "yes", [True]])
def test_anything_but_true_denies(house, question, answer):
    """A policy grants by returning `True` only (B23)."""
    house.policy(**{question: lambda *_: answer})
    only = ask(house, question)
    assert (only["successful"], only["error"]) == (False, DENIALS[question][0])


@pytest.mark.parametrize("question", DENIALS)
def test_true_grants(house, question):
    """A policy that returns `True` grants (B23)."""
    house.policy(**{question: lambda *_: True})
    assert ask(house, question)["successful"] is True


@pytest.mark.parametrize("question", DENIALS)
def test_raising_denies(house, question):
    """A policy that raises denies, and its error is reported (A69, S42)."""
    house.policy(**{question: boom})
    assert ask(house, question)["error"] == DENIALS[question][0]
    ((what, error),) = house.reported
    assert (what, str(error)) == (f"policy.{question}", "boom")


@pytest.mark.parametrize("question", DENIALS)
def test_policy_has_its_own_words(house, question):
    """A policy can refuse with a reason, advice and ext, which are in the one reply (B23, E21)."""
    house.policy(**{question: refused})
    only = ask(house, question)
    assert (only["error"], only["ext"]) == (DENIALS[question][1], {"why": "closed"})
    assert only["advice"]["reconnect"] == "handshake"
    assert house.reported == []


def test_denied_handshake_stops_the_client(house):
    """Without other advice a denied handshake gets `none`, else cometd.js would try again without end (A27)."""
    house.policy(can_handshake=lambda *_: False)
    sent = house.send(handshake())
    assert sent.only["advice"]["reconnect"] == "none"
    assert sent.reply.set_cookie is None
    assert house.broker.sessions == {}


def test_multi_step_handshake(house):
    """A policy can ask for another handshake with more in it, until it accepts one (A27)."""
    house.policy(can_handshake=lambda session, message: refused() if not message.ext else True)
    assert house.send(handshake()).only["advice"]["reconnect"] == "handshake"
    assert house.send(handshake(ext={"token": "x"})).only["successful"] is True


def test_denied_subscription_to_a_new_channel(house):
    """A channel that the policy denies to create cannot be subscribed to; the error says so (A68)."""
    house.policy(can_create=lambda *_: False)
    assert house.join().subscribe("/a").only["error"] == f"403:{POLICY}:create_denied"


def test_creation_is_asked_once(house):
    """The policy is asked about creating a channel only while it does not exist (B23, B24)."""
    asked = []
    house.policy(can_create=lambda session, channel, message: asked.append(channel) is None)
    peer = house.join()
    peer.subscribe("/a")
    peer.publish("/a", 1)
    house.publish("/a", 1)
    house.publish("/b", 1)
    assert asked == ["/a", "/b"]


def test_denied_channel_is_not_made(house):
    """A channel whose first publish is denied does not exist (B24)."""
    house.policy(can_create=lambda *_: True, can_publish=lambda *_: False)
    house.send(publish("/a", 1))
    assert "/a" not in house.engine.channels


def test_policy_sees_session_channel_and_message(house):
    """A policy gets the session, the channel and the message (B23)."""
    seen = []
    house.policy(can_publish=lambda session, channel, message: seen.append((session, channel, message.data)) is None)
    peer = house.join()
    peer.publish("/a", 1)
    house.publish("/b", 2)
    assert seen == [(peer.session, "/a", 1), (None, "/b", 2)]


def test_policy_is_asked_for_services(house):
    """A message to a service is a publish (B23, A20)."""
    house.policy(can_publish=lambda session, channel, message: not channel.startswith("/service/"))
    assert house.join().publish("/service/a", 1).only["error"] == f"403:{POLICY}:publish_denied"


def test_policy_is_not_asked_what_is_refused_anyway(house):
    """A policy is not asked about messages that the protocol or the house rules refuse (B21)."""
    house.policy(can_publish=boom, can_subscribe=boom)
    peer = house.join()
    peer.publish("/meta/x", 1)
    peer.publish("/a/", 1)
    peer.subscribe("/meta/connect")
    house.send(publish("/a", 1, clientId="nobody"))
    assert house.reported == []


def test_denied_publish_is_not_delivered(house):
    """A denied publish reaches neither subscribers nor listeners (B21)."""
    heard = []
    house.policy(can_publish=lambda *_: False)
    house.listen("/a", lambda session, message: heard.append(message))
    peer = house.join()
    peer.subscribe("/a")
    house.send(publish("/a", 1))
    assert heard == []
    assert peer.connect().is_held


def test_program_itself_is_not_asked_about(house):
    """A local session belongs to the program: policy, authorizers and house rules do not apply to it (B31)."""
    house.policy(can_publish=boom, can_create=boom)
    house.authorize("/**", boom)
    session = local_session(house.engine, house.now)
    sent = house.send(publish("/halley/a", 1), transport=Transport.LOCAL, session=session)
    assert sent.only["successful"] is True
    assert house.reported == []


def test_program_itself_cannot_be_impersonated(house):
    """A client that knows the id of a local session cannot use it (A54, S12)."""
    session = local_session(house.engine, house.now)
    assert house.send(publish("/a", 1, clientId=session.id)).only["error"] == "402::session_unknown"


# Authorizers


def test_no_authorizer_grants(house):
    """Without an authorizer over a channel all is granted (B23, E55)."""
    house.authorize("/b/*", lambda *_: False)
    assert house.join().publish("/a", 1).only["successful"] is True


@pytest.mark.parametrize(
    ("verdicts", "reason"),
    [
        ([None], NOT_GRANTING),
        ([None, None], NOT_GRANTING),
        ([1], NOT_GRANTING),
        ([True], None),
        ([None, True], None),
        ([True, None], None),
        ([False], POLICY),
        ([True, False], POLICY),
        ([False, True], POLICY),
    ],
)
def test_authorizers_together(house, verdicts, reason):
    """One denial denies; else one grant is enough; else the error says that it was not granted (B23, E55)."""
    for verdict in verdicts:
        house.authorize("/a", lambda *_, verdict=verdict: verdict)
    only = house.join().publish("/a", 1).only
    assert only.get("error") == (None if reason is None else f"403:{reason}:channel_create_denied")


@pytest.mark.parametrize("pattern", ["/a/b", "/a/*", "/a/**", "/**"])
def test_authorizers_stand_over_their_channels(house, pattern):
    """The authorizers on a channel and on every wildcard over it are called (B23)."""
    house.authorize(pattern, lambda session, verb, *_: verb != "publish")
    peer = house.join()
    assert peer.publish("/a/b", 1).only["error"] == f"403:{POLICY}:publish_denied"
    assert peer.subscribe("/a/b").only["successful"] is True


@pytest.mark.parametrize("pattern", ["/service/**", "/**"])
def test_authorizers_stand_over_services(house, pattern):
    """`/**` includes service channels, so an authorizer on everything guards them too (B23, E55)."""
    house.authorize(pattern, lambda *_: False)
    assert house.join().publish("/service/a", 1).only["successful"] is False


def test_authorizer_over_everything_stands_over_own_topics(house):
    """An authorizer on `/**` also guards the server's own topics (B23)."""
    house.authorize("/**", lambda *_: False)
    assert house.join().publish("/halley/a", 1).only["successful"] is False


@pytest.mark.parametrize("name", ["/a/*", "/a/**"])
def test_authorizers_of_children_are_asked_about_wildcards(house, name):
    """An authorizer for a channel's children is also called for a wildcard over them (B23)."""
    house.authorize("/a/*", lambda *_: False)
    peer = house.join()
    assert peer.subscribe(name).only["error"] == f"403:{POLICY}:create_denied"
    assert peer.subscribe("/b/*").only["successful"] is True


def test_authorizer_that_raises_denies(house):
    """An authorizer that raises denies, and its error is reported."""
    house.authorize("/a", boom)
    assert house.join().publish("/a", 1).only["successful"] is False
    assert [what for what, _ in house.reported] == ["authorizer"]


def test_authorizer_has_its_own_words(house):
    """An authorizer can refuse with a reason and ext (A68)."""
    house.authorize("/a", refused)
    only = house.join().publish("/a", 1).only
    assert (only["error"], only["ext"]) == ("403:too_late:channel_create_denied", {"why": "closed"})


def test_authorizer_that_removes_itself(house):
    """An authorizer that removes itself is called once (E55)."""

    def once(*_):
        house.hooks.authorizers.clear()
        return False

    house.authorize("/a", once)
    peer = house.join()
    assert peer.publish("/a", 1).only["successful"] is False
    assert peer.publish("/a", 1).only["successful"] is True


def test_authorizer_is_asked_for_creation_and_use(house):
    """Authorizers are called for creating a channel and for using it (B23)."""
    asked = []
    house.authorize("/**", lambda session, verb, channel, message: asked.append((verb, channel)) is None)
    peer = house.join()
    peer.publish("/a", 1)
    peer.subscribe("/a")
    assert asked == [("create", "/a"), ("publish", "/a"), ("subscribe", "/a")]


def test_policy_goes_first(house):
    """If the policy denies, no authorizer is called (B23)."""
    house.policy(can_publish=lambda *_: False)
    house.authorize("/a", lambda session, verb, *_: True if verb == "create" else boom())
    assert house.join().publish("/a", 1).only["error"] == f"403:{POLICY}:publish_denied"
    assert house.reported == []


# What a program does to a session in its handshake


def made_ready(house, session):
    """Subscribe a session that would begin, and greet it, as a program does."""
    house.engine.subscribe(session, "/room", to_pattern("/room", house.engine.bounds), house.now)
    house.engine.sessions.deliver(session, "/room", "hello", None, house.now)


def begin(house, answer, *, before=made_ready):
    """Send a handshake whose session a policy makes ready before it answers; return the course of the request."""

    def can_handshake(session, message):
        before(house, session)
        return answer(session) if callable(answer) else answer

    house.policy(can_handshake=can_handshake)
    return house.send(handshake())


def denied_later(_session):
    return Later()


def dismissed(house, session):
    made_ready(house, session)
    house.engine.sessions.leave(session, house.now, by_client=False)


REFUSALS = {
    "denied": {"answer": False},
    "raised": {"answer": boom},
    "ended by the program": {"answer": True, "before": dismissed},
}


def is_as_before(house):
    """Whether nothing is left of a session that never began."""
    broker = house.broker
    return (
        not broker.sessions
        and not broker.index.subscriptions
        and not broker.waiting.value
        and not len(broker.deadlines)
        and not broker.closed
        and not house.engine._handshakes._beginning
    )


@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS)
def test_what_a_program_does_in_a_handshake_goes_with_its_refusal(house, refusal):
    """No subscription and no event of the session stays, and nobody hears that it has begun or ended."""
    ended = []
    house.hooks.session_closed.append(lambda *_: ended.append(_))
    answer = begin(house, **refusal).only
    assert (answer["successful"], answer["error"][:4]) == (False, "403:")
    assert is_as_before(house)
    assert ended == []
    house.publish("/room", 1)
    assert house.broker.delivered == 1  # the greeting


@pytest.mark.parametrize("why", ["denied", "drain", "full", "withdrawn", "left"])
def test_what_a_program_does_in_a_handshake_goes_with_one_that_is_refused_later(why):
    """Whatever happens while the policy is awaited; events that came meanwhile are dropped, too."""
    house = House(limits={"sessions": 1})
    exchange = begin(house, denied_later)
    assert exchange.is_waiting
    house.publish("/room", 1)
    if why == "drain":
        house.engine.sessions.drain()
    elif why == "full":
        local_session(house.engine, house.now)
    elif why == "withdrawn":
        house.identities.is_current = lambda _: False
    if why == "left":
        house.engine.begin(house.now)  # its request was cancelled, and the server begins again
    else:
        exchange.resume(why != "denied")
        assert exchange.status == (503 if why in ("drain", "full") else 200)
    for session in [*house.broker.sessions.values()]:
        house.broker.close(session, "end")
    house.broker.closed.pop("end", None)
    house.broker.deadlines._heap.clear()
    assert is_as_before(house)


def test_what_a_program_does_in_a_handshake_is_there_where_it_is_granted(house):
    """The session opens before its subscription is announced, and its first connect brings what came meanwhile."""
    noted = []

    class Observer:
        def opened(self, session):
            noted.append("opened")

        def subscribed(self, session, names):
            noted.extend(names)

    house.broker.add_observer(Observer())
    exchange = begin(house, denied_later)
    house.publish("/room", 1)
    answer = exchange.resume(True).only
    assert answer["successful"]
    assert noted == ["opened", to_pattern("/room", house.engine.bounds)]
    assert house.send(connect(answer["clientId"])).events == [("/room", "hello"), ("/room", 1)]


def test_a_session_that_ends_as_it_opens_is_refused(house):
    """A hook that ends it is as good as a policy: the client gets no clientId that is dead."""
    house.hooks.session_opened.append(lambda session: house.engine.sessions.leave(session, house.now, by_client=False))
    answer = house.send(handshake()).only
    assert (answer["successful"], answer["error"]) == (False, "403:denied_by_security_policy:handshake_denied")
    assert "clientId" not in answer
    assert not house.broker.sessions
    assert house.broker.closed == {"dismissed": 1}
