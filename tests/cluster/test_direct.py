"""Events that are not recorded, past the stream."""

from halley.broker.broker import Broker
from halley.cluster.direct import DirectEvents
from halley.cluster.frames import Row, SharedFields, UnrecordedFields, pack
from halley.cluster.members import MOST_NODES, Member
from halley.nats.jetstream import Connection
from halley.nats.wire import Message
from halley.settings import Cluster, History, Limits

ROW = Row("t", b"1", SharedFields("bayeux", "bare", None, None, None, None), None, UnrecordedFields(1, 1, None, ()))


def test_what_does_not_come_is_counted_once():
    """What another node has sent before this one knew its run does not count, nor what came."""
    direct = DirectEvents(Connection(Cluster(node="a")), Broker(Limits(), History()).commits, lambda: None)

    def beat(run, sent, node="b"):
        direct.compare(Member(node, node, {"unrecorded": [run, sent]}, 0.0))
        return direct.missed

    def come(run, count):
        direct._received(Message("halley.c.b", "", b"", pack(run, 0, [ROW] * count)))

    come("b-1", 2)
    assert beat("b-1", 5) == 0
    come("b-1", 2)
    assert beat("b-1", 8) == 1
    assert beat("b-1", 8) == 1
    come("b-1", 1)  # its frame was under way when the node sent its heartbeat
    assert [beat("b-1", 8), beat("b-1", 9)] == [1, 1]
    assert [beat("b-2", 3), beat("b-2", 5)] == [1, 3]  # the node was started again
    for number in range(MOST_NODES):
        beat(f"c{number}-1", 7, f"c{number}")
    assert direct.missed == 3
    assert [beat("c0-1", 7), beat("c0-1", 9)] == [3, 5]
