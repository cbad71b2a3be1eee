"""The pages refer only to what exists: titles, pages, files of the repository, and fields that the server publishes."""

from __future__ import annotations

import asyncio
import re
import tomllib

import pytest
from support.messages import HANDSHAKE, connect, publish, subscribe
from support.process import launched
from support.readme import PAGES, ROOT, anchor, page, section, titles_of, without_blocks
from support.wire import DEADLINE_S, request

from halley.settings import LIMITS

TICKING = ("/halley/rates", "/halley/topics", "/halley/queues")


ORDER = ["What it is for", "Example", "Reference", "Limits"]
OTHERS = ("app/README.md", "tests/README.md", "deploy/examples/chat/README.md")  # a map, a manual and a tutorial
ABOUT_A_ROOM = [path for path in PAGES if path.endswith("/README.md") and path not in OTHERS]


def links_of(path):
    """Return the targets of a page's links and pictures, except those on other sites."""
    links = re.findall(r"\]\(([^)\s]+)\)", without_blocks(page(path)))
    return [link for link in links if not link.startswith(("http://", "https://"))]


@pytest.mark.parametrize("path", PAGES)
def test_every_link_leads_somewhere(path):
    """Every link leads to a file or folder of the repository and, after a `#`, to a title of that page."""
    for link in links_of(path):
        file, _, at = link.partition("#")
        target = (ROOT / path).parent / file if file else ROOT / path
        assert target.exists(), link
        if at:
            assert at in map(anchor, titles_of(target.read_text(encoding="utf-8"))), link


def test_the_readme_is_one_page():
    """The README has at most 275 lines, with the whole pages of its examples."""
    assert page("README.md").count("\n") <= 275


def test_the_readme_names_the_page_that_a_link_leads_to():
    """Links have their target as text, since PyPI shows the README too, where links to files do not work.

    They cannot be absolute, as the project has no address.
    """
    links = re.findall(r"(?<!!)\[([^]]+)\]\(([^)#\s]+)\)", without_blocks(page("README.md")))
    assert [(text, target) for text, target in links if "://" not in target and text != f"`{target}`"] == []


def test_the_readme_leads_to_every_other_page():
    """The README links to every page, except for pages for people who work on the tests."""
    on_the_map = {path for path in PAGES if not path.startswith("tests/")} | {"tests/bench/README.md"}
    assert {link.partition("#")[0] for link in links_of("README.md")} >= on_the_map - {"README.md"}


@pytest.mark.parametrize("path", ABOUT_A_ROOM)
def test_pages_about_a_room_have_the_same_order(path):
    """Pages about a room have the same titles: what it is for, an example, the reference, the limits."""
    assert titles_of(page(path), level=2) == ORDER


def test_the_glossary_is_short():
    """The glossary has at most 40 words, each once."""
    words = re.findall(r"^\| ([^`|]+) \|", section("app/README.md", "The words"), re.MULTILINE)[1:]
    assert 20 < len(words) <= 40
    assert len(set(words)) == len(words)


@pytest.mark.parametrize("path", PAGES)
def test_no_title_is_on_a_page_twice(path):
    """Titles of a page differ, so that each has its own anchor."""
    titles = titles_of(page(path))
    assert sorted(set(titles)) == sorted(titles)


def test_files_that_are_named_are_there():
    """Files and folders of the repository that a page names exist."""
    named = {
        (path, name)
        for path in PAGES
        for name in re.findall(r"`((?:app|tests|static|deploy|\.ci|\.github)/[\w./-]*)`", page(path))
    }
    assert len({name for _, name in named}) > 50
    assert [(path, name) for path, name in named if not (ROOT / name).exists()] == []


def test_every_page_is_a_part_of_the_source_distribution():
    """Every page is in the source distribution, so that its links work there too."""
    build = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]
    included = tuple(build["targets"]["sdist"]["include"])
    assert [path for path in PAGES if not f"/{path}".startswith(included)] == []


def keys(value):
    """Return all names of members in a JSON value."""
    if isinstance(value, list):
        return {key for each in value for key in keys(each)}
    return value.keys() | {key for each in value.values() for key in keys(each)} if isinstance(value, dict) else set()


async def test_what_the_server_tells_has_the_fields_that_the_page_names(tmp_path):
    """The page names all fields that a real server has in its three topics and in GET /rights."""
    told = {}
    async with launched("--nt4", "--nt4-port", "0", cwd=tmp_path) as server:
        wire = await server.wire()
        client_id = (await wire.post(HANDSHAKE)).messages[0]["clientId"]
        await wire.post(connect(client_id))
        await wire.post(*(subscribe(client_id, channel) for channel in (*TICKING, "/chat/*")))
        await wire.post(publish("/chat/lobby", "hello"))
        async with asyncio.timeout(DEADLINE_S):
            while told.keys() < set(TICKING):
                for message in (await wire.post(connect(client_id))).messages:
                    told |= {message["channel"]: message["data"]} if message["channel"] in TICKING else {}
        rights = (await wire.request(request("GET", "/rights"))).messages
    written = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", without_blocks(page("static/README.md"))))))
    for each in (*told.values(), rights):
        assert keys(each) - written - set(LIMITS) == set()
