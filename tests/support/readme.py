"""The README, for tests of what it says and of what it shows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
_BLOCK_OR_TITLE = re.compile(
    r"^```(?P<language>\w*)\n(?P<text>.*?)^```$"
    r"|^#+ (?P<title>[^\n]+)$"
    r"|^\*\*(?P<lead>[^*\n]+?)[.]?\*\*",  # begins a paragraph as a title would
    re.DOTALL | re.MULTILINE,
)


class Block(NamedTuple):
    """A fenced block: its language, what is in it, and the title before it, or a paragraph's bold beginning."""

    title: str
    language: str
    text: str

    @property
    def first_line(self) -> str:
        """Tells it from others below the same title."""
        return self.text.partition("\n")[0]


def blocks_of(markdown: str) -> list[Block]:
    """All fenced blocks of a page, in order. What stands in a block is no title."""
    found, title = [], ""
    for match in _BLOCK_OR_TITLE.finditer(markdown):
        if match["text"] is not None:
            found.append(Block(title, match["language"], match["text"]))
        else:
            title = match["title"] or match["lead"]
    return found


def section(title: str) -> str:
    """What stands below a title of the second level, up to the next one."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", README, re.DOTALL | re.MULTILINE)
    assert found is not None, title
    return found[1]


PIPELINE = section("Data pipeline")
