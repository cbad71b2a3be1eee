"""A new endpoint is one file and one line: `support/ring.py` is one, which Halley's own host serves, and uvicorn."""

from __future__ import annotations

from contextlib import asynccontextmanager

import httpx
import pytest
from support.foreign import foreign
from support.ring import Ring, ring
from support.server import brisk, serving
from support.wire import request

from halley.server.protocols import PROTOCOLS


@asynccontextmanager
async def own():
    async with serving(brisk(), protocols=[*PROTOCOLS, ring]) as served:
        yield served, served.port


@asynccontextmanager
async def others():
    async with foreign(protocols=[*PROTOCOLS, ring]) as served:
        yield served, served.port


@pytest.fixture(params=[own, others], ids=["own-host", "uvicorn"])
async def rung(request):
    async with request.param() as (served, port):
        (endpoint,) = [part for part in served.halley.server.parts if isinstance(part, Ring)]
        yield served, endpoint, f"http://127.0.0.1:{port}/ring"


async def test_it_waits_and_answers_all(rung):
    """Who waits is answered by what is said; what was said can be read in pieces."""
    served, endpoint, url = rung
    wires = [await served.wire() for _ in range(3)]
    for wire in wires:
        await wire.send(request("GET", "/ring"))
    await served.until(lambda: len(endpoint.waiting) == 3)
    async with httpx.AsyncClient(trust_env=False) as http:
        assert (await http.post(url, content=b"hello")).status_code == 204
        assert [(await wire.read()).text for wire in wires] == ["hello"] * 3
        assert (await http.get(f"{url}/log")).text == "hello\n"


async def test_who_goes_is_forgotten(rung):
    """Its connection ends while it waits."""
    served, endpoint, _ = rung
    wire = await served.wire()
    await wire.send(request("GET", "/ring"))
    await served.until(lambda: len(endpoint.waiting) == 1)
    wire.reset()
    await served.until(lambda: not endpoint.waiting)


async def test_what_it_does_not_do_is_refused_as_everywhere(rung):
    """By its own texts, and by those of the guard."""
    served, _, url = rung
    async with httpx.AsyncClient(trust_env=False) as http:
        answers = [
            await http.post(url, content=b"x" * 101),
            await http.delete(url),
            await http.get(url, headers={"origin": "http://evil.example"}),
            await http.get(f"{url}/below"),
        ]
    assert [(answer.status_code, answer.text) for answer in answers] == [
        (413, "too much to say"),
        (405, "method not allowed; expected GET, POST or OPTIONS"),
        (403, "origin not allowed"),
        (404, "not found"),
    ]
    for line in served.log if hasattr(served, "log") else ():
        assert line["event"] != "fault"
