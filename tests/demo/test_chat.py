"""People in the chat: they answer each other, and only one of them answers a sentence."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from halley.demo.chat import ANSWERS, OPENINGS, PEOPLE, TALKS, WELCOMES, Person

LOBBY = "/chat/lobby"
QUESTION = "Has anyone seen what the market did just now?"


@pytest.fixture(autouse=True)
def _one_room(monkeypatch):
    """Let nobody begin a talk elsewhere."""
    for room in {*OPENINGS} - {LOBBY}:
        monkeypatch.delitem(OPENINGS, room)


def everybody(seed=1):
    return [Person(name, Random(f"{seed} {name}"), 0.0) for name in PEOPLE]


def overheard(people, until_s, said=()):
    """Return what is said in a room in which all hear everything immediately; strangers speak first."""
    now_s, talk = 0.0, []
    for data in said:
        for each in people:
            each.read(LOBBY, data, now_s)
    while True:
        now_s, room, data = min((each.next for each in people), key=lambda said: said[0])
        if now_s >= until_s:
            return talk
        talk.append((now_s, data["from"], data["text"]))
        for each in people:
            each.read(room, data, now_s)


def test_no_sentence_stands_in_two_places():
    """A sentence determines which ones can follow."""
    sentences = [sentence for _, *turns in TALKS for turn in turns for sentence in turn.split(" | ")]
    assert len(sentences) == len({*sentences}) == len(ANSWERS)
    assert {*sentences} == {*ANSWERS}
    assert not {*sentences} & {*WELCOMES}


@pytest.mark.parametrize("seed", range(5))
def test_they_answer_each_other_until_a_talk_is_over(seed):
    """A sentence is followed by one of its answers, from another person; after the end of a talk a new one begins."""
    talk = overheard(everybody(seed), 600.0)
    openings = {*OPENINGS[LOBBY]}
    assert talk[0][2] in openings
    for (_, before, text), (_, speaker, answer) in pairwise(talk):
        if ANSWERS[text]:
            assert answer in ANSWERS[text]
            assert speaker != before
        else:
            assert answer in openings
    assert {speaker for _, speaker, _ in talk} == {*PEOPLE}


def test_it_is_no_flood():
    """In ten minutes there is always something new, and there is time to read it."""
    times = [at_s for at_s, _, _ in overheard(everybody(), 600.0)]
    assert 50 < len(times) < 300
    assert max(after - before for before, after in pairwise(times)) < 60


def test_strangers_are_answered_once():
    """A stranger who writes from the console gets an answer, and no one answers that again."""
    talk = overheard(everybody(), 10.0, [{"from": "Zoe", "text": "I am new."}])
    assert len([text for _, _, text in talk if text in WELCOMES]) == 1


def test_strangers_can_ask_what_people_ask():
    """A question is recognized by its words, also from a stranger."""
    talk = overheard(everybody(), 10.0, [QUESTION])
    assert talk[0][2] in ANSWERS[QUESTION]


@pytest.mark.parametrize("data", [None, 7, [], {}, {"from": 1, "text": []}, {"text": {"a": 1}}, ["text"]])
def test_whatever_is_published_confuses_nobody(data):
    """Any client can publish any data there."""
    assert len(overheard(everybody(), 120.0, [data])) > 1


def test_other_rooms_are_not_theirs():
    """Events of a room in which nobody talks have no effect."""
    (ada, *_) = everybody()
    before = ada.next
    ada.read("/chat/cellar", {"from": "Zoe", "text": QUESTION}, 0.0)
    assert ada.next == before
