"""The meta API: procedures about sessions and subscriptions, meta events, killing (W46-W48, WD3, WD10)."""

from __future__ import annotations

from typing import Any

import pytest
from support.wamp_peers import Peer, World

from halley.access.rules import AccessRules, Rule
from halley.broker.events import to_ns
from halley.broker.names import Match, Pattern
from halley.broker.policy import DefaultRules
from halley.settings import Realm, Wamp

META = ("wamp.subscription.on_create", "wamp.subscription.on_subscribe")
META_ENDS = ("wamp.subscription.on_unsubscribe", "wamp.subscription.on_delete")
SESSIONS = ("wamp.session.on_join", "wamp.session.on_leave")


def witness(world: World, *topics: str, realm: str = "realm1") -> tuple[Peer, dict[int, str]]:
    """A peer that subscribes to these topics, and the topics' last components by subscription id."""
    peer = world.joined(realm)
    return peer, {peer.subscribe(topic): topic.rpartition(".")[2] for topic in topics}


def told(peer: Peer, names: dict[int, str]) -> list[tuple[str, list[Any]]]:
    """Take the meta events that a peer has received, as (name, args)."""
    events = peer.events()
    assert all(event[3] == {} for event in events)
    return [(names[event[1]], event[4]) for event in events]


def ranked(world: World, role: str, realm: str = "realm1", **hello: Any) -> Peer:
    """A peer whose session has this role."""
    peer = world.joined(realm, **hello)
    session = peer.engine.session
    assert session is not None
    session.role = role
    return peer


# Sessions


def test_sessions_are_counted_and_listed() -> None:
    """W47: sessions are counted and listed, all or those of some authroles."""
    world = World()
    one, other = world.joined(), ranked(world, "red")
    numbers = [one.number, other.number]
    assert one.call("wamp.session.count") == [2]
    assert one.call("wamp.session.list") == [numbers]
    for roles, found in ((["red"], numbers[1:]), (["red", "anonymous"], numbers), ("red", numbers[1:]), ([], [])):
        assert one.call("wamp.session.list", roles) == [found]
        assert one.call("wamp.session.count", roles) == [len(found)]
    assert one.call("wamp.session.list", None) == [numbers]


def test_what_is_told_of_a_session() -> None:
    """W47: `get` has a session's identity and transport, and nothing of its HTTP request."""
    world = World()
    one, other = world.joined(), world.joined(subprotocol="wamp.2.cbor.batched")
    assert one.call("wamp.session.get", other.number) == [
        {
            "session": other.number,
            "authid": other.welcome["authid"],
            "authrole": "anonymous",
            "authmethod": "anonymous",
            "authprovider": "static",
            "transport": {"type": "test", "protocol": "wamp.2.cbor.batched"},
        }
    ]
    assert one.call("wamp.session.get", float(one.number))[0]["session"] == one.number


def test_join_and_leave_are_told() -> None:
    """W48: on_join has what `get` returns, on_leave has the identity; the session itself gets neither."""
    world = World()
    peer, names = witness(world, *SESSIONS)
    other = world.joined()
    details = peer.call("wamp.session.get", other.number)
    other.subscribe("wamp.session.on_leave")
    other.say([6, {}, "wamp.close.normal"])
    assert other.hear()[0] == 6
    assert other.hears_nothing()
    assert told(peer, names) == [
        ("on_join", details),
        ("on_leave", [other.number, other.welcome["authid"], "anonymous"]),
    ]


# Subscriptions


def test_subscriptions_are_listed() -> None:
    """W47, WD10: subscriptions are listed by match, also in empty lists, while they have subscribers."""
    world = World()
    peer = world.joined()
    assert peer.call("wamp.subscription.list") == [{"exact": [], "prefix": [], "wildcard": []}]
    exact, wildcard = peer.subscribe("a"), peer.subscribe(".", match="wildcard")
    assert peer.call("wamp.subscription.list") == [{"exact": [exact], "prefix": [], "wildcard": [wildcard]}]
    peer.say([34, 90, exact])
    peer.hear()
    assert peer.call("wamp.subscription.list") == [{"exact": [], "prefix": [], "wildcard": [wildcard]}]


