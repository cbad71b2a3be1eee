"""The texts and names of Halley are plain English: words that were given up do not come back.

Looked at are docstrings, comments and strings of the package, the console and the files for production, and all pages;
of names those in the package and the console, word by word, and of files.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from typing import TYPE_CHECKING

from support.readme import PAGES, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

GIVEN_UP = {
    r"(?<!there )(?:is|are|was|were) no (?!longer|more\b|other\b|less\b|fewer\b)": "is not a",
    r"(?:who|what|whom)ever": "a noun: a client that ..., any ...",
    r"likewise": "also, the same for",
    r"lest": "so that ... not",
    r"anew": "again",
    r"beside": "next to, besides",
    r"hears?|heard": "receives",
    r"tells?|told": "reports, logs, notifies",
    r"so many": "the number of",
    r"stands? there|stood there": "exists",
    r"be had": "is available",
    r"the latter": "its name",
    r"as (?:many|much|large|long|few) as (?:may|can) be": "the maximum",
    r"is leaving": "is shutting down",
    r"hence|thereby|therein|whereupon|wherefore|thus": "so",
}
"""What was given up, as a pattern, and what is written instead."""

GIVEN_UP_NAMES = {
    "told tell tells telling said": "report, notify, send, log; or the noun: the message, the reason, the answer",
    "heard hear hears unheard": "received, received_at, subscribers",
    "shown": "the noun: the text, the row",
    "aside": "in_thread, conflated",
    "asker": "KeeperClient",
    "fleeting": "direct",
    "roster": "RemoteSessions",
    "inquiry": "MetaApiQueries",
    "squeeze lay": "put, drop",
    "stranger": "unknown user, visitor",
    "went": "the verb: replaced, recreated",
    "wish wishes": "request",
    "owe owes owing": "can_reread",
    "beside": "the noun",
    "amiss": "faults",
    "comings": "SessionChanges",
}
"""Words of names that say little to a reader who does not know the code, and what is written instead."""

_PAGE = (ROOT / "app" / "README.md").read_text(encoding="utf-8").partition("\n| not | but |\n|---|---|\n")[2]
_ON_PAGE = {word for row in _PAGE.splitlines() for word in re.findall(r"`(\w+)`", row.split("|")[1])}
"""The parts of names that the page of words gives up, in its last table."""

_BAD_NAME = {word for words in GIVEN_UP_NAMES for word in words.split()} | _ON_PAGE
_PARTS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
_SCRIPT_NAME = re.compile(r"[A-Za-z_]\w*")
_SHOWN_IN_BROWSERS = frozenset({"shown"})
"""In the console a thing that is shown is on the screen."""

FRAGMENT = re.compile(r"(?:And|But|Or|Nor|Then|Its|Their|Likewise|(?:Yes|No)(?=[.,:;]))\b")
"""How a docstring begins that cannot be read without the one before it."""

_WORDS = re.compile(rf"\b({'|'.join(GIVEN_UP)})\b", re.IGNORECASE)
_COMMENT = re.compile(rf"#.*\b({'|'.join(GIVEN_UP)})\b", re.IGNORECASE)
_NAMES = re.compile(r"`[^`]*`|^\s+\w+\s{2,}", re.MULTILINE)
"""Names of a program in a docstring: quoted, or the first in the row of a table."""

_CODE = re.compile(r"`[^`]*`|^ \*     .*$|\{\{.*?\}\}|^[\"']\w+[\"']$", re.MULTILINE)
_EXAMPLE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_SCRIPT = re.compile(r"/\*.*?\*/|//[^\n]*|<!--.*?-->|>[^<>{}]+<|\"[^\"\n]*\"|'[^'\n]*'|`[^`]*`", re.DOTALL)


def python_texts(text: str) -> Iterator[tuple[int, str]]:
    """Yield comments and strings of more than a word with their lines; comments only if one may have a wrong word."""
    if _COMMENT.search(text):  # to read the tokens of all files would take seconds
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, _NAMES.sub("", node.value)


def other_texts(path: Path, text: str) -> Iterator[tuple[int, str]]:
    """Yield the comments and texts of a script or a page of the web, and all lines of other files."""
    if path.suffix in {".js", ".html", ".css", ".mjs"}:
        for found in _SCRIPT.finditer(text):
            yield text.count("\n", 0, found.start()) + 1, _CODE.sub("", found[0])
    else:
        yield from enumerate(_EXAMPLE.sub(lambda found: "\n" * found[0].count("\n"), text).splitlines(), 1)


def files() -> Iterator[Path]:
    """Yield the files with texts for readers, without those of tests.

    Left out are the changelog, which quotes old texts, and what people say in the demo's chat.
    """
    for folder in ("app", "static", "deploy"):
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and path.suffix not in {".md", ".pyc"} and path.name != "sentences.py":
                yield path
    yield from (ROOT / page for page in PAGES if page != "CHANGELOG.md")


def texts(path: Path) -> Iterator[tuple[int, str]]:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:  # an image
        return iter(())
    return python_texts(text) if path.suffix == ".py" else other_texts(path, text)


def test_words_that_were_given_up_are_not_used():
    """Each is in the way of a reader whose first language is not the author's."""
    hits = [
        f"{path.relative_to(ROOT)}:{line}: {found[0]!r}"
        for path in files()
        for line, text in texts(path)
        for found in _WORDS.finditer(text)
    ]
    assert hits == []


def test_a_docstring_does_not_continue_another():
    """It is read in a hover, without the one above it."""
    hits = []
    for path in files():
        if path.suffix == ".py":
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                    text = ast.get_docstring(node)
                    if text and FRAGMENT.match(text):
                        hits.append(f"{path.relative_to(ROOT)}:{node.body[0].lineno}: {text.splitlines()[0]}")
    assert hits == []


def names(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the names that a file defines or uses as its own, with their lines; first the file's."""
    yield 0, path.stem
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".js":
        code = _SCRIPT.sub(lambda found: "\n" * found[0].count("\n"), text)
        for line, content in enumerate(code.splitlines(), 1):
            yield from ((line, name) for name in _SCRIPT_NAME.findall(content))
        return
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name


def test_the_page_gives_up_parts_of_names():
    """Its table is read, and has parts of names, in small letters."""
    assert len(_ON_PAGE) > 8
    assert all(_PARTS.findall(word) == [word] for word in _ON_PAGE)


def test_names_have_the_words_of_the_field():
    """A name is read far more often than what explains it."""
    hits = []
    for path in files():
        if path.suffix in {".py", ".js"}:
            bad = _BAD_NAME - _SHOWN_IN_BROWSERS if path.suffix == ".js" else _BAD_NAME
            for line, name in names(path):
                if not bad.isdisjoint(part.lower() for part in _PARTS.findall(name)):
                    hits.append(f"{path.relative_to(ROOT)}:{line}: {name}")
    assert hits == []
