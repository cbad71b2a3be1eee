"""What the README refers to is there: places in it, files of the repository, fields of what the server tells."""

from __future__ import annotations

import asyncio
import re

from support.messages import HANDSHAKE, connect, publish, subscribe
from support.process import launched
from support.readme import README, ROOT, section
from support.wire import DEADLINE_S, request

from app.settings import LIMITS

TICKING = ("/halley/rates", "/halley/topics", "/halley/queues")


def anchor(title):
    """As GitHub makes it."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def test_links_within_the_page_lead_somewhere():
    """Every `#anchor` is a title's."""
    titles = {anchor(title) for title in re.findall(r"^#+ (.*)$", README, re.MULTILINE)}
    linked = set(re.findall(r"\]\(#([\w-]+)\)", README))
    assert linked
    assert linked <= titles


def test_files_that_are_named_are_there():
    """Files and folders of the repository, and pictures."""
    named = set(re.findall(r"`((?:app|tests|static|deploy|\.ci)/[\w./-]*)`|!\[[^\]]*\]\(([^)]+)\)", README))
    files = {one or other for one, other in named}
    assert len(files) > 50
    assert [each for each in files if not (ROOT / each).exists()] == []


def keys(value):
    """All names in a JSON value."""
    if isinstance(value, list):
        return {key for each in value for key in keys(each)}
    return value.keys() | {key for each in value.values() for key in keys(each)} if isinstance(value, dict) else set()


async def test_what_the_server_tells_has_the_fields_that_the_page_names(tmp_path):
    """A real server with a session that listens; all fields of the three topics and of GET /rights are written."""
    told = {}
    async with launched("--nt4", "--nt4-port", "0", cwd=tmp_path) as server:
        wire = await server.wire()
        client_id = (await wire.post(HANDSHAKE)).messages[0]["clientId"]
        await wire.post(connect(client_id))
        await wire.post(*(subscribe(client_id, channel) for channel in (*TICKING, "/chat/*")))
        await wire.post(publish("/chat/lobby", "hello"))
        async with asyncio.timeout(DEADLINE_S):
            while told.keys() < set(TICKING):
                for message in (await wire.post(connect(client_id))).messages:
                    told |= {message["channel"]: message["data"]} if message["channel"] in TICKING else {}
        rights = (await wire.request(request("GET", "/rights"))).messages
    written = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", section("The console")))))
    for each in (*told.values(), rights):
        assert keys(each) - written - set(LIMITS) == set()
