"""What differs among nodes, without any network: settings, versions, and what became of the stream."""

from types import SimpleNamespace

import pytest

from halley.cluster.applied import StreamState
from halley.cluster.consistency import SETTLED_S, FrameVersion, StateHistory, differences, digests
from halley.cluster.frames import KeeperAnnouncement, Row, SharedFields, pack, unpack
from halley.cluster.members import Member, id_of
from halley.cluster.membership import _check_rules
from halley.settings import Access, Bayeux, Realm, Record, Settings, Token

KIND = SharedFields("bayeux", "json", None, None, None, None)


def member(name, **facts):
    return Member(name, id_of(name), {"version": "1", **facts}, 0.0)


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"record": (Record("/a"),)}, ["record"]),
        ({"access": (Access("*", "*", "/a"),)}, ["access"]),
        ({"realm": (Realm("one"),)}, ["realm"]),
        ({"bayeux": Bayeux(paths=("/rt",))}, ["bayeux.paths"]),
        ({"bayeux": Bayeux(hold_s=1), "tokens": (Token("a", "b", "c"),), "port": 1}, []),
    ],
)
def test_only_settings_that_should_be_alike_are_compared(settings, what):
    """Neither those that nodes have each for themselves, nor secrets."""
    one, two = digests(Settings()), digests(Settings(**settings))
    assert [name for name in one if one[name] != two[name]] == what
    assert [each["what"] for each in differences([member("a", settings=one), member("b", settings=two)], set())] == what


def test_nodes_that_are_alike_are_in_one_group():
    nodes = [member("a", version="2"), member("b"), member("c"), member("d", version="3")]
    assert differences(nodes, set()) == [{"what": "version", "nodes": [["b", "c"], ["a"], ["d"]]}]
    assert differences(nodes[1:3], set()) == []
    assert differences(nodes[1:3], {"c"}) == [{"what": "stream", "nodes": [["b"], ["c"]]}]
    logs = [member("a"), member("b", log_id="1"), member("c", log_id="1"), member("d", log_id="2")]
    assert differences(logs[:3], set()) == [], "an earlier version does not send it"
    assert differences(logs, set()) == [{"what": "log_id", "nodes": [["b", "c"], ["d"]]}]


@pytest.mark.parametrize("facts", [{"settings": 1}, {"settings": {"record": [1]}, "version": None}, {"settings": []}])
def test_a_node_may_send_anything(facts):
    """It differs, and nothing fails."""
    own = member("a", settings=digests(Settings()))
    assert all(each["nodes"][0] for each in differences([own, member("b", **facts)], set()))
    assert StateHistory().deviating([member("b", **facts)]) == set()


def test_a_version_of_frames_is_written_when_all_nodes_have_known_it_for_a_while():
    """Also those that keep the history and are away, and whatever a node may send; and where the stream has it."""
    applied = StreamState(100, 10**9)
    applied.apply(1, 1, unpack(pack("a", 1, [], KeeperAnnouncement("a"))))
    applied.apply(2, 2, unpack(pack("b", 1, [], KeeperAnnouncement("b"))))
    version = FrameVersion(applied, "a")
    newer, older = member("b", frames=3), member("c", frames=2)
    now = 100.0
    for others in ([], [newer, older], [older], [newer, member("c", frames="3")], [member("b")]):
        for _ in range(3):
            now += SETTLED_S
            assert version.agreed_version(others, now) == 1
    assert version.agreed_version([newer], now) == 1
    assert version.agreed_version([newer], now + SETTLED_S - 1) == 1
    assert version.agreed_version([newer, older], now + SETTLED_S) == 1, "it begins again"
    assert version.agreed_version([newer], now + SETTLED_S) == 1
    assert version.agreed_version([newer, member("c", frames=4)], now + 2 * SETTLED_S + 1) == 3
    assert version.agreed_version([older], now + 2 * SETTLED_S + 2) == 1
    for later in (2, 3):
        applied.apply(1 + later, 1 + later, unpack(pack("b", later, [], None, later)))
        assert version.agreed_version([older], now) == later


def applied(state, applied, *payloads):
    """Apply a frame of one event for each payload."""
    for payload in payloads:
        number = applied.sequence + 1
        applied.apply(number, number * 1_000, unpack(pack("run", number, [Row("chat/room", payload, KIND)])))
        state.note(applied)
    return applied


def test_a_node_that_made_something_else_of_the_stream_is_odd():
    """Also if it is not as far as this one, until it is seen to be right, or is gone."""
    state, own = StateHistory(), StreamState(10, 10)
    other_state, other = StateHistory(), StreamState(10, 10)
    applied(state, own, b"1", b"2", b"3", b"4")

    def facts():
        return {"sequence": other.sequence, "state": other_state.of(other.sequence)}

    assert state.deviating([member("b", **facts())]) == set()
    applied(other_state, other, b"1")
    assert state.deviating([member("b", **facts())]) == set()
    applied(other_state, other, b"TWO")
    assert state.deviating([member("b", **facts())]) == {"b"}
    applied(other_state, other, b"3", b"4", b"5")
    assert state.deviating([member("b", **facts())]) == {"b"}  # what this node has not seen says nothing
    assert state.deviating([]) == set()


def test_a_node_is_odd_itself_where_most_others_have_made_something_else():
    """Of two nodes nobody knows which is right."""
    made = StateHistory()
    applied(made, StreamState(10, 10), b"1")
    same, other = {"sequence": 1, "state": made.of(1)}, {"sequence": 1, "state": "2-1000-00000000"}
    for facts, is_odd in [
        ([], False),
        ([other], False),
        ([other, same], False),
        ([other, other], True),
        ([other, other, same], False),
        ([other, other, other, same], True),
        ([other, other, {}], False),
    ]:
        state = StateHistory()
        applied(state, StreamState(10, 10), b"1")
        nodes = [member(str(number), **each) for number, each in enumerate(facts)]
        assert state.is_outvoted(nodes) == is_odd, facts


@pytest.mark.parametrize("answer", [None, b"", b"[]", b'{"node":"b"}', b'{"node":"b","body":{"later":"0123"}}'])
async def test_a_foreign_answer_stops_no_node(answer):
    """A stranger may answer when a node asks the others for their rules, or nobody does."""
    asked = []

    async def first_answer(subject, data):
        asked.append(subject)
        return answer

    await _check_rules(SimpleNamespace(first_answer=first_answer), Settings())
    assert asked == ["halley.q"]