def test_what_is_told_of_a_subscription() -> None:
    """W47: `get` has a subscription's id, time of creation, URI as it was sent, and match; others its subscribers."""
    world = World()
    world.now = 1.5
    peer, other = world.joined(), world.joined()
    for match, uri in (("exact", "a.b!x"), ("prefix", "a.b!"), ("prefix", ""), ("wildcard", "a..c"), ("wildcard", "")):
        number = peer.subscribe(uri, match=match)
        other.subscribe(uri, match=match)
        (shown,) = peer.call("wamp.subscription.get", number)
        assert (shown["id"], shown["uri"], shown["match"]) == (number, uri, match)
        assert to_ns(shown["created"]) == 1_700_000_001_500_000_000
        assert peer.call("wamp.subscription.list_subscribers", number) == [[peer.number, other.number]]
        assert peer.call("wamp.subscription.count_subscribers", number) == [2]


def test_lookup() -> None:
    """W47, WD2: `lookup` returns the id or null; `match` is in a second argument or a keyword."""
    world = World()
    peer = world.joined()
    assert peer.call("wamp.subscription.lookup", "a") == [None]
    exact, prefix = peer.subscribe("a"), peer.subscribe("a", match="prefix")
    assert peer.call("wamp.subscription.lookup", "a") == [exact]
    assert peer.call("wamp.subscription.lookup", "a", {}) == [exact]
    assert peer.call("wamp.subscription.lookup", "a", None) == [exact]
    assert peer.call("wamp.subscription.lookup", "a", {"match": "prefix"}) == [prefix]
    assert peer.call("wamp.subscription.lookup", "a", match="prefix") == [prefix]
    assert peer.call("wamp.subscription.lookup", "a", {"match": "wildcard"}) == [None]


def test_match() -> None:
    """W47, WD10: `match` returns the ids of subscriptions that a topic matches, or null."""
    world = World()
    peer = world.joined()
    assert peer.call("wamp.subscription.match", "a.b") == [None]
    ids = [peer.subscribe("a.b"), peer.subscribe("a", match="prefix"), peer.subscribe(".b", match="wildcard")]
    peer.subscribe("c")
    assert sorted(peer.call("wamp.subscription.match", "a.b")[0]) == sorted(ids)
    assert peer.call("wamp.subscription.match", "a.x") == [[ids[1]]]


def test_what_is_gone() -> None:
    """W47, WD10: an id without subscribers is `no_such_subscription`."""
    peer = World().joined()
    number = peer.subscribe("a")
    peer.say([34, 90, number])
    peer.hear()
    for procedure in ("get", "list_subscribers", "count_subscribers"):
        for each in (number, 77, 2**53):
            error = peer.is_refused_call(f"wamp.subscription.{procedure}", each)
            assert error == "wamp.error.no_such_subscription"


# Meta events of subscriptions, and their order


def test_first_and_last() -> None:
    """W48: on_create is sent before the first on_subscribe, on_delete after the last on_unsubscribe."""
    world = World()
    peer, names = witness(world, *META, *META_ENDS)
    one, other = world.joined(), world.joined()
    number = one.subscribe("a.", match="prefix")
    shown = peer.call("wamp.subscription.get", number)[0]
    other.subscribe("a.", match="prefix")
    one.subscribe("a.", match="prefix")
    for each in (one, other):
        each.say([34, 90, number])
    assert told(peer, names) == [
        ("on_create", [one.number, shown]),
        ("on_subscribe", [one.number, number]),
        ("on_subscribe", [other.number, number]),
        ("on_unsubscribe", [one.number, number]),
        ("on_unsubscribe", [other.number, number]),
        ("on_delete", [other.number, number]),
    ]


