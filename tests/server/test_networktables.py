"""NetworkTables as the server composes it: the timer, the file of persistent topics, the end (NA48, ND12, ND13)."""

from __future__ import annotations

import json
from dataclasses import replace
from time import monotonic
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs
from support.memory_log import MemoryLog
from support.nt4_peers import FakeLink, Peer
from support.wamp_peers import Waiting

from halley.broker.broker import Broker
from halley.broker.names import Match, Pattern
from halley.broker.policy import DefaultRules
from halley.broker.ports import Erasure
from halley.protocols.bayeux.hooks import Hooks
from halley.protocols.nt4.names import V41
from halley.server.persistence import FILE
from halley.server.protocols import nt4
from halley.settings import Limits, Nt4, Settings


class Waits:
    """A stand-in for `routing.Waits`."""

    def __init__(self):
        self.wait = Waiting()


class Policy(Hooks):
    """A program's policy, which decides by a function."""

    def __init__(self, permissions):
        super().__init__()
        self.permissions = permissions
        self.value_listeners = ()

    def permit(self, verb, pattern, sender, context):
        return self.permissions(verb, pattern, context)

    def has_policy(self):
        return True


class House:
    """A house with NetworkTables only, on a clock that a test moves, except for the timer.

    It has the interface of `World` in `support/nt4_peers.py`, so that its peers can connect.
    """

    def __init__(self, folder, permissions=lambda *_: True, **options):
        self.broker = Broker(Limits())
        self.waits = Waits()
        settings = replace(Settings(), data_dir=str(folder), nt4=Nt4(enabled=True, **options))
        rights = DefaultRules(loopback=True, anonymous_publish=True)
        policy = Policy(permissions)
        common = Mock(settings=settings, broker=self.broker, access=rights, hooks=policy, waits=self.waits, others=None)
        self.server, _, self.saver = nt4(common)
        self.now = monotonic()
        self.saver.open()

    def peer(self, name="c"):
        return Peer(self, f"/nt/{name}", V41, "127.0.0.1")

    def flush(self):
        while self.server.due <= self.now or self.broker.ready or self.broker.ready_later:
            self.server.turn(self.now)
            self.broker.flush(self.now)

    async def saved(self):
        """Return the contents of the file, after the end of a save that has begun."""
        if self.saver._saving is not None:
            await self.saver._saving
        return {each["name"]: each["value"] for each in json.loads(self.file.read_bytes())}

    @property
    def file(self):
        return self.saver._file._path


def robot_of(house, **values):
    """Return a client that publishes persistent doubles."""
    robot = house.peer("robot")
    for pubuid, (name, value) in enumerate(values.items()):
        robot.publish(f"/{name}", pubuid, persistent=True)
        robot.put((pubuid, 5, 1, value))
    return robot


async def test_na48_persistent_topics_are_there_again_after_a_restart(tmp_path):
    """They have their types, values and properties, and the time of the start; other topics are gone."""
    house = House(tmp_path)
    robot = house.peer()
    robot.publish("/kept", 1, "string", persistent=True, unit="m")
    robot.publish("/passing", 2)
    robot.publish("/empty", 3, persistent=True)
    robot.put((1, 5, 4, "text"), (2, 5, 1, 1.0))
    await house.saver.close()
    assert (tmp_path / FILE).exists()

    house = House(tmp_path)
    dashboard = house.peer()
    dashboard.subscribe("", prefix=True)
    announced, value = dashboard.take()
    assert announced[1] == {"id": 1, "name": "/kept", "type": "string", "properties": {"persistent": True, "unit": "m"}}
    assert (value[0], value[3]) == ("/kept", "text")
    assert abs(value[1] - monotonic() * 1e6) < 60e6
    await house.saver.close()
    assert not (tmp_path / f"{FILE}.bck").exists(), "nothing has changed, so nothing was saved"


async def test_nd12_what_is_wrong_with_the_file_is_told_and_the_rest_comes_back(tmp_path):
    item = {"name": "/x", "type": "double", "value": 1.5, "properties": {"persistent": True}}
    (tmp_path / FILE).write_text(json.dumps([item, {"name": "/bad\n"}]))
    with capture_logs() as told:
        house = House(tmp_path)
    assert [topic.name for topic in house.server.tables.topics] == ["/x"]
    assert [each["event"] for each in told] == ["persistent_topics_damaged"]


