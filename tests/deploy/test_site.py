"""The site of the pages: it is built without a fault, has every page, and shows each as the repository's host does."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from functools import cache
from html.parser import HTMLParser
from itertools import zip_longest
from urllib.parse import unquote, urljoin, urlsplit

import pytest
from support.folder_server import files
from support.programs import CHROMIUM_FLAGS, require_browser, require_module
from support.readme import PAGES, ROOT, page

pytestmark = pytest.mark.slow
CONFIGURATION = "deploy/site/mkdocs.yml"
HOST = "http://site"
STRUCTURE = {"h1", "h2", "h3", "h4", "ul", "ol", "li", "table", "tr", "th", "td", "pre", "code", "em", "strong", "img"}
"""The elements that make a page what it is."""
BROWSER_S = 20
LATER = "later" + ".md"
"""The name of a page that this repository does not have."""


def built(top, site):
    """Build the site of a repository, as the workflow does, and return the ended process."""
    require_module("material", "pip install '.[site]'")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", top / CONFIGURATION, "-d", site]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    done = built(ROOT, folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def small(tmp_path):
    """The top of a repository with three pages, of which the README's table has one."""
    top = tmp_path / "build" / "repository"  # where a folder above has the name of one that is left out
    shutil.copytree(ROOT / "deploy/site", top / "deploy/site")
    for name, text in {
        "README.md": "# Top\n\n## Where to read on\n\n| page |\n|---|\n| [`deploy/README.md`](deploy/README.md) |\n",
        "deploy/README.md": f"# Operations\n\n## TLS\n\n[The way](migrate/{LATER}#first-step)\n",
        f"deploy/migrate/{LATER}": "# From elsewhere\n\n## First step\n\n[Back](../README.md#tls)\n",
        "static/favicon.svg": "<svg/>",
    }.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(text)
    return top


def place_of(path):
    """Return where the site has a page, below its top."""
    return re.sub(r"(^|/)README\.md$", r"\1", path.removeprefix(".github/")).replace(".md", "/") + "index.html"


class Seen(HTMLParser):
    """What a page has: its links and anchors, and the article's elements and texts without what the site adds."""

    def __init__(self, text):
        super().__init__()
        self.links, self.anchors, self.shown = [], set(), []
        self._inside, self._left_out = [], 0
        self.feed(text)
        self.shown = re.sub(r"\s+", " ", re.sub(r"\s*(</?\w+>)\s*", r"\1", "".join(self.shown))).strip()
        self.shown = self.shown.replace("<pre><code>", "<pre>").replace("</code></pre>", "</pre>")

    def handle_starttag(self, tag, attributes):
        named = dict(attributes)
        self.links += [named[each] for each in ("href", "src") if named.get(each)]
        self.anchors |= {named["id"]} if named.get("id") else set()
        if "headerlink" in (named.get("class") or ""):
            self._left_out += 1
        elif tag in STRUCTURE:
            self.shown.append(f"<{tag}>")

    def handle_endtag(self, tag):
        if tag == "a" and self._left_out:
            self._left_out -= 1
        elif tag in STRUCTURE:
            self.shown.append(f"</{tag}>")

    def handle_data(self, data):
        if not self._left_out:
            self.shown.append(data)


@cache
def seen_of(site, path):
    return Seen((site / path).read_text())


def targets(site):
    """Follow all links from the first page on; return the places found, and what leads into nothing."""
    found, waiting, broken = {"index.html"}, ["index.html"], []
    while waiting:
        place = waiting.pop()
        for link in seen_of(site, place).links:
            address = urlsplit(urljoin(f"{HOST}/{place}", link))
            if f"{address.scheme}://{address.netloc}" != HOST:
                continue
            path = unquote(address.path).lstrip("/")
            path += "index.html" if not path or path.endswith("/") else ""
            if not (site / path).is_file():
                broken.append((place, link))
            elif path.endswith(".html") and not path.startswith("static/console"):
                if address.fragment and unquote(address.fragment) not in seen_of(site, path).anchors:
                    broken.append((place, link))
                if path not in found:
                    found.add(path)
                    waiting.append(path)
    return found, broken


