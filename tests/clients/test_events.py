"""Streams of events as Python's httpx-sse reads them; Chromium is in `tests/readme/test_events.py`."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest
from support.programs import require_module
from support.server import brisk, serving
from support.wire import DEADLINE_S

pytestmark = pytest.mark.slow


async def test_httpx_sse_reads_and_resumes(tmp_path):
    """It gets each event once and in order over cut connections, with the last id that it has."""
    require_module("httpx_sse", "pip install -r tests/clients/requirements.txt")
    import httpx_sse

    settings = brisk(data_dir=str(tmp_path), history={"enabled": True, "free_bytes": 0})
    async with serving(settings) as served, httpx.AsyncClient(base_url=served.url) as client:
        got, last_id = [], "0"
        for turn in range(3):
            for number in range(turn * 10, turn * 10 + 10):
                assert (await client.post("/events/a", json=number)).status_code == 200
            headers = {"Last-Event-ID": last_id}
            async with (
                asyncio.timeout(DEADLINE_S),
                httpx_sse.aconnect_sse(client, "GET", "/events/a", headers=headers) as source,
            ):
                assert source.response.status_code == 200
                async for event in source.aiter_sse():
                    if event.data:
                        got.append(json.loads(event.data)["data"])
                        last_id = event.id
                        assert event.retry in (None, 1000)
                    if len(got) == turn * 10 + 7:
                        break
        assert got == [*range(27)]
