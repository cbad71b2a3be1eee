"""The chat: four people over long-polling and one on an old page with JSONP, who answer each other."""

from __future__ import annotations

import asyncio
from functools import partial
from random import Random

from app.client import Client
from app.demo.comeback import come_back
from app.demo.person import PEOPLE, Person
from app.demo.script_page import ScriptPage
from app.demo.sentences import TALKS

BY_JSONP = PEOPLE[-1]
_LOBBY, _KITCHEN, _WORKSHOP, _GARDEN = TALKS
_WHERE = {
    "Ada": (_LOBBY, _WORKSHOP, _GARDEN),
    "Bruno": (_LOBBY, _KITCHEN),
    "Chiara": (_KITCHEN, _WORKSHOP),
    "Dev": (_LOBBY, _KITCHEN, _WORKSHOP),
    "Edda": (_LOBBY, _KITCHEN, _GARDEN),
}


async def chat(server: str, random: Random) -> None:
    """Let all of them chat at a server, until cancelled."""
    async with asyncio.TaskGroup() as group:
        for name in PEOPLE:
            own = Random(random.random())  # noqa: S311 - chatter
            group.create_task(come_back(partial(_visit, server, name, own), own))


async def _visit(server: str, name: str, random: Random) -> None:
    """Take part until the connection is lost and cannot be restored."""
    clock = asyncio.get_running_loop().time
    async with ScriptPage(server) if name == BY_JSONP else Client(server) as page:
        person = Person(name, _WHERE[name], random, clock())
        for room in person.rooms:
            await page.subscribe(room)
        while True:
            try:
                async with asyncio.timeout_at(person.speaks_at_s):
                    event = await anext(page)
            except TimeoutError:
                for room, words in person.speak(clock()):
                    await page.publish(room, words)
            else:
                person.hear(event.channel, event.data, clock())