@pytest.mark.parametrize("end", ["lost", "goodbye", "abort", "violation", "killed", "slow"])
def test_a_session_that_ends(end: str) -> None:
    """W48, W10, WD3: however a session ends, its meta events are the same, in the same order, on_leave last."""
    world = World()
    peer, names = witness(world, *META_ENDS, "wamp.session.on_leave")
    dying = world.joined()
    ids = [dying.subscribe("a"), dying.subscribe("b")]
    if end == "lost":
        dying.engine.lost(world.now)
    elif end == "killed":
        peer.call("wamp.session.kill", dying.number)
    elif end == "slow":
        dying.engine.paused()
        for _ in range(1_001):
            peer.say([16, 90, {}, "a"], turn=False)
    else:
        dying.say({"goodbye": [6, {}, "a"], "abort": [3, {}, "a"], "violation": []}[end])
    world.turn()
    assert told(peer, names) == [
        *((what, [dying.number, number]) for number in ids for what in ("on_unsubscribe", "on_delete")),
        ("on_leave", [dying.number, dying.welcome["authid"], "anonymous"]),
    ]


def test_nothing_is_told_of_meta_subscriptions() -> None:
    """W48: subscriptions to the router's own topics cause no meta events."""
    world = World()
    peer, _ = witness(world, *META, *META_ENDS)
    other = world.joined()
    for topic, match in (("wamp.session.on_join", "exact"), ("wamp.", "prefix"), ("wamp..on_join", "wildcard")):
        number = other.subscribe(topic, match=match)
        other.say([34, 90, number])
        assert other.hear() == [35, 90]
    assert peer.hears_nothing()


def test_nobody_hears_of_its_own() -> None:
    """W48: a session does not get the meta events of its own subscriptions."""
    world = World()
    peer, _ = witness(world, *META, *META_ENDS)
    peer.subscribe("a")
    peer.say([34, 90, 5])
    assert peer.hear() == [35, 90]
    assert peer.hears_nothing()


def test_realms_are_told_apart() -> None:
    """W48: no procedure and no meta event shows sessions or subscriptions of another realm."""
    world = World(Realm("one"), Realm("two"))
    peer, _ = witness(world, *META, *META_ENDS, *SESSIONS, realm="one")
    other = world.joined("two")
    number = other.subscribe("a")
    assert peer.call("wamp.session.list") == [[peer.number]]
    assert peer.is_refused_call("wamp.session.get", other.number) == "wamp.error.no_such_session"
    assert peer.is_refused_call("wamp.session.kill", other.number) == "wamp.error.no_such_session"
    assert peer.is_refused_call("wamp.subscription.get", number) == "wamp.error.no_such_subscription"
    assert peer.call("wamp.subscription.match", "a") == [None]
    assert peer.call("wamp.session.kill_all") == [0]
    other.engine.lost(world.now)
    world.turn()
    assert peer.hears_nothing()


# Errors

WRONG: dict[str, list[Any]] = {
    "wamp.session.count": [["x", 1], [1], ["a", "b"]],
    "wamp.session.list": [[[1]], [{}]],
    "wamp.session.get": [[], ["1"], [0], [2**53 + 1], [True], [1.5], [1, 2]],
    "wamp.session.kill": [[], ["1"], [0], [-1]],
    "wamp.session.kill_by_authid": [[], [1], [None], ["a", "b"]],
    "wamp.session.kill_by_authrole": [[], [1], [["a"]]],
    "wamp.session.kill_all": [[1]],
    "wamp.session.add_testament": [[], [1], ["a", 1], ["a", [], []], ["a", [], {}, 1]],
    "wamp.subscription.list": [[1]],
    "wamp.subscription.lookup": [[], [1], ["a", 1], ["a", {"match": 1}], ["a", {"match": "regex"}], ["a", {}, 1]],
    "wamp.subscription.match": [[], [1], ["a", "b"]],
    "wamp.subscription.get": [[], ["1"], [0], [True], [1, 2]],
    "wamp.subscription.list_subscribers": [[], ["1"], [1, 2]],
    "wamp.subscription.count_subscribers": [[], ["1"], [1, 2]],
    "wamp.subscription.remove_subscriber": [[], [1], ["1", 1], [1, 2, 3]],
}


@pytest.mark.parametrize(("procedure", "args"), [(name, args) for name, lists in WRONG.items() for args in lists])
def test_wrong_arguments(procedure: str, args: list[Any]) -> None:
    """W47, S30: wrong arguments are `invalid_argument`, with a text, and have no effect."""
    world = World()
    peer, other = world.joined(), world.joined()
    peer.subscribe("a")
    peer.say([48, 90, {}, procedure, args])
    answer = peer.hear()
    assert answer[:5] == [8, 48, 90, {}, "wamp.error.invalid_argument"]
    assert isinstance(answer[5][0], str)
    assert other.closed is None
    assert other.hears_nothing()


