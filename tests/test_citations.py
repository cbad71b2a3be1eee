"""Citations can be looked up: every cited code is in a table next to the tests, and every named page exists.

A code is a family and a number, as in the rows of `CODES-NA.md`. Only what is written for readers counts: names of
tests, docstrings and comments, but not strings that a program uses.
"""

from __future__ import annotations

import io
import re
import tokenize
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest
from support.readme import ROOT

INDEX = ROOT / "tests" / "CODES.md"
PAGES = {page.stem.removeprefix("CODES-"): page for page in sorted((ROOT / "tests").rglob("CODES-*.md"))}

ROW = re.compile(r"^\| *([A-Z]+)(\d+) *\| *(.*?) *\| *(.*?) *\|$", re.MULTILINE)
ELSEWHERE = {"nt4": {"A", "B", "D", "E", "F", "W", "WD"}, "wamp": {"A", "B", "D", "E", "NA", "ND", "NF"}}
"""Families that mean nothing in files of one protocol, by its name: such a code has lost its first letter."""

OTHER_WORDS = {"NT4", "Z85"}
"""What looks like a code and is not one."""

_CODE = re.compile(r"(?<![\w.$/\\&%#-])([A-Z]{1,2})(\d{1,2})(?:(?:-| to )\1(\d{1,2}))?(?![\w-]|\.\d)")
_IN_A_NAME = re.compile(r"^test_((?:[a-z]{1,2}\d{1,2}_)+)")
_MAY_CITE = re.compile(rf"{_CODE.pattern}|\bdef test_[a-z]{{1,2}}\d")
_FOR_TOOLS = re.compile(r"#\s*(noqa|type:|pragma|mypy:).*")
_JAVASCRIPT = re.compile(r"^\s*(?://|/?\*).*", re.MULTILINE)
_BEGINS_A_STATEMENT = {tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING}
_SKIPPED = {"node_modules", "__pycache__", ".venv", "build", "dist", "halley-data"}

TEXTS = (".c", ".conf", ".css", ".html", ".js", ".json", ".md", ".mjs", ".py", ".service", ".toml", ".yaml", ".yml", "")
_URL = re.compile(r"https?://\S+")
_PAGE = re.compile(r"[\w./-]*\w\.md\b")
_PAPER = re.compile(r"\b[Dd]esign,? \d|\b[Rr]ulings? \d|\b[Ss]eeds? \d{3}\b|\b[Ii]ssues? \d")


class Citation(NamedTuple):
    """A code, and the place where it is cited."""

    family: str
    number: int
    path: Path
    line: int

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line} cites {self.family}{self.number}"


def rows_of(page):
    """Return code, sentence and source of each of a page's rows."""
    return [(match[1], int(match[2]), match[3], match[4]) for match in ROW.finditer(page.read_text(encoding="utf-8"))]


def files(*suffixes):
    """Return the project's own files."""
    for folder in ("app", "tests", "static", "deploy", ".ci", ".github"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and path.suffix in suffixes and not _SKIPPED & {*path.relative_to(ROOT).parts}:
                yield path


def remarks(source):
    """Return the names of tests, the docstrings and the comments in a Python file, each with its first line."""
    before, word = tokenize.ENCODING, ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], _FOR_TOOLS.sub("", token.string)
        if token.type == tokenize.STRING and before in _BEGINS_A_STATEMENT:
            yield token.start[0], token.string
        elif token.type == tokenize.NAME and word == "def" and (match := _IN_A_NAME.match(token.string)):
            yield token.start[0], match[1].upper().replace("_", " ")
        if token.type not in (tokenize.COMMENT, tokenize.NL):
            before, word = token.type, token.string


def citations(path, texts):
    for line, text in texts:
        for match in _CODE.finditer(text):
            if match[0] in OTHER_WORDS:
                continue
            first = int(match[2])
            at = line + text.count("\n", 0, match.start())
            for number in range(first, int(match[3] or first) + 1):
                yield Citation(match[1], number, path, at)


def cited():
    """Return every code that Python and JavaScript files cite."""
    for path in files(".py"):
        source = path.read_text(encoding="utf-8")
        if _MAY_CITE.search(source):  # to read the tokens of all files would take seconds
            yield from citations(path, remarks(source))
    for path in files(".js", ".mjs"):
        source = path.read_text(encoding="utf-8")
        lines = ((source.count("\n", 0, match.start()) + 1, match[0]) for match in _JAVASCRIPT.finditer(source))
        yield from citations(path, lines)


