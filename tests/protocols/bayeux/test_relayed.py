"""Requests of a WebSocket that another node of a cluster answers: their order, bounds and deadlines, by calls."""

from __future__ import annotations

import json

import pytest
from support.bayeux import House
from support.bayeux_sockets import SOCKET_HANDSHAKE, SocketPeer, socket_connect
from support.messages import publish, subscribe

from halley.protocols.bayeux.socket import Sockets
from halley.protocols.contract import Close

OTHER = "another" + "0" * 33
"""The id of a session of another node."""

HELLO_S = 10


class Passed:
    """A request that was passed on to the other node, which the test is."""

    def __init__(self, shore, text, done):
        self.messages = json.loads(text)
        self.id = self.messages[0]["id"]
        self.settled = None
        self._shore = shore
        self._done = done

    def settle(self, is_written):
        assert self.settled is None
        self.settled = is_written

    def answer(self, *messages):
        """Answer it; without messages by a reply that it has succeeded."""
        messages = messages or ({"id": self.id, "successful": True},)
        self.end(json.dumps(messages, separators=(",", ":")).encode())

    def end(self, outcome):
        """End it with that outcome."""
        self._done(outcome, self._shore.house.now)
        self._shore.house.turn()


class Shore:
    """A node, a client's WebSocket, and what was passed on; `refusal` is what becomes of further requests."""

    def __init__(self, **options):
        self.house = House(node_of=lambda client_id, _: client_id[:7] if client_id == OTHER else None, **options)
        self.sockets = Sockets(self.house.engine, lambda *_: None)
        self.sockets.relay = self._relay
        self.passed = []
        self.refusal = None
        self.peer = SocketPeer(self.house, self.sockets)

    def _relay(self, misdirected, text, done):
        assert misdirected.node == "another"
        if self.refusal is not None:
            return self.refusal
        self.passed.append(Passed(self, text, done))
        return self.passed[-1].settle

    def connect(self, message_id):
        """Send a connect; return it as it is passed on."""
        self.peer.say(socket_connect(OTHER, id=message_id))
        return self.passed[-1]

    def publish(self, *message_ids):
        """Send publishes, each in a frame of its own."""
        for message_id in message_ids:
            self.peer.say(publish("/a", 1, clientId=OTHER, id=message_id))

    @property
    def ids(self):
        """The ids of the requests that were passed on."""
        return [each.id for each in self.passed]

    def sweep_after(self, seconds):
        """Let time pass, and close WebSockets without a session."""
        self.house.pass_time(seconds)
        self.sockets.sweep(self.house.now)


@pytest.fixture
def shore():
    return Shore()


def test_each_request_waits_for_the_one_before_but_not_for_a_connect(shore):
    held = shore.connect("held")
    shore.publish("1", "2", "3")
    assert shore.ids == ["held", "1"]
    for number in range(3):
        shore.passed[-1].answer()
        assert shore.ids == ["held", *"123"[: number + 2]]
    assert [each["id"] for each in shore.peer.take()] == ["1", "2", "3"]
    held.answer()
    assert [each["id"] for each in shore.peer.take()] == ["held"]
    assert [each.settled for each in shore.passed] == [True] * 4


def test_own_requests_wait_for_those_of_another_node(shore):
    """What a client sends is handled in its order."""
    shore.publish("1")
    shore.peer.say(publish("/a", 1, id="own"))
    assert shore.peer.take() == []
    shore.passed[0].answer()
    assert [each["id"] for each in shore.peer.take()] == ["1", "own"]


def test_two_requests_of_a_connection_are_passed_on_at_a_time(shore):
    """A newer connect, which ends the older one at its node, and not a third; what waits is bounded in bytes."""
    older, newer = shore.connect("older"), shore.connect("newer")
    shore.connect("newest")
    assert shore.ids == ["older", "newer"]
    older.answer()
    assert shore.ids == ["older", "newer", "newest"]
    bounded = Shore(limits={"queue_bytes": 4_096})
    bounded.publish(*map(str, range(100)))
    assert (len(bounded.passed), bounded.peer.link.closed.code) == (1, 1008)
    assert bounded.passed[0].settled is False
    assert newer.settled is None


def test_the_next_request_waits_until_the_kernel_has_all_of_an_answer(shore):
    """Else the other node would cut the connection of that answer because of the newer connect."""
    first = shore.connect("1")
    shore.peer.stall()
    first.answer()
    shore.connect("2")
    assert (first.settled, shore.ids) == (None, ["1"])
    shore.peer.read_on()
    assert (first.settled, shore.ids) == (True, ["1", "2"])
    assert [each["id"] for each in shore.peer.take()] == ["1"]


def test_a_lost_connection_takes_back_what_was_passed_on(shore):
    """An answer that waits for the kernel, one that came while that took nothing, and what is not answered."""
    shore.peer.stall()
    held = shore.connect("held")
    shore.publish("1")
    shore.passed[1].answer()
    held.answer()
    shore.peer.cut()
    assert [each.settled for each in shore.passed] == [False, False]
    held.end(Close([], 1006, "relay_lost"))
    assert shore.peer.link.closed is None
    assert not shore.sockets.open


def test_bw40_a_connection_has_a_session_while_its_requests_succeed_or_are_held(shore):
    """BW40: a refused one is no sign of a session."""
    held = shore.connect("held")
    shore.sweep_after(3 * HELLO_S)
    assert shore.peer.link.closed is None
    held.answer()
    shore.sweep_after(HELLO_S - 1)
    shore.connect("next").answer()
    shore.sweep_after(HELLO_S - 1)
    shore.connect("refused").answer({"id": "refused", "successful": False, "error": "402::session_unknown"})
    assert shore.peer.link.closed is None
    shore.sweep_after(1)
    assert (shore.peer.link.closed.code, shore.peer.link.closed.reason) == (1008, "no session")


def test_a_request_of_a_node_that_is_gone_is_refused_and_the_client_can_handshake(shore):
    held = shore.connect("held")
    shore.publish("1")
    held.end(None)
    shore.passed[1].end(None)
    assert [(each["id"], each["error"][:3]) for each in shore.peer.take()] == [("held", "402"), ("1", "402")]
    shore.peer.say(SOCKET_HANDSHAKE)
    (reply,) = shore.peer.take()
    shore.peer.say(subscribe(reply["clientId"], "/a"))
    assert shore.peer.take()[0]["successful"]


@pytest.mark.parametrize("is_late", [False, True])
def test_a_request_that_cannot_be_passed_on_ends_the_connection(shore, is_late):
    """At once or later; answers before it are written."""
    close = Close([], 1013, "the node of this session cannot be reached")
    held = shore.connect("held")
    if is_late:
        shore.publish("1")
        shore.passed[1].end(close)
    else:
        shore.refusal = close
        shore.publish("1")
    assert shore.peer.link.closed == close
    assert held.settled is False