async def test_na48_changes_are_saved_so_often(tmp_path):
    """A thread saves all changes together, and only if there are any."""
    house = House(tmp_path, save_every_s=1.0)
    robot = robot_of(house, x=1.0)
    house.saver.sweep(house.now)
    assert await house.saved() == {"/x": 1.0}
    robot.put((0, 6, 1, 2.0))
    house.saver.sweep(house.now + 0.9)
    assert await house.saved() == {"/x": 1.0}
    house.saver.sweep(house.now + 1.0)
    assert await house.saved() == {"/x": 2.0}
    house.file.unlink()
    house.saver.sweep(house.now + 5.0)
    assert not house.file.exists()
    robot.say("setproperties", name="/x", update={"persistent": None})
    house.saver.sweep(house.now + 6.0)
    assert await house.saved() == {}


async def test_a_save_that_fails_is_told_once_and_tried_again(tmp_path):
    """The failure is logged once, and a later save writes everything."""
    house = House(tmp_path / "in")
    (tmp_path / "in").write_text("a file where the folder should be")
    robot_of(house, x=1.0)
    with capture_logs() as told:
        for turn in range(3):
            house.saver.sweep(house.now + turn * 2)
            await house.saver._saving
    assert [each["what"] for each in told] == ["persistent_topics"]
    (tmp_path / "in").unlink()
    house.saver.sweep(house.now + 6)
    assert await house.saved() == {"/x": 1.0}


async def test_the_end_saves_what_was_not_saved_and_records_what_waits(tmp_path):
    """At the end the changes are saved, and the waiting value is recorded, before the history closes."""
    house = House(tmp_path)
    log = MemoryLog(house.broker)
    robot = robot_of(house, x=1.0)
    house.saver.sweep(house.now)
    robot.put((0, 6, 1, 2.0))
    assert [event.payload for event in log.inbox] == [b"1.0"]
    await house.saver.close()
    assert await house.saved() == {"/x": 2.0}
    assert [event.payload for event in log.inbox] == [b"1.0", b"2.0"]


@pytest.mark.parametrize("verdict", [True, False])
async def test_a_policy_that_has_to_think_is_awaited(tmp_path, verdict):
    """A synchronous policy is not awaited; it is not called for names that no policy can know."""

    async def thought():
        return verdict

    asked = []

    def permissions(verb, pattern, context):
        asked.append((verb, pattern))
        return thought() if pattern.topic == "hard" else pattern.topic != "shut"

    house = House(tmp_path, permissions)
    client = house.peer()
    client.subscribe("/easy", "/shut", "own")
    assert [each.topics for each in client.engine.client.subscribed] == [("/easy", "own")]
    client.subscribe("/easy", "/hard", "/shut", "own", subuid=1)
    waiting = house.waits.wait
    awaitable, limit_s, resume = waiting.awaited.popleft()
    assert limit_s == Settings().bayeux.policy_s
    resume(await awaitable, None, house.now)
    topics = next(each.topics for each in client.engine.client.subscribed if each.subuid == 1)
    assert topics == (("/easy", "/hard", "own") if verdict else ("/easy", "own"))
    assert ("subscribe", Pattern(Match.EXACT, "easy")) in asked


async def test_whoever_is_here_is_sent_away_when_the_server_leaves(tmp_path):
    house = House(tmp_path)
    client = house.peer()
    for release in house.server.drain(0.0):
        release(house.now)
    assert client.close.code == 1001
    link = FakeLink("/nt/late", V41, "127.0.0.1")
    house.server.connect(link, link, house.now)
    house.flush()
    assert link.close.code == 1001


async def test_what_is_erased_while_it_is_saved_is_not_in_the_file_afterwards(tmp_path):
    """A save that has begun before may end after the erasing; the file gets what there is then."""
    house = House(tmp_path, save_every_s=1.0)
    robot_of(house, x=1.0)
    saved, erasures = house.saver._unsaved()
    (work,) = house.broker.erase(Erasure(Pattern(Match.EXACT, "x"), None))[-1:]
    work()
    house.saver._save(saved, erasures)
    assert not house.file.exists()
    house.saver.sweep(house.now)
    assert await house.saved() == {}
