"""Request bodies that gzip has compressed, where a setting takes them: inflated within the limit, or refused."""

from __future__ import annotations

import gzip
import json
import tracemalloc

import pytest
import pytest_asyncio
from support.messages import publish
from support.refusals import CANARY, refusal
from support.server import PARSED, SHORT_WAY, brisk, serving
from support.wire import chunked, post

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.faces(SHORT_WAY, PARSED)]

MESSAGE = json.dumps(publish("/canary", CANARY)).encode()
PACKED = gzip.compress(MESSAGE)
LIMIT = 262_144
BOMB = gzip.compress(bytes(20_000_000))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(face):
    """Serve with the setting on."""
    async with serving(brisk(gzip_bodies=True)) as served:
        yield served


def padded(nbytes):
    """Return a publish of exactly `nbytes` bytes."""
    return b"[" + b" " * (nbytes - len(MESSAGE) - 2) + MESSAGE + b"]"


@pytest.mark.parametrize("coding", ["gzip", "GZIP", " gzip "])
async def test_a_body_is_inflated(coding, served):
    """RFC 9110, 8.4: what is published is what was compressed; also in chunks, and beside requests that are not."""
    wire = await served.wire()
    for data in (
        post(PACKED, content_encoding=coding),
        post(MESSAGE),
        chunked(PACKED[:5], PACKED[5:-1], PACKED[-1:], content_encoding=coding),
        post(gzip.compress(padded(LIMIT)), content_encoding=coding),
        post(MESSAGE, content_encoding="identity"),
    ):
        answer = await wire.request(data)
        assert (answer.status, answer.messages[0]["successful"]) == (200, True)


async def test_bodies_of_other_paths_are_inflated_too(served):
    """WAMP's long-polling takes what Bayeux takes."""
    offer = gzip.compress(b'{"protocols":["wamp.2.json"]}')
    answer = await (await served.wire()).request(post(offer, path="/wamp/open", content_encoding="gzip"))
    assert (answer.status, answer.messages["protocol"]) == (200, "wamp.2.json")


async def test_s5_what_is_inflated_has_the_same_limit(served):
    """S5: 413 at the first byte beyond it; of a bomb of 20 MB no more is inflated than that."""
    for packed in (gzip.compress(padded(LIMIT + 1)), BOMB):
        tracemalloc.start()
        await refusal(served, post(packed, content_encoding="gzip"), 413, "request body too large", closes=True)
        assert tracemalloc.get_traced_memory()[1] < 3_000_000
        tracemalloc.stop()
    await refusal(
        served,
        chunked(BOMB[:10_000], BOMB[10_000:], content_encoding="gzip"),
        413,
        "request body too large",
        closes=True,
    )


@pytest.mark.parametrize(
    "body",
    [b"", MESSAGE, PACKED[:-1], PACKED[:20], PACKED + b"x", PACKED + PACKED, PACKED[:-8] + bytes(8)],
    ids=["nothing", "not-compressed", "cut-off", "cut-in-two", "more-behind-it", "twice", "wrong-sum"],
)
async def test_s6_what_is_not_gzip_gets_400(body, served):
    """S6: nothing of it is processed."""
    await refusal(served, post(body, content_encoding="gzip"), 400, "body is not gzip", closes=True)


@pytest.mark.parametrize("coding", ["deflate", "br", "x-gzip", "gzip, gzip", "zstd"])
async def test_s6_other_codings_get_415(coding, served):
    """S6: only gzip is taken, and only once."""
    await refusal(served, post(PACKED, content_encoding=coding), 415, "content encoding not supported", closes=True)