def test_every_page_is_reached_and_no_link_leads_into_nothing(site):
    """From the first page on, by links alone, all pages are found; each link has its page, file and title."""
    found, broken = targets(site)
    assert {place_of(path) for path in PAGES} - found == set()
    assert broken == []


@pytest.mark.parametrize("path", PAGES)
def test_a_page_is_shown_as_the_host_of_the_repository_shows_it(path, site):
    """The same titles, lists, tables, code and words: those that CommonMark, with tables, makes of the page."""
    require_module("markdown_it", "pip install '.[site]'")
    from markdown_it import MarkdownIt

    text = (site / place_of(path)).read_text()
    article = re.sub(
        r"<(form|aside)\b.*?</\1>", "", text.partition("<article")[2].partition("</article>")[0], flags=re.DOTALL
    )
    shown = Seen("<article" + article).shown
    expected = Seen(MarkdownIt("commonmark").enable("table").render(page(path))).shown
    for one, other in zip_longest(shown.split("<"), expected.split("<")):
        assert one == other


def test_the_search_has_every_page_and_finds_a_term(site):
    """The index has each page, and a term of one with its section."""
    documents = json.loads((site / "search/search_index.json").read_text())["docs"]
    assert {place_of(path) for path in PAGES} <= {
        each["location"].partition("#")[0] + "index.html" for each in documents
    }
    (found,) = [each for each in documents if each["location"] == "app/halley/history/#publishing-twice"]
    assert "idempotency_key" in found["text"]


async def test_a_reader_searches_in_a_browser(site):
    """Typing finds what explains the word before the changelog does, and nothing is loaded from elsewhere."""
    program = require_browser()
    from playwright.async_api import async_playwright, expect

    with files(site) as origin:
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=program, args=CHROMIUM_FLAGS)
            tab = await browser.new_page()
            tab.set_default_timeout(BROWSER_S * 1000)
            requested = []
            tab.on("request", lambda request: requested.append(request.url))
            await tab.goto(f"{origin}/")
            # What is in the field is searched at each key, and not when it is put there.
            await tab.locator(".md-search__input").press_sequentially("idempotency")
            results = tab.locator(".md-search-result__item h1")
            await expect(results.filter(has_text="Changelog")).to_have_count(1, timeout=BROWSER_S * 1000)
            other = re.compile(r"^\s*(?!Changelog\s*$)\S")  # the results of the last keys come a moment later
            await expect(results.first).to_have_text(other, timeout=BROWSER_S * 1000)
            await browser.close()
    assert [url for url in requested if not url.startswith((f"{origin}/", "data:", "blob:"))] == []


def test_a_page_that_no_table_names_is_below_the_nearest_that_one_names(small, tmp_path):
    """A page that is added later is on the site, with nothing changed for it."""
    done = built(small, tmp_path / "site")
    assert done.returncode == 0, done.stderr
    first = seen_of(tmp_path / "site", "index.html")
    in_order = dict.fromkeys(link for link in first.links if link.startswith("deploy/"))
    assert [*in_order] == ["deploy/", "deploy/migrate/later/"]


@pytest.mark.parametrize("link", [f"migrate/none-{LATER}", f"migrate/{LATER}#nowhere", "#nowhere", "../LICENSE"])
def test_a_link_into_nothing_is_an_error(link, small, tmp_path):
    """The build fails, and names the page and the link."""
    with (small / "deploy/README.md").open("a") as readme:
        readme.write(f"\n[Broken]({link})\n")
    done = built(small, tmp_path / "site")
    assert done.returncode != 0
    assert re.search(rf"WARNING.*deploy/README\.md.*{re.escape(link)}", done.stderr)
