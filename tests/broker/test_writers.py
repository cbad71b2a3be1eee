"""How much of a log that is nearly full an anonymous address may write, and who may write as ever."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from halley.broker.broker import Broker
from halley.broker.errors import LogShareReached
from halley.broker.events import Event
from halley.broker.ports import Durability
from halley.settings import History, Limits
from tests.support.broker import join
from tests.support.memory_log import MemoryLog

if TYPE_CHECKING:
    from collections.abc import Iterable

    from halley.broker.sessions import Session

MAX_BYTES, BURST_BYTES = 10_000_000, 100_000
OPTIONS = replace(History(), max_bytes=MAX_BYTES, anonymous_burst_bytes=BURST_BYTES, segment_bytes=1_000_000)
EVENT_BYTES = 10_000
"""Of each event on disk, about."""


class Request:
    """A request without a session, as the broker sees it."""

    def __init__(self, address: str) -> None:
        self.address = address


class House:
    """A broker with a log, its clients, and the size of the log as its folder would say it."""

    def __init__(self, options: History = OPTIONS, *, has_rules: bool = True) -> None:
        self.broker = Broker(
            Limits(),
            options,
            account_of=lambda address: None if address in ("", "exempt") else address,
            has_rules=lambda: has_rules,
        )
        self.log = MemoryLog(self.broker)
        self.now = 100.0

    def fill(self, share: float = 0.95, first: int = 1) -> None:
        """Say that so much of the log is used."""
        self.broker.commits.measured(int(share * MAX_BYTES), first, self.now)

    def client(self, name: str, account: str | None, authid: str | None = None) -> Session:
        """A client with a session, from an address."""
        session = join(self.broker, name)
        session.account, session.authid = account, authid
        return session

    def publish(self, by: Session | str, count: int = 1, topic: str = "a") -> int:
        """Publish by a session, or without one from an address; how many were taken before one was refused."""
        for number in range(count):
            event = Event(topic, b"1" * (EVENT_BYTES - 151))
            source: object = by
            if isinstance(by, str):
                source = Request(by)
            else:
                event.publisher, event.authid = by.id, by.authid
            try:
                self.broker.publish(event, self.now, source=source)
            except LogShareReached:
                return number
            self.log.commit(now=self.now)
        return count


def mixed() -> House:
    """A house in whose log are events of two."""
    house = House()
    house.publish(house.client("member", "1.1.1.1", "ann"))
    house.publish(house.client("stranger", "6.6.6.6"))
    return house


def test_a_stranger_writes_its_share_while_the_log_is_nearly_full() -> None:
    """A burst, and then a quarter of the log in an hour; the address has one share, by sessions and without."""
    house = mixed()
    stranger = house.broker.sessions["stranger"]
    assert house.publish(stranger, 50) == 50, "there is room"
    house.fill()
    assert house.publish(stranger, 50) == BURST_BYTES // EVENT_BYTES
    assert house.publish("6.6.6.6") == house.publish(house.client("other", "6.6.6.6")) == 0
    house.now += 3_600
    taken = 0
    for _ in range(3_600):
        taken += house.publish(stranger, 100)
        house.now += 1
    assert 0.99 < taken * EVENT_BYTES / (MAX_BYTES / 4 + BURST_BYTES) < 1.01
    assert house.broker.hits["anonymous_share"] > 3_000


@pytest.mark.parametrize(
    ("account", "authid"), [("7.7.7.7", None), ("6.6.6.6", "bob"), (None, None)], ids=["other", "proved", "exempt"]
)
def test_others_write_as_ever(account: str | None, authid: str | None) -> None:
    """Another address has a share of its own; a proved identity and a program of this machine have no bound."""
    house = mixed()
    house.fill()
    house.publish(house.broker.sessions["stranger"], 50)
    most = BURST_BYTES // EVENT_BYTES if account == "7.7.7.7" else 500
    assert house.publish(house.client("next", account, authid), 500) == most


@pytest.mark.parametrize(
    ("options", "has_rules", "share"),
    [(OPTIONS, False, 0.95), (OPTIONS, True, 0.85), (replace(OPTIONS, anonymous_share=0.0), True, 0.95)],
    ids=["no rules", "room", "off"],
)
def test_without_need_nothing_is_refused(options: History, has_rules: bool, share: float) -> None:
    """Without access rules, where there is room, and where the setting says so."""
    house = House(options, has_rules=has_rules)
    house.publish(house.client("member", "1.1.1.1", "ann"))
    house.fill(share)
    assert house.publish(house.client("stranger", "6.6.6.6"), 500) == 500
    assert house.broker.commits.writers is None, "nothing is asked of an event"
    assert house.broker.hits == {}


def test_who_is_alone_in_the_log_has_all_of_it() -> None:
    """Whether by many sessions or without; from the moment on when another one writes it has its share."""
    house = House()
    for _ in range(3):
        house.publish(house.client(f"s{house.now}", "6.6.6.6"), 20)
        house.publish("6.6.6.6", 20)
        house.now += 1
    house.client("reader", "1.1.1.1", "ann")
    house.fill()
    assert house.publish("6.6.6.6", 500) == 500
    house.publish(house.broker.sessions["reader"])
    assert house.publish("6.6.6.6", 500) == BURST_BYTES // EVENT_BYTES


def test_who_is_left_alone_in_the_log_has_all_of_it() -> None:
    """When the last event of another one has been deleted, or of which it is not known whose it is."""
    house = mixed()
    house.fill()
    assert house.publish("6.6.6.6", 500) == 10
    others_to = house.broker.commits.tail.head - 10
    house.fill(first=others_to)
    assert house.publish("6.6.6.6", 500) == 0
    house.fill(first=others_to + 1)
    assert house.publish("6.6.6.6", 500) == 500


def test_what_was_in_the_log_when_it_was_opened_may_be_of_others() -> None:
    """No row has an address: one that begins again does not have more than one that was there before."""
    house = mixed()
    head = house.broker.commits.tail.head
    house.broker.commits.begin(house.log, head)
    house.fill()
    assert house.publish("6.6.6.6", 500) == 10
    house.fill(first=head + 1)
    assert house.publish("6.6.6.6", 500) == 500


def test_events_of_other_servers_are_of_others() -> None:
    """They come with no address either."""
    house = House()
    house.publish("6.6.6.6")
    arrived = Event("a", b"1")
    arrived.position = 2
    house.broker.commits.arrived([arrived], house.now)
    house.fill()
    assert house.publish("6.6.6.6", 500) == 10


def test_a_log_stays_nearly_full_when_retention_has_deleted_a_segment() -> None:
    """Else a stranger could write without bound until it is full again, each time."""
    house = mixed()
    house.fill(0.95)
    assert house.publish("6.6.6.6", 500) == 10
    house.fill(0.85)
    assert house.publish("6.6.6.6", 500) == 0
    house.fill(0.75)
    assert house.publish("6.6.6.6", 500) == 500


def test_what_is_not_recorded_is_not_counted() -> None:
    """Events of topics without a history are delivered as ever, and so are the server's own recorded."""
    house = mixed()
    house.log.keepings["live"] = Durability.NONE
    house.fill()
    assert house.publish("6.6.6.6", 50, topic="live") == 50
    assert house.publish("6.6.6.6", 50) == 10
    assert house.publish("6.6.6.6", 50, topic="live") == 50
    recorded = len(house.log.events)
    house.broker.announce(Event("a", b"1"), house.now)
    house.log.commit()
    assert len(house.log.events) == recorded + 1


