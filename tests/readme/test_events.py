"""The examples on the page about streams of events: curl, and a page that resumes over kill -9."""

from __future__ import annotations

import asyncio
import json
import signal

import pytest
from readme.shell import Shell
from readme.table import block
from support.folder_server import files
from support.process import launched
from support.programs import require_program
from support.wire import DEADLINE_S, post

ROUNDS, EACH = 3, 40


async def put(server, *numbers):
    """Publish numbers to /orders/new."""
    wire = await server.wire()
    for number in numbers:
        answer = await wire.request(post(b"%d" % number, path="/events/orders/new", idempotency_key=str(number)))
        assert answer.status == 200, answer.text
    await wire.close()


async def refuse_one(port):
    """Answer a request as a proxy does while the server behind it is away."""
    was_asked = asyncio.Event()

    async def refuse(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        was_asked.set()

    async with await asyncio.start_server(refuse, "127.0.0.1", port), asyncio.timeout(DEADLINE_S):
        await was_asked.wait()


async def test_curl_reads_lines(tmp_path):
    """The line prints the last ten and then what comes, as one object a line."""
    require_program("curl")
    async with launched(cwd=tmp_path) as server:
        await put(server, *range(12))
        reading = await Shell(tmp_path, server.port).begin(block("events-lines"))
        async with asyncio.timeout(DEADLINE_S):
            first = [json.loads(await reading.stdout.readline())["data"] for _ in range(10)]
            await put(server, 12)
            last = json.loads(await reading.stdout.readline())
        assert first == [*range(2, 12)]
        assert (last["data"], last["channel"]) == (12, "/orders/new")
        server.send_signal(signal.SIGTERM)
        assert await server.exit_code() == 0
        async with asyncio.timeout(DEADLINE_S):
            await reading.communicate()


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.asyncio(loop_scope="session")
async def test_a_page_resumes_over_a_kill(chromium, tmp_path):
    """It comes back after kill -9, also when Chromium has given up at a 502, and gets each event once and in order."""
    port, numbers = 0, iter(range(ROUNDS * EACH))
    site = tmp_path / "site"
    site.mkdir()
    context = await chromium.new_context()
    page = await context.new_page()
    with files(site) as origin:
        for turn in range(ROUNDS):
            async with launched(
                *(("--port", str(port), "--operations-port", "0") if port else ()), cwd=tmp_path
            ) as server:
                if not turn:
                    port = server.port
                    (site / "orders.html").write_text(Shell(tmp_path, port).here(block("events-page")))
                    await page.goto(f"{origin}/orders.html")
                    await page.wait_for_function("events.readyState === 1")
                    await put(server, next(numbers))
                    await page.wait_for_function("heard.textContent.length > 0")
                else:
                    await put(server, next(numbers))
                await put(server, *(next(numbers) for _ in range(EACH - 1)))  # some before it is back
                if turn == ROUNDS - 1:
                    await page.wait_for_function(f"heard.textContent.split('\\n').length > {ROUNDS * EACH}")
                server.send_signal(signal.SIGKILL)
                await server.exit_code()
            if not turn:
                await refuse_one(port)
                await page.wait_for_function("events.readyState === 2")
    lines = (await page.locator("#heard").text_content()).strip().split("\n")
    await context.close()
    told = [(int(last_id), json.loads(data)) for last_id, data in (line.split(" ", 1) for line in lines)]
    assert [event["data"] for _, event in told] == [*range(ROUNDS * EACH)]
    assert [event["position"] for _, event in told] == [last_id for last_id, _ in told] == sorted(i for i, _ in told)