@pytest.mark.parametrize("procedure", World().router.handlers.procedures.by_uri)
def test_no_argument_is_ignored(procedure: str) -> None:
    """W47: a positional argument more than a procedure takes is `invalid_argument`, and has no effect."""
    world = World()
    peer, other = world.joined(), world.joined()
    number = peer.subscribe("a")
    _, _, greatest = world.router.handlers.procedures.by_uri[procedure]
    peer.say([48, 90, {}, procedure, [number, other.number, {}, "x", "y"][: greatest + 1]])
    assert peer.hear()[:5] == [8, 48, 90, {}, "wamp.error.invalid_argument"]
    assert other.hears_nothing()


def test_bad_uris() -> None:
    """W47: `lookup` and `match` refuse a malformed topic with `invalid_uri`."""
    peer = World().joined()
    assert peer.is_refused_call("wamp.subscription.lookup", "a..b") == "wamp.error.invalid_uri"
    assert peer.is_refused_call("wamp.subscription.match", "a..b") == "wamp.error.invalid_uri"


@pytest.mark.parametrize("procedure", ["wamp.session.nothing", "wamp.subscription.list_", "com.x", "wamp"])
def test_unknown_procedures(procedure: str) -> None:
    """W3: an unknown procedure is `no_such_procedure`."""
    assert World().joined().is_refused_call(procedure) == "wamp.error.no_such_procedure"


def test_options_of_a_call_are_ignored() -> None:
    """W46: options of a CALL have no effect on the result."""
    peer = World().joined()
    peer.say([48, 1, {"timeout": 5, "receive_progress": True, "disclose_me": "x"}, "wamp.session.count"])
    assert peer.hear() == [50, 1, {}, [1]]


# Killing


def test_kill() -> None:
    """W47, W8: a killed session gets GOODBYE, `wamp.close.killed` if no reason is given, and ends immediately."""
    world = World()
    peer, names = witness(world, "wamp.session.on_leave")
    one, other = world.joined(), world.joined()
    assert peer.call("wamp.session.kill", one.number) == []
    assert one.hear() == [6, {}, "wamp.close.killed"]
    assert peer.call("wamp.session.kill", other.number, reason="com.why", message="because") == []
    assert other.hear() == [6, {"message": "because"}, "com.why"]
    assert [args[0] for _, args in told(peer, names)] == [one.number, other.number]
    assert peer.is_refused_call("wamp.session.kill", one.number) == "wamp.error.no_such_session"
    assert peer.call("wamp.session.count") == [1]


def test_kill_by_who_they_are() -> None:
    """W47: killing by authid returns ids, by authrole or all a number; other sessions stay."""
    world = World()
    killer = world.joined()
    reds = [ranked(world, "red") for _ in range(3)]
    blue = ranked(world, "blue")
    assert killer.call("wamp.session.kill_by_authid", reds[0].welcome["authid"]) == [[reds[0].number]]
    assert killer.call("wamp.session.kill_by_authid", "nobody") == [[]]
    assert killer.call("wamp.session.kill_by_authrole", "red", reason="com.why") == [2]
    assert reds[1].hear() == reds[2].hear() == [6, {}, "com.why"]
    assert blue.hears_nothing()
    assert killer.call("wamp.session.kill_all", message="all of you") == [1]
    assert blue.hear() == [6, {"message": "all of you"}, "wamp.close.killed"]


def test_nobody_kills_itself() -> None:
    """W47, WD10: no procedure kills the session that calls it."""
    peer = World().joined()
    assert peer.is_refused_call("wamp.session.kill", peer.number) == "wamp.error.no_such_session"
    assert peer.call("wamp.session.kill_by_authid", peer.welcome["authid"]) == [[]]
    assert peer.call("wamp.session.kill_by_authrole", "anonymous") == [0]
    assert peer.call("wamp.session.kill_all") == [0]
    assert peer.closed is None


