"""Any value in the place of any part of any message, over real sockets: a documented answer, and never a fault (A69).

Each test spoils one valid message that has all its members. The server's log must stay without faults.
"""

from __future__ import annotations

import json
import re

import httpx
import msgpack
import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st
from support import nt4
from support.anything import JSON_VALUES, MSGPACK_VALUES, spoilt
from support.messages import HANDSHAKE, connect, disconnect, publish, subscribe
from support.server import brisk, serving
from support.wire import post
from websockets.exceptions import ConnectionClosed

from halley.access.tokens import hash_of
from halley.configuration.knobs import KNOBS
from halley.protocols.nt4.types import number_of
from halley.settings import Token
from halley.transports.api import log as log_consumers
from halley.transports.api.log import BAD_ORDER

pytestmark = pytest.mark.asyncio(loop_scope="module")

TOKEN = "a-token-that-is-long-enough-for-halley"
ERROR = re.compile(r"[345]\d\d:[^<>]*:[a-z_]+|400::The replayId \{(-?\d+|\?)\} you provided was invalid\. .*")

EXT = {
    "ack": True,
    "timesync": {"tc": 1, "l": 0, "o": 0},
    "replay": {"/a": -1, "in_data": False},
    "replay_log": "x",
    "latest": True,
    "audience": {"eligible_authids": ["ann"], "eligible_roles": [], "excluded_authids": None, "excluded_roles": []},
    "idempotency_key": "k",
    "after": "k",
    "authentication": {"token": TOKEN},
}
OPTIONAL = {"id": "1", "ext": EXT, "advice": {"timeout": 0, "interval": 0, "reconnect": "retry"}}

BAYEUX = {
    "handshake": HANDSHAKE | {"minimumVersion": "1.0", "supportedConnectionTypes": ["long-polling", "x"]},
    "connect": connect("ID"),
    "subscribe": subscribe("ID", "/a", "/b/*"),
    "unsubscribe": subscribe("ID", "/a", "/b/*") | {"channel": "/meta/unsubscribe"},
    "disconnect": disconnect("ID"),
    "publish": publish("/a", {"b": [1]}, clientId="ID"),
    "service": publish("/service/a", {"b": [1]}, clientId="ID"),
    "publish without a session": publish("/a", {"b": [1]}),
}

