"""The pipeline's page names the commands, tables, settings and queries that exist."""

import os
import re

import click
import pytest
from readme.table import block
from support.generated import TABLES as GENERATED
from support.readme import ROOT, page, section, without_blocks

from halley.cli import main
from halley.configuration import load
from halley.pipeline.jobs.run import consumer
from halley.pipeline.lake.dictionary import DICTIONARY
from halley.pipeline.lake.shapes import TABLES
from halley.pipeline.lake.sources import LABELS
from halley.pipeline.source.columns import ColumnExtraction, lifts_of

PIPELINE = without_blocks(page("app/halley/pipeline/README.md"))
GROUPS = ("pipeline", "lake")


def rows():
    """Return the first cell and the rest of each row of the tables."""
    tables = "".join(section("app/halley/pipeline/README.md", title) for title in ("Commands", "The lake"))
    return [line.strip("| ").split(" | ", 1) for line in tables.splitlines() if line.startswith("| `")]


def group(name):
    """Return the command group `pipeline` or `lake`."""
    return main.get_command(click.Context(main), name)


def verbs():
    """Return the verbs of both groups."""
    return {f"halley {name} {verb}" for name in GROUPS for verb in group(name).commands}


def test_every_verb_is_in_the_table():
    """The table has exactly the existing verbs, and other lines name no others."""
    commands = [first.strip("`") for first, _ in rows() if first.startswith("`halley ")]
    named = [" ".join(each.split()[:3]) for each in commands]
    assert sorted(named) == sorted(verbs())
    assert {f"halley {words}" for words in re.findall(r"halley ((?:pipeline|lake) [a-z]+)", PIPELINE)} <= verbs()


def test_every_option_that_is_named_is_one():
    """Every option on the page is an option of a verb of the pipeline or the lake."""
    known = {
        option
        for name in GROUPS
        for command in group(name).commands.values()
        for parameter in command.params
        for option in parameter.opts
    }
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", PIPELINE)) <= known


def test_every_table_of_the_lake_is_there():
    """The page has each table of the lake once, and names the same tables for queries."""
    named = [first.strip("`") for first, _ in rows() if not first.startswith("`halley ")]
    assert sorted(named) == sorted(TABLES)
    views = re.search(r"SQL over `([a-z ]+)`", PIPELINE)[1].split()
    assert sorted(views) == sorted(TABLES)


def test_every_column_has_a_meaning():
    """The data dictionary has exactly the tables and their stored columns, with those of a lake of several logs."""
    assert {name: [*entry.columns] for name, entry in DICTIONARY.items()} == {
        name: [*shape.columns.names, *LABELS.names] for name, shape in TABLES.items()
    }


@pytest.mark.parametrize("name", ["lake tables", "lake columns"])
def test_the_tables_and_columns_are_those_of_the_code(name):
    """The page's tables are generated; after a change of the schemas they must be generated again."""
    table = GENERATED[name]
    assert page(table.page) == table.written(page(table.page)), "out of date: python tests/support/generated.py"


def test_the_columns_that_are_named_are_columns():
    """A name in backticks in a table's row is one of its columns, or a value of one."""
    values = {"10s", "1m", "spike", "silence", "recovered"}
    for first, cell in rows():
        name = first.strip("`")
        if name in TABLES:
            assert set(re.findall(r"`(\w+)`", cell)) - values <= set(TABLES[name].columns.names), name


def test_the_settings_are_accepted(tmp_path):
    """The example with [[lift]] is valid and makes its column; every setting that the page names exists."""
    file = tmp_path / "halley.toml"
    file.write_text(block("lift"))
    settings = load(file, {}, {}).settings
    assert ColumnExtraction(lifts_of(settings)).columns == {"price": "double"}
    for table, name in re.findall(r"`(pipeline|history)\.(\w+)`", PIPELINE):
        assert hasattr(getattr(settings, table), name), name


def test_consumers_are_called_as_it_says(tmp_path):
    """Consumers are named after the job's kind and the lake."""
    names = re.findall(r"`([a-z]+)-xxxxxxxx`", PIPELINE)
    assert names == ["lake", "rollup", "alerts"]
    assert re.fullmatch("lake-[0-9a-f]{8}", consumer("lake", tmp_path))


def test_what_it_names_is_there():
    """Files and folders that the page names exist, and the program that starts a cluster can be executed."""
    named = re.findall(r"`((?:app|deploy|tests)/[\w./-]+)`", PIPELINE)
    assert "deploy/spark-standalone" in named
    for each in named:
        assert (ROOT / each).exists(), each
    assert os.access(ROOT / "deploy/spark-standalone", os.X_OK)
