"""The chat: four people with Halley's own client and one on an old page with JSONP, who answer each other.

All who read a sentence think of an answer and wait a moment. The first one says it; the others read that and drop
theirs. A sentence determines which ones can follow, so none is in two turns.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from random import Random
from typing import Any

import httpx

from halley.client import Client
from halley.client.client import Transport
from halley.client.wire import Trace, Wire

TALKS = (
    ("/chat/lobby", "Good morning, everybody. | Hello, all. What have I missed?",
     "Morning! Nothing has caught fire yet. | Welcome back. Only the usual.",
     "Then I can drink my tea in peace. | That is how I like it."),
    ("/chat/lobby", "Has anyone seen what the market did just now?",
     "I look at it once a year, on principle. | I saw it. I have sold my yacht, which I do not have."),
    ("/chat/kitchen", "Is there any coffee left?",
     "Half a pot, and it is honest work. | There was. I am not proud of it.",
     "On my way. | Then I shall make a new one."),
    ("/chat/workshop", "The robot has bumped into the bin again.",
     "The bin is not on its map. | Which of the two was faster?",
     "Neither am I, and it stops for me. | The bin has held its ground."),
    ("/chat/garden", "The tomatoes are still green.",
     "Give them a week of sun. | So is the paint on the bench.",
     "If only somebody published that. | I shall wait, then, standing."),
)  # fmt: skip
"""Each talk: its room and its turns, with the choices of a turn between `|`."""

WELCOMES = ("Hello! You are new here, aren't you?", "Nice to read you. Have a look at /market/* as well.")
"""Replies to a stranger who says anything else."""

OPENINGS: dict[str, list[str]] = {}
ANSWERS: dict[str, list[str]] = {}
"""The sentences that begin the talks of each room, and the answers to each sentence."""

for _room, *_turns in TALKS:
    _choices = [turn.split(" | ") for turn in _turns]
    OPENINGS.setdefault(_room, []).extend(_choices[0])
    for _sentences, _following in zip(_choices, [*_choices[1:], []], strict=True):
        ANSWERS |= dict.fromkeys(_sentences, _following)

BY_JSONP = "Edda"
PEOPLE = ("Ada", "Bruno", "Chiara", "Dev", BY_JSONP)

_SOON_S, _LATER_S = (1.5, 6.0), (15.0, 90.0)
"""When a person answers, and how long a room is quiet before this one begins a new talk."""


class Person:
    """One of `PEOPLE`, who is in all rooms and has a plan for each: when to say what. Pure: the time is an argument."""

    def __init__(self, name: str, random: Random, now_s: float) -> None:
        self._name = name
        self._random = random
        self._plans: dict[str, tuple[float, str]] = {}
        for room in OPENINGS:
            self._plan(room, now_s, _SOON_S)

    def _plan(self, room: str, now_s: float, within_s: tuple[float, float], answers: Sequence[str] = ()) -> None:
        self._plans[room] = now_s + self._random.uniform(*within_s), self._random.choice(answers or OPENINGS[room])

    @property
    def next(self) -> tuple[float, str, dict[str, str]]:
        """What this person says next, if no other does before: the time, the room, and the data to publish."""
        (at_s, text), room = min((plan, room) for room, plan in self._plans.items())
        return at_s, room, {"from": self._name, "text": text}

    def read(self, room: str, data: Any, now_s: float) -> None:
        """Read what was said in a room, which can be any JSON: plan an answer, and drop what was planned there."""
        message = data if isinstance(data, dict) else {"text": data}
        speaker, text = (str(message.get(name)) for name in ("from", "text"))
        answers = ANSWERS.get(text, () if speaker in PEOPLE else WELCOMES) if speaker != self._name else ()
        if room in OPENINGS:
            self._plan(room, now_s, _SOON_S if answers else _LATER_S, answers)


class _ScriptWire(Wire):
    """Messages in the address of a script, and the replies within the script (JSONP, Bayeux 1.0, 6.2)."""

    connection_type = "callback-polling"

    def _request(self, body: bytes) -> dict[str, Any]:
        return {"method": "GET", "url": self.url, "params": {"jsonp": "page.receive", "message": body.decode()}}

    async def _send(self, body: bytes, trace: Trace) -> tuple[httpx.Response, bytes]:
        response, script = await super()._send(body, trace)
        call = re.fullmatch(rb"/\*\*/page\.receive\((.*)\);", script, re.DOTALL)
        return response, call[1] if call else script


class ScriptPage(Client):
    """The client of an old web page, which can only load scripts."""

    def _wire_to(self, server: str, token: str | None, transport: Transport) -> Wire:  # noqa: ARG002 - there is one way
        return _ScriptWire(server, token)


async def take_part(server: str, random: Random, *, name: str) -> None:
    """Let one person take part until the connection is lost and cannot be restored."""
    clock = asyncio.get_running_loop().time
    async with (ScriptPage if name == BY_JSONP else Client)(server) as page:
        await page.subscribe("/chat/*")
        person = Person(name, random, clock())
        while True:
            at_s, room, words = person.next
            try:
                async with asyncio.timeout_at(at_s):
                    event = await anext(page)
            except TimeoutError:
                await page.publish(room, words)
                person.read(room, words, clock())
            else:
                person.read(event.channel, event.data, clock())