PROPERTIES = {"persistent": True, "retained": False, "cached": True, "x": [1]}
OPTIONS = {"periodic": 0.1, "all": True, "topicsonly": False, "prefix": True, "x": [1]}
NT4_TEXTS = {
    "publish": {"name": "/n", "pubuid": 1, "type": "double", "properties": PROPERTIES},
    "unpublish": {"pubuid": 1},
    "setproperties": {"name": "/n", "update": PROPERTIES},
    "subscribe": {"topics": ["/n", "$"], "subuid": 1, "options": OPTIONS},
    "unsubscribe": {"subuid": 1},
}
NT4_TYPES = ["boolean", "double", "int", "float", "string", "raw", "json", "int[]", "float[]", "string[]"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("any-value")
    token = Token(id="ada", role="user", hash=hash_of(TOKEN))
    nt4_options = {"enabled": True, "port": 0, "ping_s": 5, "pong_s": 10, "bridge_in": ("/",)}
    history = {"enabled": True, "free_bytes": 0}
    async with serving(
        brisk(data_dir=str(folder), history=history, nt4=nt4_options, tokens=[token], bayeux={"hold_s": 0.2})
    ) as served:
        yield served
        assert [line for line in served.log if line["event"] == "fault"] == []


@pytest.mark.parametrize("kind", BAYEUX)
@given(data=st.data())
async def test_bayeux(served, kind, data):
    """A69: one reply for each message, with an error if it is refused; the next message is served."""
    message = data.draw(spoilt(BAYEUX[kind] | OPTIONAL))
    client_id = await served.open_session("/a")
    body = json.dumps(message).replace('"ID"', json.dumps(client_id))
    wire = await served.wire()
    answer = await wire.request(post(f"[{body},{json.dumps(publish('/witness', 1))}]".encode()))
    if not isinstance(message, dict):
        assert answer.status == 400
    else:
        assert answer.status == 200
        replies = [each for each in answer.messages if "successful" in each]
        for reply in replies:
            assert reply["successful"] is True or ERROR.fullmatch(reply["error"]), reply
        assert len(replies) == (1 if message.get("channel") == "/meta/handshake" else 2)
    await wire.post(disconnect(client_id))
    await wire.close()
    served.forget(wire)


@pytest.mark.parametrize("method", NT4_TEXTS)
@given(data=st.data())
async def test_networktables_texts(served, method, data):
    """NA14 to NA20: a wrong element is ignored, and its connection stays and is served."""
    elements = [nt4.text(name, **params) for name, params in NT4_TEXTS.items() if name in ("publish", "subscribe")]
    elements.append(data.draw(spoilt(nt4.text(method, **NT4_TEXTS[method]))))
    async with await nt4.connect(f"http://127.0.0.1:{served.nt4_port}", "any") as client:
        await client.send_raw(json.dumps(elements))
        await client.publish("/witness", 2)
        await client.text("announce", name="/witness", pubuid=2)


@pytest.mark.parametrize("type_name", NT4_TYPES)
@given(data=st.data())
async def test_networktables_values(served, type_name, data):
    """NA21 to NA24: a value is taken or ignored, or the connection ends with 1001 and the reason."""
    frames = data.draw(st.lists(spoilt([1, 5, number_of(type_name), 0], MSGPACK_VALUES), min_size=1, max_size=3))
    async with await nt4.connect(f"http://127.0.0.1:{served.nt4_port}", "any") as client:
        await client.publish("/n", 1, type_name)
        await client.subscribe("/n", all=True)
        await client.text("announce", name="/n")
        await client.send_raw(b"".join(map(msgpack.packb, frames)))
        try:
            await client.publish("/witness", 2)
            await client.text("announce", name="/witness", pubuid=2)
        except ConnectionClosed:
            code, reason = await client.closed()
            assert code == 1001
            assert reason.startswith("binary decode error: ")


async def test_the_deepest_json_that_a_setting_can_allow(tmp_path):
    """What `limits.nesting` lets in at its greatest value can be delivered, recorded and announced."""
    most = KNOBS["limits.nesting"].high
    nt4_options = {"enabled": True, "port": 0, "ping_s": 5, "pong_s": 10, "bridge_in": ("/robot/",)}
    settings = brisk(data_dir=str(tmp_path), limits={"nesting": most}, history={"free_bytes": 0}, nt4=nt4_options)
    async with serving(settings) as served:
        client_id = await served.open_session("/**")
        wire = await served.wire()
        async with await nt4.connect(f"http://127.0.0.1:{served.nt4_port}") as client:
            for channel in ("/chat", "/robot/x"):
                message = publish(channel, "DEEP", clientId=client_id, id="1")
                for levels, status in ((most - 1, 200), (most, 400)):
                    answer = await wire.request(post(json.dumps(message).encode().replace(b'"DEEP"', nested(levels))))
                    assert (answer.status, b'"successful":true' in answer.body) == (status, status == 200)
            properties = json.loads(nested(most - 4))
            await client.publish("/witness", 1, properties={"x": properties})
            assert (await client.text("announce"))["properties"] == {"x": properties}
        assert [line for line in served.log if line["event"] == "fault"] == []


def nested(levels):
    """Return the JSON text of an array with so many levels."""
    return b"[" * levels + b"]" * levels


@pytest.mark.parametrize(
    ("path", "body", "texts"),
    [
        ("/log/purge", {"channel": "/a"}, (BAD_ORDER,)),
        ("/log/purge", {"publisher": "ann"}, (BAD_ORDER,)),
        ("/log/consumers/c", {"offset": 1}, (log_consumers.BAD_REPORT, log_consumers.OUT_OF_RANGE)),
        ("/ws/open", {"protocols": ["x"]}, ('the body must be {"protocols": [...]}', "no common subprotocol;")),
    ],
)
@given(data=st.data())
async def test_http_bodies(served, path, body, texts, data):
    """Any JSON in a body is carried out, or refused with 400 and one of the texts."""
    content = json.dumps(data.draw(JSON_VALUES | spoilt(body)))
    async with httpx.AsyncClient(base_url=served.url, trust_env=False, verify=False) as http:
        response = await http.post(path, content=content, headers={"content-type": "application/json"})
    assert response.status_code == 200 or (response.status_code == 400 and response.text.startswith(texts))