@pytest.mark.parametrize(("kwargs", "error"), [({"reason": "a b"}, "invalid_uri"), ({"reason": 1}, "invalid_argument")])
def test_a_bad_reason(kwargs: dict[str, Any], error: str) -> None:
    """W47: a reason that is not a URI is refused, and no session is killed."""
    world = World()
    peer, other = world.joined(), world.joined()
    for call in (("kill", other.number), ("kill_by_authrole", "anonymous"), ("kill_all",)):
        assert peer.is_refused_call(f"wamp.session.{call[0]}", *call[1:], **kwargs) == f"wamp.error.{error}"
    assert other.hears_nothing()


def test_sessions_that_kill_one_another() -> None:
    """WD10: the first call kills the other session, whose own call is ignored."""
    world = World()
    one, other = world.joined(), world.joined()
    one.say([48, 1, {}, "wamp.session.kill", [other.number]], turn=False)
    other.say([48, 1, {}, "wamp.session.kill", [one.number]], turn=False)
    world.turn()
    assert list(one.heard) == [[50, 1, {}]]
    assert list(other.heard) == [[6, {}, "wamp.close.killed"]]


# Rights

GUARDED = [
    "wamp.session.count",
    "wamp.session.list",
    "wamp.session.get",
    "wamp.session.kill",
    "wamp.session.kill_by_authid",
    "wamp.session.kill_by_authrole",
    "wamp.session.kill_all",
    "wamp.subscription.list",
    "wamp.subscription.match",
    "wamp.subscription.get",
    "wamp.subscription.list_subscribers",
    "wamp.subscription.count_subscribers",
    "wamp.subscription.remove_subscriber",
]


def rules(*granted: tuple[str, str]) -> AccessRules:
    """Rules that allow each of these: a verb, and a name or a pattern that ends with `**`."""
    found = []
    for verb, name in granted:
        above, _, last = name.rpartition("/")
        pattern = Pattern(Match.DESCENDANTS, above) if last == "**" else Pattern(Match.EXACT, name)
        found.append(Rule("*", verb, pattern, allow=True))
    return AccessRules(found)


@pytest.mark.parametrize("procedure", GUARDED)
def test_the_right_to_call(procedure: str) -> None:
    """W47: with access rules a call needs the right `call` on the procedure, which is checked before the arguments."""
    world = World(rights=rules(("subscribe", "**"), ("publish", "**"), ("call", "wamp/other")))
    assert world.joined().is_refused_call(procedure, "wrong") == "wamp.error.not_authorized"
    world = World(rights=rules(("call", procedure.replace(".", "/"))))
    world.joined().say([48, 1, {}, procedure, ["wrong"]])
    assert world.router.refused["wamp.error.not_authorized"] == 0


def test_what_needs_no_right_to_call() -> None:
    """W41: history, look-up and testaments need the right to subscribe or publish instead of `call`."""
    world = World(rights=rules(("subscribe", "a"), ("publish", "b")))
    peer = world.joined()
    number = peer.subscribe("a")
    assert peer.call("wamp.subscription.lookup", "a") == [number]
    assert peer.is_refused_call("wamp.subscription.lookup", "b") == "wamp.error.not_authorized"
    assert peer.is_refused_call("wamp.subscription.get_events", number) == "wamp.error.history_unavailable"
    assert peer.call("wamp.session.add_testament", "b", [], {}) == []
    assert peer.is_refused_call("wamp.session.add_testament", "a", [], {}) == "wamp.error.not_authorized"
    assert peer.call("wamp.session.flush_testaments") == []


def test_rules_for_meta_topics() -> None:
    """A rule for `/wamp/...` applies to the router's own topics of its realm only, as other rules do."""
    world = World(Realm("one"), Realm("two"), rights=rules(("subscribe", "wamp/session/**")))
    peer = world.joined("one")
    peer.subscribe("wamp.session.on_join")
    error = peer.is_refused([32, 90, {}, "wamp.subscription.on_create"])
    assert error == "wamp.error.not_authorized"
    stranger = world.joined("two")
    assert stranger.is_refused([32, 1, {}, "wamp.session.on_join"]) == "wamp.error.not_authorized"


SECRET = Rule("guest", "subscribe", Pattern(Match.DESCENDANTS, "secret"), allow=False)
OPEN = [Rule("*", "*", Pattern(Match.DESCENDANTS, above), allow=True) for above in ("", "wamp")]


