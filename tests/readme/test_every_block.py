"""Each block of the README is run by a test, and each test of one by its name."""

from __future__ import annotations

import re
from collections import Counter

from readme.table import CI, ROWS, block
from support.readme import README, ROOT, blocks_of

LANGUAGES = {"sh", "console", "js", "html", "python", "toml"}


def key(row):
    return row.title, row.first_line


def test_each_block_has_one_row_and_each_row_its_block():
    """A new block needs a test; one that is gone, or begins otherwise, leaves none behind."""
    there = Counter((each.title, each.first_line) for each in blocks_of(README))
    in_table = Counter(map(key, ROWS.values()))
    assert in_table - there == Counter(), "rows without a block"
    assert there - in_table == Counter(), "blocks that no test runs: give them a row in tests/readme/table.py"


def test_each_row_names_a_test_that_takes_its_block():
    """The test is there; its file asks for the block by the row's name."""
    for name, row in ROWS.items():
        file, _, test = row.run_by.partition("::")
        source = (ROOT / file).read_text(encoding="utf-8")
        if row.run_by == CI:
            assert f"readme_line '{name}'" in source, name
        else:
            assert f'block("{name}")' in source, f"{file} does not ask for {name}"
            assert re.search(rf"^(async )?def {test}\(", source, re.MULTILINE), row.run_by


def test_blocks_are_of_languages_that_somebody_can_run():
    """A fence without a language, or with another, would be a block for nobody."""
    assert {each.language for each in blocks_of(README)} <= LANGUAGES
    assert README.count("\n```") == 2 * len(blocks_of(README))


def test_a_block_is_found_by_its_name():
    """Not by its place, and with all of its lines."""
    assert block("test").splitlines() == [ROWS["test"].first_line]
