"""What people say in the chat's rooms: talks, each a sequence of turns, and each turn a choice of sentences.

A sentence determines which ones can follow, so none is in two turns.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

Turn = tuple[str, ...]

TALKS: Mapping[str, tuple[tuple[Turn, ...], ...]] = MappingProxyType({
    "/chat/lobby": (
        (
            ("Good morning, everybody.", "Hello, all. What have I missed?"),
            ("Morning! Nothing has caught fire yet.", "Welcome back. Only the usual."),
            ("Then I can drink my tea in peace.", "That is how I like it."),
        ),
        (
            ("Is the demo at three or at four?",),
            ("At three. The room is on the second floor.", "Four. They have moved it, as every week."),
            ("Thanks, I shall bring a cable.", "Good, that leaves time for lunch."),
        ),
        (
            ("Has anyone seen what the market did just now?",),
            ("I look at it once a year, on principle.", "I saw it. I have sold my yacht, which I do not have."),
        ),
        (
            ("The lift is out of order again.",),
            ("Which one?", "Stairs are good for us, they say."),
            ("The left one. The other makes that noise.", "They have never carried a printer."),
        ),
        (
            ("Who has the key of the bicycle shed?",),
            ("I do. Give me five minutes.", "It hangs behind the door, as ever."),
            ("You are a treasure.", "So it does. I have looked everywhere else."),
        ),
    ),
    "/chat/kitchen": (
        (
            ("Is there any coffee left?",),
            ("Half a pot, and it is honest work.", "There was. I am not proud of it."),
            ("On my way.", "Then I shall make a new one."),
        ),
        (
            ("Somebody has brought a cake. Lemon.",),
            ("Keep me a piece, I am on a call!", "Whose birthday is it?"),
            ("No promises.", "Nobody's. It is simply a good day."),
        ),
        (
            ("Whose is the green box in the fridge?",),
            ("What does it look like inside?", "Not mine. Mine is blue."),
            ("It looks back.", "Then we shall not open it."),
        ),
        (
            ("Soup or sandwiches today?",),
            ("Soup. It is raining.", "Sandwiches; I have to be back at one."),
            ("See you at the door at noon.", "I am in."),
        ),
    ),
    "/chat/workshop": (
        (
            ("The robot has bumped into the bin again.",),
            ("The bin is not on its map.", "Which of the two was faster?"),
            ("Neither am I, and it stops for me.", "The bin has held its ground."),
        ),
        (
            ("Battery two is below twelve volts. Shall I swap it?",),
            ("Please do; the charger is free.", "Let it finish this lap first."),
            ("Done. It hums happily.", "It is back on the field."),
        ),
        (
            ("Who has the small torque wrench?",),
            ("It is in the drawer with the label 'large'.", "I have it. Coming over."),
            ("Of course it is.", "No hurry."),
        ),
        (
            ("The left wheel reads two per cent more than the right.",),
            ("New tyre on the left?", "Then it likes to turn right."),
            ("Since Tuesday, yes.", "I shall calibrate it after lunch."),
        ),
    ),
    "/chat/garden": (
        (
            ("The tomatoes are still green.",),
            ("Give them a week of sun.", "So is the paint on the bench."),
            ("If only somebody published that.", "I shall wait, then, standing."),
        ),
        (
            ("There is a hedgehog under the shed again.",),
            ("The same as last year?", "Then leave the gate open tonight."),
            ("It has not shown me its papers.", "It is open already."),
        ),
        (
            ("It smells of rain. Is the hose turned off?",),
            ("It is. I have looked twice.", "Going to see."),
            ("Good. Then it may begin.",),
        ),
    ),
})  # fmt: skip

WELCOMES = (
    "Hello! You are new here, aren't you?",
    "Nice to read you. Have a look at /market/* as well.",
    "Hear, hear.",
    "Good point. Has anybody written that down?",
)
"""Replies to a stranger who says anything else."""

ANSWERS: Mapping[str, Turn] = MappingProxyType({
    sentence: answers
    for talks in TALKS.values()
    for talk in talks
    for turn, answers in zip(talk, (*talk[1:], ()), strict=True)
    for sentence in turn
})  # fmt: skip
"""What may be said after a sentence; nothing after the last of a talk."""
