"""How long an answer is: it ends at `bayeux.answer_bytes`, the rest comes with the next connect at once, in order."""

import json

import pytest
from support.bayeux import House

from halley.broker.events import Event
from halley.protocols.bayeux.names import to_topic
from halley.protocols.bayeux.outcomes import Transport
from halley.transports import callback_polling

MOST = 524_288
CHANNEL = f"/{'c' * 110}/{'d' * 110}"


@pytest.fixture
def peer(house):
    """A client that has subscribed to a channel with a long name."""
    return joined(house)


def joined(house, **wishes):
    peer = house.join(**wishes)
    peer.subscribe(CHANNEL)
    return peer


def fill(house, count, nbytes=900, char="x"):
    """Publish events of `nbytes` characters; each begins with its number."""
    for number in range(count):
        house.publish(CHANNEL, f"{number:04}".ljust(nbytes, char))


def numbers(exchange):
    return [int(data[:4]) for _, data in exchange.events]


def body_bytes(exchange):
    """The length of an answer as it is written, over JSONP too."""
    reply = exchange.reply
    if exchange.peer.transport is Transport.CALLBACK_POLLING:
        return len(callback_polling.render(reply, "cb"))
    return len(reply.body())


def answers_until_held(peer, ack=None):
    """Connect until a connect is held; return the answers before that."""
    answers = []
    while len(answers) < 100:
        more = {} if ack is None else {"ext": {"ack": ack}}
        exchange = peer.connect(**more)
        if exchange.is_held:
            return answers
        if ack is not None:
            ack = exchange.replies[0]["ext"]["ack"]
        answers.append(exchange)
    raise AssertionError(answers[-1].messages)


def check(answers, count):
    """Check that answers are as long as they may be, but no longer, and have all events in their order."""
    assert len(answers) > 1
    assert all(body_bytes(each) <= MOST for each in answers)
    longest = max(len(json.dumps(message)) for message in answers[0].messages)
    assert all(body_bytes(each) > MOST - 7 * longest - 2_000 for each in answers[:-1])
    assert [number for each in answers for number in numbers(each)] == list(range(count))


@pytest.mark.parametrize("transport", [Transport.LONG_POLLING, Transport.CALLBACK_POLLING])
@pytest.mark.parametrize(("char", "ack"), [("x", True), ("x", False), ("<", False), ("\u2028", True), ('"', False)])
def test_an_answer_ends_at_half_a_mebibyte(house, transport, char, ack):
    """CometD's Java client gives up at an answer of 1 MiB; what counts are the bytes as they are written."""
    peer = joined(house, transport=transport, ext={"ack": True} if ack else None)
    fill(house, 1_000, nbytes=900 if char in "x<" else 300, char=char)
    answers = answers_until_held(peer, ack=1 if ack else None)
    check(answers, 1_000)
    assert house.broker.flows["bayeux"].delivered == 1_000


def test_a_hold_ends_with_a_part_and_the_next_connect_is_answered_at_once(house, peer):
    """Events that are published in one turn are too many for the answer to a held connect, too."""
    held = peer.connect()
    fill_at_once(house, 1_000)
    answers = [held, *answers_until_held(peer)]
    check(answers, 1_000)


def fill_at_once(house, count):
    for number in range(count):
        event = Event(to_topic(CHANNEL, house.engine.bounds), f'"{number:04}'.ljust(900, "x").encode() + b'"')
        house.broker.publish(event, house.now)
    house.turn()


def test_an_event_that_is_larger_alone_comes_alone():
    """Else it would never come."""
    house = House(answer_bytes=1_000)
    peer = joined(house)
    fill(house, 3, nbytes=3_000)
    assert [numbers(each) for each in answers_until_held(peer)] == [[0], [1], [2]]


def test_with_acknowledgements_too():
    """An event is added to those that are not acknowledged only if all of them fit."""
    house = House(answer_bytes=1_000)
    peer = joined(house, ext={"ack": True})
    fill(house, 3, nbytes=3_000)
    first = peer.connect(ext={"ack": 1})
    again = peer.connect(ext={"ack": 1})
    assert numbers(first) == numbers(again) == [0]
    assert peer.connect(ext={"ack": 1}).events == first.events
    second = peer.connect(ext={"ack": again.replies[0]["ext"]["ack"] + 1})
    assert numbers(second) == [1]


