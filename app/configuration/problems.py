"""The mistakes in a configuration, as their operator reads them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake: where it was made ("halley.toml:3", a variable, a flag), in which setting, and what was expected."""

    place: str
    key: str
    text: str

    def __str__(self) -> str:
        return ": ".join(part for part in (self.place, self.key, self.text) if part)


class BadSettings(Exception):
    """The settings cannot be used; `problems` has all mistakes, `str()` gives one per line."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


def unknown(what: str, name: str, known: Sequence[str]) -> str:
    """Return a message about an unknown name; it suggests the nearest of the names whose last part is similar."""
    endings = {_ending(key) for key in known}
    likely = get_close_matches(_ending(name), endings, n=1)
    namesakes = [key for key in known if _ending(key) in likely]
    nearest = get_close_matches(name, namesakes, n=1, cutoff=0)
    return f"no such {what}" + "".join(f"; did you mean {key}?" for key in nearest)


def _ending(key: str) -> str:
    return key.rpartition(".")[2]
