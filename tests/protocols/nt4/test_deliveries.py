"""Which clients get which values, and in which order: random steps, compared with a model that only keeps lists.

A client that subscribed with `all` gets each of a topic's values once and in order; any other client ends with the
newest. No client gets its own values, except as the last value when it subscribes (NA37, NA38, NA50 to NA56). Each
`ConnectionWriter` asserts by itself that a topic is announced before its values and has none after its unannounce.
"""

from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from support.nt4_peers import World

NAMES = ("/a", "/ab")
CLIENTS = st.integers(0, 2)
TOPICS = st.integers(0, 1)
RARELY = st.sampled_from([False, False, False, True])
SUBUIDS = st.integers(0, 1)


class Hearing:
    """The values of one topic that one client gets, from when it wants values until it does not."""

    def __init__(self, is_all):
        self.is_all = is_all
        self.owed = []  # values, in their order
        self.allowed = Counter()  # values, and how often each is allowed
        self.heard = []

    def owe(self, value):
        self.allowed[value] += 1
        if self.is_all:
            self.owed.append(value)

    def change(self, is_all):
        if self.is_all and not is_all:  # waiting values can now be replaced by newer ones
            self.owed = [value for value in self.owed if value in self.heard]
        self.is_all = is_all

    def hear(self, value):
        self.heard.append(value)
        assert self.heard.count(value) <= self.allowed[value], "more than once, or of one's own, or not wanted"

    def end(self, last):
        """Check that all was received; `last` is the topic's last value, or None if the client wrote that itself."""
        heard = iter(self.heard)
        assert all(value in heard for value in self.owed), "lost, or out of order"
        assert last is None or last in self.heard, "the newest never came"


class ModelTopic:
    """A topic while it exists."""

    def __init__(self):
        self.publishers = set()
        self.last = None  # value, time, writer


class ModelClient:
    """A client, its subscriptions, and what it must get because of them."""

    def __init__(self, peer):
        self.peer = peer
        self.subscriptions = {}  # subuid: names, options
        self.hearings = {}  # by name
        self.is_paused = False

    def wants(self, name, without=None):
        """Return whether the client wants all values of a topic, or None if it wants no values of it."""
        found = [
            options["all"]
            for subuid, (names, options) in self.subscriptions.items()
            if subuid != without and not options["topicsonly"] and any(_is_for(name, each, options) for each in names)
        ]
        return any(found) if found else None


def _is_for(name, wanted, options):
    return name.startswith(wanted) if options["prefix"] else name == wanted