def test_a_batch_that_is_not_acknowledged_is_sent_again_as_it_was(house):
    """It never grows beyond an answer, whatever is published meanwhile; its latest number frees all of it."""
    peer = joined(house, ext={"ack": True})
    fill(house, 900)
    first = peer.connect(ext={"ack": 1})
    for number in range(900, 910):
        house.publish(CHANNEL, f"{number:04}".ljust(900, "x"))
        again = peer.connect(ext={"ack": 1})
        assert body_bytes(again) <= MOST
        assert again.events == first.events
    rest = answers_until_held(peer, ack=again.replies[0]["ext"]["ack"])
    check([first, *rest], 910)
    assert peer.session.outbox.nbytes == 0


def test_newer_events_join_a_batch_that_has_room(house):
    """As before, what is not acknowledged comes first, and both have one number."""
    peer = joined(house, ext={"ack": True})
    fill(house, 3)
    peer.connect(ext={"ack": 1})
    house.publish(CHANNEL, "0003")
    assert numbers(peer.connect(ext={"ack": 1})) == [0, 1, 2, 3]


def test_a_part_that_was_not_written_comes_again_before_the_rest(house, peer):
    """The order is that of the publishes, whatever is lost."""
    fill(house, 1_000)
    peer.connect(stalled=True).unwritten()
    check(answers_until_held(peer), 1_000)


def test_the_reply_to_a_publish_carries_no_more(house, peer):
    """The rest comes with the poll that is held, as soon as the reply has been written."""
    fill(house, 990)
    sent = peer.publish(CHANNEL, "0990", stalled=True)
    held = peer.connect()
    assert body_bytes(sent) <= MOST
    assert held.is_held
    sent.written()
    check([sent, held, *answers_until_held(peer)], 991)


@pytest.mark.parametrize("with_connect", [False, True])
def test_the_replies_of_a_batch_count(house, peer, with_connect):
    """A thousand replies are a large part of an answer themselves."""
    messages = [peer.message(CHANNEL) | {"data": f"{number:04}".ljust(800, "x")} for number in range(900)]
    connect = [peer.poll()] if with_connect else []
    batch = peer.send(*connect, *messages)
    check([batch, *answers_until_held(peer)], 900)


def test_timestamps_count():
    """The extension adds to each event when it is written."""
    house = House(timestamp=True)
    peer = joined(house)
    fill(house, 900, nbytes=400)
    check(answers_until_held(peer), 900)


@pytest.mark.parametrize("tail_bytes", [0, 1_048_576])
@pytest.mark.parametrize("names", [1, 100])
def test_what_is_replayed_and_the_positions_count(tail_bytes, names):
    """A page of the history is longer as it is written; and what is left of one comes before the next page."""
    house = House(history={"tail_bytes": tail_bytes})
    peer = house.join()
    wanted = [CHANNEL, *(f"/{number:03}/{'e' * 240}" for number in range(names - 1))]
    messages = [{"channel": CHANNEL, "data": {"text": f"{number:04}".ljust(900, "x")}} for number in range(1_000)]
    house.send(*messages)
    house.log.commit(now=house.now)
    house.turn()
    peer.subscribe(*wanted, ext={"replay": dict.fromkeys(wanted, -2)})
    answers, texts = [], []
    while not (answered := served(peer.connect())).is_held:
        answers.append(answered)
        texts += [int(data["text"][:4]) for _, data in answered.events]
        reached = answered.replies[0]["ext"]["replay"][CHANNEL]
        assert reached == len(texts)
    assert texts == list(range(1_000))
    assert all(body_bytes(each) <= MOST for each in answers)


def served(exchange):
    """Give a connect the pages that it waits for."""
    while exchange.is_waiting:
        exchange.resume(exchange.house.log.page(exchange.wait.awaitable.query))
    return exchange


def test_the_last_answer_of_a_session_carries_all():
    """No other follows it."""
    house = House(answer_bytes=1_000)
    peer = joined(house)
    held = peer.connect()
    peer.session.open_batches = 1
    fill(house, 5)
    house.dismiss(peer)
    assert numbers(held) == list(range(5))
