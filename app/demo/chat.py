"""The chat: four people over long-polling and one on an old page with JSONP, who answer each other.

All who read a sentence think of an answer and wait a moment. The first one says it; the others read that and drop
theirs. A sentence determines which ones can follow, so none is in two turns.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from random import Random
from typing import Any, NamedTuple

from app.client import Client
from app.demo.script_page import ScriptPage

_TALKS = """
/chat/lobby: Good morning, everybody. | Hello, all. What have I missed?
    > Morning! Nothing has caught fire yet. | Welcome back. Only the usual.
    > Then I can drink my tea in peace. | That is how I like it.
/chat/lobby: Has anyone seen what the market did just now?
    > I look at it once a year, on principle. | I saw it. I have sold my yacht, which I do not have.
/chat/kitchen: Is there any coffee left?
    > Half a pot, and it is honest work. | There was. I am not proud of it.
    > On my way. | Then I shall make a new one.
/chat/workshop: The robot has bumped into the bin again.
    > The bin is not on its map. | Which of the two was faster?
    > Neither am I, and it stops for me. | The bin has held its ground.
/chat/garden: The tomatoes are still green.
    > Give them a week of sun. | So is the paint on the bench.
    > If only somebody published that. | I shall wait, then, standing.
"""
"""Talks, with their rooms: the turns of a talk stand between `>`, the choices of a turn between `|`."""

WELCOMES = ("Hello! You are new here, aren't you?", "Nice to read you. Have a look at /market/* as well.")
"""Replies to a stranger who says anything else."""


def _read(talks: str) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Return the sentences that begin the talks of each room, and the answers to each sentence."""
    openings: dict[str, list[str]] = {}
    answers: dict[str, list[str]] = {}
    for talk in re.split(r"\n(?=/)", talks.strip()):
        room, _, text = talk.partition(": ")
        turns = [turn.split(" | ") for turn in re.split(r"\s*> ", text)]
        openings.setdefault(room, []).extend(turns[0])
        for turn, following in zip(turns, [*turns[1:], []], strict=True):
            answers |= dict.fromkeys(turn, following)
    return openings, answers


OPENINGS, ANSWERS = _read(_TALKS)

_LOBBY, _KITCHEN, _WORKSHOP, _GARDEN = OPENINGS
PEOPLE = {
    "Ada": (_LOBBY, _WORKSHOP, _GARDEN),
    "Bruno": (_LOBBY, _KITCHEN),
    "Chiara": (_KITCHEN, _WORKSHOP),
    "Dev": (_LOBBY, _KITCHEN, _WORKSHOP),
    "Edda": (_LOBBY, _KITCHEN, _GARDEN),
}
"""The rooms of each person."""

BY_JSONP = "Edda"

_FIRST_S = (0.5, 6.0)
_ANSWER_S = (1.5, 6.0)
_TOPIC_S = (10.0, 60.0)
"""How long a room is quiet before a person begins a new talk."""


class _Plan(NamedTuple):
    at_s: float
    text: str


class Person:
    """One of `PEOPLE`, who is in some rooms. Pure: the time is an argument."""

    def __init__(self, name: str, rooms: Iterable[str], random: Random, now_s: float) -> None:
        self.name = name
        self._random = random
        self._plans = {room: self._new_talk(room, now_s, _FIRST_S) for room in rooms}

    @property
    def speaks_at_s(self) -> float:
        """The time at which this person speaks, if no other does before."""
        return min(plan.at_s for plan in self._plans.values())

    def hear(self, room: str, data: Any, now_s: float) -> None:
        """Read what was said in a room, which can be any JSON: plan an answer, and drop what was planned there."""
        if room not in self._plans:
            return
        said = data if isinstance(data, dict) else {"text": data}
        speaker, text = (str(said.get(name)) for name in ("from", "text"))
        answers = ANSWERS.get(text, () if speaker in PEOPLE else WELCOMES)
        if answers and speaker != self.name:
            self._plans[room] = _Plan(now_s + self._random.uniform(*_ANSWER_S), self._random.choice(answers))
        else:
            self._plans[room] = self._new_talk(room, now_s, _TOPIC_S)

    def speak(self, now_s: float) -> Iterable[tuple[str, dict[str, str]]]:
        """Yield what this person says now: the room and the data to publish."""
        for room, plan in self._plans.items():
            if plan.at_s <= now_s:
                self._plans[room] = self._new_talk(room, now_s, _TOPIC_S)
                yield room, {"from": self.name, "text": plan.text}

    def _new_talk(self, room: str, now_s: float, within_s: tuple[float, float]) -> _Plan:
        return _Plan(now_s + self._random.uniform(*within_s), self._random.choice(OPENINGS[room]))


async def chat(server: str, random: Random, *, name: str) -> None:
    """Let one person take part until the connection is lost and cannot be restored."""
    clock = asyncio.get_running_loop().time
    async with ScriptPage(server) if name == BY_JSONP else Client(server) as page:
        person = Person(name, PEOPLE[name], random, clock())
        for room in PEOPLE[name]:
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