@pytest.fixture(scope="module")
def all_cited():
    return list(cited())


@pytest.mark.parametrize("family", PAGES)
def test_a_page_has_its_own_family_in_order_with_sentences_and_sources(family):
    rows = rows_of(PAGES[family])
    assert rows, "a page without rows"
    assert {each for each, *_ in rows} == {family}
    assert all(before < after for (_, before, *_), (_, after, *_) in pairwise(rows)), "twice, or out of order"
    assert [f"{family}{number}" for _, number, sentence, source in rows if not (sentence and source)] == []


def test_the_index_lists_every_page():
    listed = set(re.findall(r"\(([\w/-]+\.md)\)", INDEX.read_text(encoding="utf-8")))
    assert listed == {page.relative_to(INDEX.parent).as_posix() for page in PAGES.values()}


def test_every_code_that_is_cited_is_in_a_table(all_cited):
    known = {(family, number) for page in PAGES.values() for family, number, *_ in rows_of(page)}
    assert [str(each) for each in all_cited if (each.family, each.number) not in known] == []


def test_every_row_is_cited_by_a_test(all_cited):
    shown = {(each.family, each.number) for each in all_cited if each.path.name.startswith("test_")}
    rows = [(family, number) for page in PAGES.values() for family, number, *_ in rows_of(page)]
    assert [f"{family}{number}" for family, number in rows if (family, number) not in shown] == []


def test_a_protocols_files_cite_no_other_protocols_codes(all_cited):
    astray = [
        str(each)
        for each in all_cited
        for protocol, families in ELSEWHERE.items()
        if protocol in each.path.relative_to(ROOT).as_posix() and each.family in families
    ]
    assert astray == []


def test_no_text_names_a_page_that_is_not_here():
    """No text names a page that the repository does not have, or a paper by a number that readers do not know."""
    pages = {*ROOT.glob("*.md"), *files(".md")}
    names = {page.name for page in pages}
    missing = []
    for path in [*ROOT.glob("*.md"), *ROOT.glob("*.toml"), *files(*TEXTS)]:
        whole = path.read_text(encoding="utf-8", errors="replace")
        lines = whole.splitlines() if ".md" in whole or _PAPER.search(whole) else ()
        for number, line in enumerate(lines, 1):
            text = _URL.sub("", line)
            named = [each[0].lstrip("/") for each in _PAGE.finditer(text)]
            absent = [each for each in named if each not in names and not is_here(each, path, pages)]
            missing += [f"{path.relative_to(ROOT)}:{number} names {each}" for each in absent]
            missing += [f"{path.relative_to(ROOT)}:{number} cites {each[0]!r}" for each in _PAPER.finditer(text)]
    assert missing == []


def is_here(name, path, pages):
    """Whether a page exists, by a path from the repository, the package or the text that names it."""
    return {(place / name).resolve() for place in (ROOT, ROOT / "app", path.parent)} & pages != set()


# What counts as a citation


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("# S12, P3\n", ["S12", "P3"]),
        ('"""NA21 to NA23, W2-W4."""\n', ["NA21", "NA22", "NA23", "W2", "W3", "W4"]),
        ('def f():\n    """One.\n\n    See (T20).\n    """\n', ["T20"]),
        ("def test_na2_s26_nobody(): ...\n", ["NA2", "S26"]),
        ("def test_the_a1_road(): ...\n", []),
        ('x = "S12"\nf("A28", b"%C3%A9")\ny = (\n    "S12 "\n    "S13"\n)\n', []),
        ('# S12\n\n"""A28."""\nx = 1\n"""P3."""\n', ["S12", "A28", "P3"]),
        ('x = 1  # noqa: T20, E12 - as it is\n"""UTF-8, HS256, NT4, 0xE12, E402, A4.1, B/S12."""\n', []),
        ("# of a family that has no page: K7\n", ["K7"]),
    ],
)
def test_what_is_a_citation(source, found):
    assert [f"{each.family}{each.number}" for each in citations(Path("x.py"), remarks(source))] == found