def test_a_repeat_takes_nothing() -> None:
    """What was refused is published by the repeat with its key, when there is a token again, and once."""
    house = mixed()
    house.fill()
    stranger = house.broker.sessions["stranger"]
    house.publish(stranger, 500)

    def order() -> Event:
        return Event("a", b"7", publisher="stranger", idempotency_key="order")

    with pytest.raises(LogShareReached):
        house.broker.publish(order(), house.now, source=stranger)
    assert house.broker.commits.repeated(order(), house.now) is None
    house.now += 3_600
    house.broker.publish(order(), house.now, source=stranger)
    assert house.broker.commits.repeated(order(), house.now) is not None


def values(house: House, publishers: Iterable[str | None]) -> int:
    """Record a value of NetworkTables for each of the publishers; how many were taken."""
    taken = 0
    for publisher in publishers:
        value = Event("a", b"1" * (EVENT_BYTES - 151), publisher=publisher, protocol="nt4")
        value.nt4_type = "string"
        taken += house.broker.values.record(value, house.now)
        house.log.commit(now=house.now)
    return taken


def test_values_are_delivered_and_not_recorded() -> None:
    """They are counted; those of sessions that have ended have one share together."""
    house = mixed()
    house.fill()
    assert values(house, ["stranger"] * 30) == 10
    assert values(house, [f"gone {number}" for number in range(30)]) == 10
    assert house.broker.commits.lost_values == house.broker.hits["anonymous_share"] == 40
