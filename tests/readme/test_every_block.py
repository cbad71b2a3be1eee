"""Each block of every page is run by a test, which gets the block by its name."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from readme.table import CI, ROWS, block
from support.readme import PAGES, ROOT, blocks_of, page

LANGUAGES = {"sh", "console", "js", "html", "python", "toml"}


def test_each_block_has_one_row_and_each_row_its_block():
    """A new block needs a row and a test; the row of a block that was removed or changed must be updated."""
    there = Counter((path, each.title, each.first_line) for path in PAGES for each in blocks_of(page(path)))
    in_table = Counter((row.page, row.title, row.first_line) for row in ROWS.values())
    assert in_table - there == Counter(), "rows without a block"
    assert there - in_table == Counter(), "blocks that no test runs: give them a row in tests/readme/table.py"


def test_each_row_names_a_test_that_takes_its_block():
    """The test that a row names exists, and its file gets the block by the row's name."""
    for name, row in ROWS.items():
        file, _, test = row.run_by.partition("::")
        source = (ROOT / file).read_text(encoding="utf-8")
        if row.run_by == CI:
            assert f"readme_line '{name}'" in source, name
        else:
            assert f'block("{name}")' in source, f"{file} does not ask for {name}"
            assert re.search(rf"^(async )?def {test}\(", source, re.MULTILINE), row.run_by


@pytest.mark.parametrize("path", PAGES)
def test_blocks_are_of_languages_that_somebody_can_run(path):
    """All blocks have a language for which there are tests."""
    assert {each.language for each in blocks_of(page(path))} <= LANGUAGES
    assert page(path).count("\n```") == 2 * len(blocks_of(page(path)))


def test_a_block_is_found_by_its_name():
    """`block` returns all lines of a block, by its name."""
    assert block("test").splitlines() == [ROWS["test"].first_line]
