"""A person in the chat, who listens in a few rooms and says something from time to time.

All who read a sentence think of an answer and wait a moment. The first one says it; the others read that and drop
theirs. Pure: the time is an argument.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any, NamedTuple

from app.demo.sentences import ANSWERS, TALKS, WELCOMES

PEOPLE = ("Ada", "Bruno", "Chiara", "Dev", "Edda")

_FIRST_S = (0.5, 6.0)
_ANSWER_S = (1.5, 6.0)
_TOPIC_S = (10.0, 60.0)
"""How long a room is quiet before a person begins a new talk."""


class _Plan(NamedTuple):
    at_s: float
    text: str


class Person:
    """One of `PEOPLE`, who is in some rooms."""

    def __init__(self, name: str, rooms: Iterable[str], random: Random, now_s: float) -> None:
        self.name = name
        self._random = random
        self._plans = {room: self._new_topic(room, now_s, _FIRST_S) for room in rooms}

    @property
    def rooms(self) -> list[str]:
        """The rooms to listen in."""
        return [*self._plans]

    @property
    def speaks_at_s(self) -> float:
        """The time at which this person speaks, if no other does before."""
        return min(plan.at_s for plan in self._plans.values())

    def hear(self, room: str, data: Any, now_s: float) -> None:
        """Read what was said in a room: plan an answer, and drop what was planned there before."""
        if room not in self._plans:
            return
        speaker, text = _said(data)
        answers = ANSWERS.get(text, () if speaker in PEOPLE else WELCOMES)
        if answers and speaker != self.name:
            self._plans[room] = _Plan(now_s + self._random.uniform(*_ANSWER_S), self._random.choice(answers))
        else:
            self._plans[room] = self._new_topic(room, now_s, _TOPIC_S)

    def speak(self, now_s: float) -> Iterable[tuple[str, dict[str, str]]]:
        """Yield what this person says now: the room and the data to publish."""
        for room, plan in self._plans.items():
            if plan.at_s <= now_s:
                self._plans[room] = self._new_topic(room, now_s, _TOPIC_S)
                yield room, {"from": self.name, "text": plan.text}

    def _new_topic(self, room: str, now_s: float, within_s: tuple[float, float]) -> _Plan:
        talk = self._random.choice(TALKS[room])
        return _Plan(now_s + self._random.uniform(*within_s), self._random.choice(talk[0]))


def _said(data: Any) -> tuple[str, str]:
    """Return the speaker and the text of an event; each is empty if unknown, since anything can be published there."""
    if isinstance(data, dict):
        speaker, text = data.get("from"), data.get("text")
        return speaker if isinstance(speaker, str) else "", text if isinstance(text, str) else ""
    return "", data if isinstance(data, str) else ""