class Deliveries(RuleBasedStateMachine):
    """Three clients and two topics; each step moves the time or sends one message."""

    @initialize(is_all=st.booleans(), periodic=st.sampled_from([0.01, 1]))
    def begin(self, is_all, periodic):
        self.world = World()
        self.clients = [ModelClient(self.world.peer(f"c{number}")) for number in range(3)]
        self.topics = {}
        self.values = 100  # used as times too: none is 0
        for client in (0, 1):
            for topic in (0, 1):
                self.publish(client, topic)
        for client in (1, 2):
            self.subscribe(client, 0, ["/a"], periodic, {"all": is_all, "prefix": True, "topicsonly": False})

    def listen(self):
        """Check the values that all clients have received so far."""
        for client in self.clients:
            for name, _, _, value in client.peer.values():
                assert name in client.hearings, "a value of what is not heard"
                client.hearings[name].hear(value)

    @rule(topic=TOPICS, count=st.integers(1, 3))
    def put_more(self, topic, count):
        self.put(0, topic, count, 0)

    def attend(self, client, resent=()):
        """Update what a client must get; `resent` has the names whose last values are sent again."""
        for name, topic in self.topics.items():
            wants = client.wants(name)
            hearing = client.hearings.get(name)
            if wants is None:
                client.hearings.pop(name, None)
            elif hearing is None:
                hearing = client.hearings[name] = Hearing(wants)
                if topic.last is not None:
                    hearing.owe(topic.last[0])
            else:
                hearing.change(wants)
                if name in resent and topic.last is not None:
                    hearing.allowed[topic.last[0]] += 1

    def withdraw(self, client, name):
        topic = self.topics[name]
        topic.publishers.discard(client)
        if not topic.publishers:
            self.listen()
            self.end(name)
            del self.topics[name]

    def end(self, name):
        last = self.topics[name].last
        for client in self.clients:
            hearing = client.hearings.pop(name, None)
            if hearing is not None:
                hearing.end(None if last is None or last[2] is client else last[0])

    @rule(client=CLIENTS, topic=TOPICS)
    def publish(self, client, topic):
        client, name = self.clients[client], NAMES[topic]
        client.peer.publish(name, topic)
        is_new = name not in self.topics
        self.topics.setdefault(name, ModelTopic()).publishers.add(client)
        if is_new:
            for each in self.clients:
                self.attend(each)
        self.listen()

    @rule(client=CLIENTS, topic=TOPICS, is_meant=RARELY)
    def unpublish(self, client, topic, is_meant):
        if not is_meant:
            return
        client, name = self.clients[client], NAMES[topic]
        client.peer.say("unpublish", pubuid=topic)
        if client in self.topics.get(name, ModelTopic()).publishers:
            self.withdraw(client, name)

    @rule(client=CLIENTS, topic=TOPICS, count=st.integers(1, 3), age=st.sampled_from([0, 3]))
    def put(self, client, topic, count, age):
        client, name = self.clients[client], NAMES[topic]
        topic_model = self.topics.get(name)
        if topic_model is None or client not in topic_model.publishers:
            self.publish(self.clients.index(client), topic)
            topic_model = self.topics[name]
        for _ in range(count):
            self.values += 1
            value, time_us = float(self.values), self.values - age
            client.peer.put((topic, time_us, 1, value))
            last = topic_model.last
            if last is None or time_us >= last[1] or last[2] is client:
                topic_model.last = (value, time_us, client)
            for each in self.clients:
                if each is not client and name in each.hearings:
                    each.hearings[name].owe(value)
        self.listen()

    @rule(
        client=CLIENTS,
        subuid=SUBUIDS,
        names=st.lists(st.sampled_from(["/a", "/a", "/ab", ""]), max_size=2),
        periodic=st.sampled_from([0.01, 1]),
        flags=st.fixed_dictionaries({"all": st.booleans(), "prefix": st.booleans(), "topicsonly": RARELY}),
    )
    def subscribe(self, client, subuid, names, periodic, flags):
        client = self.clients[client]
        resent = [name for name in self.topics if client.wants(name, without=subuid) is None]
        client.peer.subscribe(*names, subuid=subuid, periodic=periodic, **flags)
        client.subscriptions[subuid] = (names, flags)
        self.attend(client, resent)
        self.listen()

    @rule(client=CLIENTS, subuid=SUBUIDS)
    def unsubscribe(self, client, subuid):
        client = self.clients[client]
        client.peer.say("unsubscribe", subuid=subuid)
        client.subscriptions.pop(subuid, None)
        self.attend(client)
        self.listen()

    @rule(seconds=st.sampled_from([0.004, 0.01, 1]))
    def wait(self, seconds):
        self.world.after(seconds)
        self.listen()

    @rule(client=st.integers(1, 2))
    def pause(self, client):
        self.clients[client].peer.engine.paused()

    @rule(client=CLIENTS)
    def resume(self, client):
        self.clients[client].peer.engine.resumed(self.world.now)
        self.listen()

    @rule(client=CLIENTS, is_meant=RARELY)
    def come_again(self, client, is_meant):
        if not is_meant:
            return
        before = self.clients[client]
        before.peer.engine.lost(self.world.now)
        before.hearings.clear()
        for name in [name for name, topic in self.topics.items() if before in topic.publishers]:
            self.withdraw(before, name)
        self.clients[client] = ModelClient(self.world.peer(f"c{client}"))

    def teardown(self):
        for client in self.clients:
            client.peer.engine.resumed(self.world.now)
        self.world.after(61)
        self.listen()
        for name in self.topics:
            self.end(name)


TestDeliveries = Deliveries.TestCase