@pytest.mark.parametrize("match", ["exact", "prefix", "wildcard"])
def test_meta_events_are_for_who_may_subscribe(match: str) -> None:
    """W48: an event about a subscription is sent to those who may subscribe to the same, for every end of it too."""
    world = World(rights=AccessRules([SECRET, *OPEN]))
    (guest, names), (friend, _) = (witness(world, *META, *META_ENDS, *SESSIONS) for _ in range(2))
    for peer, role in ((guest, "guest"), (friend, "friend")):
        peer.heard.clear()
        assert peer.engine.session is not None
        peer.engine.session.role = role
    one = ranked(world, "friend")
    secret = one.subscribe({"exact": "secret.a", "prefix": "secret.", "wildcard": "secret."}[match], match=match)
    public = one.subscribe("public.a")
    (shown,) = one.call("wamp.subscription.get", public)
    one.say([34, 90, secret])
    assert one.hear() == [35, 90]
    one.subscribe("secret.b")
    one.engine.lost(world.now)
    world.turn()
    assert told(guest, names)[1:] == [
        ("on_create", [one.number, shown]),
        ("on_subscribe", [one.number, public]),
        ("on_unsubscribe", [one.number, public]),
        ("on_delete", [one.number, public]),
        ("on_leave", [one.number, one.welcome["authid"], "anonymous"]),
    ]
    of_secret = [args for name, args in told(friend, names) if name in ("on_subscribe", "on_unsubscribe")]
    assert len(of_secret) == 6


@pytest.mark.parametrize("match", ["exact", "prefix", "wildcard"])
def test_procedures_tell_of_what_one_may_subscribe_to(match: str) -> None:
    """W47: to who may not subscribe to a topic or pattern, a subscription to it does not exist."""
    world = World(rights=AccessRules([SECRET, *OPEN]))
    friend, guest = ranked(world, "friend"), ranked(world, "guest")
    uri = {"exact": "secret.a", "prefix": "secret", "wildcard": ".a"}[match]
    secret, public = friend.subscribe(uri, match=match), friend.subscribe("public.a")
    for peer, ids in ((friend, [secret]), (guest, [])):
        (listed,) = peer.call("wamp.subscription.list")
        assert listed["exact"] == ([secret, public] if ids and match == "exact" else [public])
        assert match == "exact" or listed[match] == ids
        assert peer.call("wamp.subscription.match", "secret.a") == [ids or None]
    for procedure, more in (
        ("get", ()),
        ("list_subscribers", ()),
        ("count_subscribers", ()),
        ("remove_subscriber", (friend.number,)),
    ):
        error = guest.is_refused_call(f"wamp.subscription.{procedure}", secret, *more)
        assert error == "wamp.error.no_such_subscription"
    assert guest.is_refused_call("wamp.subscription.lookup", uri, match=match) == "wamp.error.not_authorized"
    assert friend.call("wamp.subscription.count_subscribers", secret) == [1]


def test_without_rules_only_loopback_may_call() -> None:
    """Without access rules only clients on the same machine may call `kill_all`."""
    assert World().joined().call("wamp.session.kill_all") == [0]
    world = World(rights=DefaultRules(loopback=False, anonymous_publish=True))
    assert world.joined().is_refused_call("wamp.session.kill_all") == "wamp.error.not_authorized"


def test_replies_of_one_turn_are_bounded() -> None:
    """S27: calls whose replies exceed the limit of one turn are `unavailable`, and the session continues."""
    world = World(options=Wamp(subscriptions=1_000))
    world.broker.limits = type(world.broker.limits)(queue_bytes=20_000)
    peer = world.joined()
    for number in range(500):
        peer.subscribe(f"a{number}")
    for number in range(1_001, 1_101):
        peer.say([48, number, {}, "wamp.subscription.list"], turn=False)
    world.turn()
    answers = [answer[0] for answer in peer.heard]
    assert len(answers) == 100
    assert 5 <= answers.count(50) <= 15
    assert {answer[4] for answer in peer.heard if answer[0] == 8} == {"wamp.error.unavailable"}
    peer.heard.clear()
    peer.call("wamp.subscription.list")
