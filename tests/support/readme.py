"""The pages: every Markdown file of the repository, for tests of their statements and examples."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
_FOLDERS = ("app", "static", "deploy", "tests")
_BLOCK_OR_TITLE = re.compile(
    r"^```(?P<language>\w*)\n(?P<text>.*?)^```$"
    r"|^#+ (?P<title>[^\n]+)$"
    r"|^\*\*(?P<lead>[^*\n]+?)[.]?\*\*",  # begins a paragraph as a title would
    re.DOTALL | re.MULTILINE,
)


def _pages() -> tuple[str, ...]:
    """Return the paths of all pages, the README first, without the pages of npm packages."""
    found = [*ROOT.glob("*.md"), *(ROOT / ".github").glob("*.md")]
    for folder in _FOLDERS:
        found += [path for path in (ROOT / folder).rglob("*.md") if "node_modules" not in path.parts]
    paths = sorted(path.relative_to(ROOT).as_posix() for path in found)
    return tuple(sorted(paths, key=lambda path: path != "README.md"))


PAGES = _pages()


class Block(NamedTuple):
    """A fenced block: its language, its text, and the title before it, or the bold beginning of a paragraph."""

    title: str
    language: str
    text: str

    @property
    def first_line(self) -> str:
        """The first line, which distinguishes the block from others below the same title."""
        return self.text.partition("\n")[0]


@cache
def page(path: str) -> str:
    """Return the text of a page, by its path in the repository."""
    return (ROOT / path).read_text(encoding="utf-8")


def blocks_of(markdown: str) -> list[Block]:
    """Return all fenced blocks of a page, in order. A line inside a block is never taken for a title."""
    found, title = [], ""
    for match in _BLOCK_OR_TITLE.finditer(markdown):
        if match["text"] is not None:
            found.append(Block(title, match["language"], match["text"]))
        else:
            title = match["title"] or match["lead"]
    return found


def without_blocks(markdown: str) -> str:
    """Return a page without the contents of its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", markdown, flags=re.DOTALL | re.MULTILINE)


def titles_of(markdown: str, level: int = 0) -> list[str]:
    """Return the titles of a page, in order; all of them, or only those of one level."""
    marks = "#" * level or "#+"
    return re.findall(rf"^{marks} (.*)$", without_blocks(markdown), re.MULTILINE)


def anchor(title: str) -> str:
    """Return the anchor of a title within its page, as GitHub makes it."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def section(path: str, title: str) -> str:
    """Return the text below a title of a page, up to the next title of the same level or a higher one."""
    found = re.search(rf"^(#+) {re.escape(title)}\n", page(path), re.MULTILINE)
    assert found is not None, f"{path} has no title {title}"
    rest = page(path)[found.end() :]
    end = re.search(rf"^#{{1,{len(found[1])}}} ", rest, re.MULTILINE)
    return rest[: end.start()] if end else rest
