"""What nodes send each other and save, in bytes that version 1 wrote: later versions must write and read them alike.

Who changes one of these forms has broken upgrades of running clusters. `app/halley/cluster/frames.py` says how it is
done.
"""

from __future__ import annotations

from zlib import crc32

import orjson

from halley.broker.events import Audience
from halley.broker.names import Match, Pattern
from halley.broker.ports import Erasure, Query
from halley.cluster.frames import KeeperAnnouncement, Row, SharedFields, UnrecordedFields, Value

PLAIN = SharedFields("bayeux", "json", None, None, None, None)
RICH = SharedFields("wamp", "args", '{"x":1}', Audience(("me",), None, (), ("guest",)), "me", "user")
ROWS = [
    Row("chat/room", b'{"a":1}', PLAIN),
    Row("chat/room", '"é"'.encode(), RICH, "key-1"),
    Row("more/a_b", b"[1]", PLAIN, "key-2"),
    Row("private/x", b"0", PLAIN, "key-3"),
]
FLEETING = [Row("fleeting/a", b"1", PLAIN, None, UnrecordedFields(1_800_000_000_000_000, 2**52, ("s1",), ("s2",)))]

VALUES = [
    Row(
        "nt/a", b"1", PLAIN, None, UnrecordedFields(1_800_000_000_000_000, 2**52, None, ()), Value("double", 7, ("s2",))
    ),
]

EVENTS = (
    b'[1,"n1-0123456789ab",1,["chat/room","more/a_b","private/x"],[["bayeux","json",null,null,null,null],'
    b'["wamp","args","{\\"x\\":1}",[["me"],null,[],["guest"]],"me","user"]],[0,0,1,2],[0,1,0,0],[7,4,3,1],'
    b'{"1":"key-1","2":"key-2","3":"key-3"},null,null]\n{"a":1}"\xc3\xa9"[1]0b5ba2992'
)
KEEPS = b'[1,"n1-0123456789ab",2,[],[],[],[],[],{},null,{"keeps":"n1"}]\n399a8c90'
FORGETS = b'[1,"forget-0123456789ab",1,[],[],[],[],[],{},null,{"forget":"n1"}]\n3837b5e4'
ERASE_TOPICS = b'[1,"n1-0123456789ab",3,[],[],[],[],[],{},null,{"erase":["descendants","private",null]}]\n4c0e4e6f'
ERASE_PUBLISHER = b'[1,"n2-ba9876543210",1,[],[],[],[],[],{},null,{"erase":[null,null,"you"]}]\nde4f9cfb'
NOT_RECORDED = (
    b'[1,"n1-0123456789ab",0,["fleeting/a"],[["bayeux","json",null,null,null,null]],[0],[0],[1],{},'
    b'[[1800000000000000,4503599627370496,["s1"],["s2"]]],null]\n17f4df704'
)
VALUE = (
    b'[1,"n1-0123456789ab",0,["nt/a"],[["bayeux","json",null,null,null,null]],[0],[0],[1],{},'
    b'[[1800000000000000,4503599627370496,null,[]]],{"0":["double",7,["s2"]]},null]\n1cd3cd59d'
)
FRAMES = [
    (EVENTS, ("n1-0123456789ab", 1, ROWS, None)),
    (KEEPS, ("n1-0123456789ab", 2, [], KeeperAnnouncement("n1"))),
    (ERASE_TOPICS, ("n1-0123456789ab", 3, [], Erasure(Pattern(Match.DESCENDANTS, "private"), None))),
    (ERASE_PUBLISHER, ("n2-ba9876543210", 1, [], Erasure(None, "you"))),
    (NOT_RECORDED, ("n1-0123456789ab", 0, FLEETING, None)),
]

STATE = (
    b'{"version":1,"stream":"0123456789abcdef","lead":2,"sequence":5,"checksum":"7f4df704","offset":44,"time_us":1800000000000004,'
    b'"runs":[["n1-0123456789ab",3,1800000000000003],["n2-ba9876543210",1,1800000000000004]],'
    b'"keepers":{"n1":1800000000000002},'
    b'"keys":[["me","key-1",42,1800000000000001,"chat/room"],[null,"key-2",43,1800000000000001,"more/a_b"]]}'
)
"""What is saved after `FRAMES`, in a stream behind 40 events."""

HEARTBEAT = (
    b'{"node":"n1","id":"fdfs","key":"0123456789abcdef0123456789abcdef","age_s":7,"sequence":5,"offset":44,'
    b'"sessions":2,"erased":5,"went_back":false,"keeps":true,"version":"0.1.0","state":"44-1800000000000004-7f4df704","behind":0,'
    b'"settings":{"record":"0123456789ab","access":"0123456789ab","realm":"0123456789ab","bayeux.paths":"0123456789ab",'
    b'"nt4":"0123456789ab"},'
    b'"hears":["halley/rates"],"url":"http://127.0.0.1:8090","machine":"0123-4567","kept":{"head":44,"starts":[1,7],'
    b'"bytes":8192,"consumers":{"lake":12},"takes":true},"saved":5,"frames":2,"wamp":[4503599627370496,3]}'
)

QUERY = Query(
    ((Pattern(Match.EXACT, "chat/room"), 3), (Pattern(Match.DESCENDANTS, ""), 0)),
    9,
    authid="me",
    limit=7,
    is_reverse=True,
)
ASKED = (
    b'{"wanted":[["exact","chat/room",3],["descendants","",0]],"last":9,"first":1,"authid":"me","role":"anonymous",'
    b'"from_time_us":null,"until_time_us":null,"from_publication":null,"after_publication":null,'
    b'"before_publication":null,"until_publication":null,"limit":7,"max_bytes":524288,"is_reverse":true}'
)
ROW = (
    b'[3,1800000000000000,"chat/room",77,"wamp","args","{\\"args\\":[1],\\"kwargs\\":{}}",'
    b'"{\\"x\\":1}","[[\\"me\\"],null,[],[]]","me","user",null,null,"key-1",2619014475]'
)
PAGE = b"[[1,7],[9,false,[[4,5]],false,77],[" + ROW + b"]]"


def sealed(head, payloads=b"{}"):
    """Return the bytes of a frame with that head, and a right checksum."""
    whole = orjson.dumps(head) + b"\n" + payloads
    return whole + b"%08x" % crc32(whole)
