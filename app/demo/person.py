"""Somebody in the chat: hears what is said in a few rooms, and now and then says something.

Everybody who hears a question makes up an answer and waits a moment. Whoever is first says it, and the others, hearing
that, keep theirs to themselves. Pure: when it is, is an argument.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from app.demo.sentences import ANSWERS, TALKS, WELCOMES

if TYPE_CHECKING:
    from collections.abc import Iterable
    from random import Random

PEOPLE = ("Ada", "Bruno", "Chiara", "Dev", "Edda")

_FIRST_S = (0.5, 6.0)
_ANSWER_S = (1.5, 6.0)
_TOPIC_S = (10.0, 60.0)
"""How long a room is quiet before somebody thinks of something new."""


class _Plan(NamedTuple):
    at_s: float
    text: str


class Person:
    """One of `PEOPLE`, in those rooms."""

    def __init__(self, name: str, rooms: Iterable[str], random: Random, now_s: float) -> None:
        self.name = name
        self._random = random
        self._plans = {room: self._new_topic(room, now_s, _FIRST_S) for room in rooms}

    @property
    def rooms(self) -> list[str]:
        """Where to listen."""
        return [*self._plans]

    @property
    def speaks_at_s(self) -> float:
        """When there is something to say, if nobody says anything before."""
        return min(plan.at_s for plan in self._plans.values())

    def hear(self, room: str, data: Any, now_s: float) -> None:
        """Somebody has said something: whatever was to be said in that room would no longer fit."""
        if room not in self._plans:
            return
        speaker, text = _said(data)
        answers = ANSWERS.get(text, () if speaker in PEOPLE else WELCOMES)
        if answers and speaker != self.name:
            self._plans[room] = _Plan(now_s + self._random.uniform(*_ANSWER_S), self._random.choice(answers))
        else:
            self._plans[room] = self._new_topic(room, now_s, _TOPIC_S)

    def speak(self, now_s: float) -> Iterable[tuple[str, dict[str, str]]]:
        """What is to be said now, and where."""
        for room, plan in self._plans.items():
            if plan.at_s <= now_s:
                self._plans[room] = self._new_topic(room, now_s, _TOPIC_S)
                yield room, {"from": self.name, "text": plan.text}

    def _new_topic(self, room: str, now_s: float, within_s: tuple[float, float]) -> _Plan:
        talk = self._random.choice(TALKS[room])
        return _Plan(now_s + self._random.uniform(*within_s), self._random.choice(talk[0]))


def _said(data: Any) -> tuple[str, str]:
    """Who has said what, as far as it is to be understood: anybody may publish anything."""
    if isinstance(data, dict):
        speaker, text = data.get("from"), data.get("text")
        return speaker if isinstance(speaker, str) else "", text if isinstance(text, str) else ""
    return "", data if isinstance(data, str) else ""
