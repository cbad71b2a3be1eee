"""The forms of all that nodes of different versions of Halley send each other and save, against `golden.py`."""

from __future__ import annotations

import orjson
import pytest
from cluster.golden import ASKED, FORGETS, FRAMES, HEARTBEAT, PAGE, QUERY, ROW, STATE, VALUE, VALUES, sealed

from halley.broker.ports import Page
from halley.cluster import pages
from halley.cluster.applied import AnotherVersion, StreamState
from halley.cluster.consistency import StateHistory
from halley.cluster.exchange import question
from halley.cluster.frames import BadFrame, KeeperDismissal, LaterVersion, pack, unpack
from halley.cluster.keeper_client import KeeperState, LivingKeeper
from halley.cluster.members import Members, id_of
from halley.cluster.requests import RequestRefused
from halley.cluster.stream import CannotJoin, describe, description_of
from halley.history.folder import Identity
from halley.history.stored import Stored, event_of
from halley.host.relay import NODE, _bytes_of
from halley.host.relayed import NodeAuthentication
from halley.nats.jetstream import Connection
from halley.settings import Cluster, Settings
from halley.transports.head import Head
from halley.transports.relay import RelayedRequest


@pytest.mark.parametrize(
    ("data", "frame"),
    [
        *FRAMES,
        (VALUE, ("n1-0123456789ab", 0, VALUES, None)),
        (FORGETS, ("forget-0123456789ab", 1, [], KeeperDismissal("n1"))),
    ],
)
def test_frames(data, frame):
    assert pack(*frame) == data
    found = unpack(data)
    assert (found.run, found.number, found.rows, found.control) == frame


def test_frames_of_later_versions():
    """What is added to the control is passed over; a later version is recognized as one, whatever its columns are."""
    head = orjson.loads(FRAMES[0][0].partition(b"\n")[0])
    payloads = FRAMES[0][0].partition(b"\n")[2][:-8]
    found = unpack(sealed([*head[:-1], {"later": 1}], payloads))
    assert (found.rows, found.control) == (FRAMES[0][1][2], None)
    assert (
        unpack(sealed([1, "a", 1, [], [], [], [], [], {}, None, {"later": 1, "keeps": "n1"}], b"")).control
        == FRAMES[1][1][3]
    )
    with pytest.raises(LaterVersion):
        unpack(sealed([4, {"other": "columns"}]))
    for other in (0, None, "2"):
        with pytest.raises(BadFrame) as raised:
            unpack(sealed([other, *head[1:]], payloads))
        assert raised.type is BadFrame


def test_what_is_made_of_frames_and_saved():
    """All nodes must come to the same state, digit for digit, and compare a digest of it."""
    applied, digests = StreamState(10, 10**9), StateHistory()
    applied.begin("0123456789abcdef", 40, 1_799_999_999_000_000, 2, [])
    for sequence, (data, _) in enumerate(FRAMES, 1):
        applied.apply(sequence, 1_800_000_000_000_000 + sequence, unpack(data))
    digests.note(applied)
    assert digests.of(5) == "44-1800000000000004-7f4df704"
    assert orjson.dumps(applied.saved()) == STATE
    again = StreamState(10, 10**9)
    again.restore({**orjson.loads(STATE), "later": [1]})
    assert again.saved() == applied.saved()
    with pytest.raises(AnotherVersion):
        again.restore({**orjson.loads(STATE), "version": 4})


def test_heartbeats():
    """What other nodes send once a second, with what a later version may add."""
    options = Cluster(node="n2")
    members = Members(Connection(options), 0.0)
    told = orjson.loads(HEARTBEAT)
    told["later"], told["kept"]["later"] = {"a": 1}, [1]
    members.receive(orjson.dumps(told), 10.0)
    (member,) = members.others()
    assert (member.name, member.id, member.key) == ("n1", id_of("n1"), told["key"])
    assert LivingKeeper.of(member) == LivingKeeper("n1", 44, [1, 7], True, 8192, {"lake": 12}, 10.0)
    members.receive(b'{"node":"n1","left":true,"later":1}', 11.0)
    assert members.others() == []


def test_questions():
    assert question("n1", "settings", None) == b'{"node":"n1","news":[["settings",null]]}'
    assert question("n1", "settings", None, "n2") == b'{"node":"n1","news":[["settings",null]],"to":"n2"}'


def test_questions_to_keepers():
    """A keeper refuses what it would answer wrongly, since it does not know what is asked for."""
    assert orjson.dumps(pages.query_to_json(QUERY)) == ASKED
    told = orjson.loads(ASKED)
    assert pages.query_from_json(told) == QUERY
    assert pages.query_from_json({**told, "later": None, "much_later": False}) == QUERY
    with pytest.raises(ValueError, match="another version"):
        pages.query_from_json({**told, "later": "x"})
    del told["until_publication"], told["first"]
    assert pages.query_from_json(told) == QUERY


def test_answers_of_keepers():
    """Later versions may add to them."""
    row = Stored(*orjson.loads(ROW))
    assert row.is_intact
    page = Page([event_of(row)], 9, False, [(4, 5)], False, 77)
    assert pages.pack(page, [1, 7]) == PAGE
    starts, plain, rows = orjson.loads(PAGE)
    assert pages.unpack(orjson.dumps([starts, plain, []]))[0].events == []
    found, found_starts = pages.unpack(orjson.dumps([starts, [*plain, 1], rows, {"later": 1}]))
    assert (pages.pack(found, found_starts), found.gaps) == (PAGE, [(4, 5)])
    state = (
        b'{"node":"n1","log_id":"a","publication_key":"9007199254740993","first":1,"applied":%b,"erased":5,"later":1}'
    )
    found_state = KeeperState.of(state % STATE)
    assert found_state == KeeperState("n1", "a", 9_007_199_254_740_993, 1, orjson.loads(STATE), 5)
    with pytest.raises(RequestRefused):
        KeeperState.of(b"{}")


def test_the_description_of_the_stream():
    identity = Identity.new()
    described = describe(Settings(), identity, 40)
    assert [*described] == ["halley", "stream", "base", "log_id", "publication_key", "settled_by", "keys", "key_age_s"]
    assert (described["halley"], described["publication_key"]) == (1, str(identity.publication_key))
    config = {"name": "halley", "description": orjson.dumps({**described, "later": 1}).decode()}
    assert description_of({"config": config}) == {**described, "later": 1}
    config["description"] = orjson.dumps({**described, "halley": 2}).decode()
    with pytest.raises(CannotJoin, match="not one of this version"):
        description_of({"config": config})


def test_the_head_of_a_request_that_is_passed_on():
    options = Cluster(node="n2")
    members = Members(Connection(options), 0.0)
    members.receive(HEARTBEAT, 10.0)
    (member,) = members.others()
    head = Head("POST", "/bayeux", b"", {b"content-type": b"application/json"}, "10.0.0.7", "https")
    proof = f"{member.key} {member.id} https 10.0.0.7".encode()
    request = RelayedRequest(b"/bayeux", head, b"[]", None, is_poll=False)
    assert _bytes_of(request, member) == (
        b"POST /bayeux HTTP/1.1\r\n%b: %b\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n[]"
        % (NODE, proof)
    )
    assert NodeAuthentication(member.key, member.id, 1.0).check([proof + b" later"]) == ("10.0.0.7", "https")
