"""Gives MkDocs the pages of the repository: from where they stand, and in the order of the README.

Each Markdown file is a page at the path that it has in the repository, so links between pages are as they are written.
Other files that pages link to, such as pictures, are part of the site too.

The navigation begins with the README. The pages of its table "Where to read on" follow in that order. A page that the
table does not name is below the one of them that is nearest: in the same folder, or in a folder above.
"""  # noqa: INP001 - MkDocs loads this file by its path

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from mkdocs.structure.files import File, Files, InclusionLevel

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

TOP = Path(__file__).resolve().parents[2]
FOLDERS = ("app", "deploy", "static", "tests", ".github")
NOT_OURS = {"node_modules", "__pycache__", "build", "dist"}
FIRST = "README.md"
ORDER = "Where to read on"
"""The title above the README's table of pages."""

_LINK = re.compile(r"\]\(([^)\s#]+)(?:#[^)\s]*)?\)")
_BLOCK = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


def pages() -> list[str]:
    """Return the paths of all pages, from the top of the repository."""
    found = [*TOP.glob("*.md"), *(path for folder in FOLDERS for path in (TOP / folder).rglob("*.md"))]
    paths = [path.relative_to(TOP) for path in found]
    return sorted(path.as_posix() for path in paths if NOT_OURS.isdisjoint(path.parts))


def navigation() -> list[Any]:
    """Return the navigation, in MkDocs' form: a path is a page, a dictionary a section that begins with its page."""
    in_order = [page for page in _targets(FIRST, _text(FIRST).partition(f"\n## {ORDER}\n")[2]) if page.endswith(".md")]
    listed = [FIRST, *dict.fromkeys(in_order)]
    below: dict[str, list[str]] = {page: [] for page in listed}
    for page in pages():
        if page not in below:
            below[_nearest(page, listed)].append(page)
    return [{_title(page): [page, *below[page]]} if below[page] else page for page in listed]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Set the navigation, and watch the pages in `mkdocs serve`."""
    config.nav = navigation()
    config.watch = [*config.watch, *(str(TOP / page) for page in pages())]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages, the files that they link to, and the icon."""
    paths = dict.fromkeys(pages())
    for page in pages():
        paths |= dict.fromkeys(path for path in _targets(page, _text(page)) if (TOP / path).is_file())
    for path in [*paths, config.theme["favicon"]]:
        file = File.generated(config, path, abs_src_path=str(TOP / path), inclusion=InclusionLevel.INCLUDED)
        file.dest_uri = file.dest_uri.removeprefix(".github/")  # hosts of static sites leave out hidden folders
        files.append(file)
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001 - MkDocs' form
    """Let the search show what explains Halley before its changes and its tests."""
    if page.file.src_uri == "CHANGELOG.md" or page.file.src_uri.startswith("tests/"):
        page.meta["search"] = {"boost": 0.2}
    return markdown


def _text(page: str) -> str:
    """Return a page without its examples of code."""
    return _BLOCK.sub("", (TOP / page).read_text(encoding="utf-8"))


def _targets(page: str, text: str) -> list[str]:
    """Return what a part of a page links to inside of the repository."""
    here = (TOP / page).parent
    targets = [(here / target).resolve() for target in _LINK.findall(text) if "://" not in target]
    return [target.relative_to(TOP).as_posix() for target in targets if target.is_relative_to(TOP)]


def _nearest(page: str, listed: list[str]) -> str:
    """Return the listed page that is in the page's folder, or in the nearest folder above; else the README."""
    above = (str(folder / FIRST) for folder in PurePosixPath(page).parents)
    return next(candidate for candidate in above if candidate in listed)


def _title(page: str) -> str:
    """Return the title of a page."""
    found = re.search(r"^# (.+)$", _text(page), re.MULTILINE)
    return found[1] if found else page
