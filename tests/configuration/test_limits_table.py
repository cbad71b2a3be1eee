"""The table of limits on the settings' page agrees with the declarations."""

from __future__ import annotations

from click.testing import CliRunner
from support.generated import TABLES
from support.readme import page

from halley.cli import main
from halley.configuration import limits_table
from halley.settings import LIMITS


def test_the_page_has_the_limits_of_the_settings():
    """The table is generated; after a change of a default or reason it must be generated again."""
    table = TABLES["limits"]
    assert page(table.page) == table.written(page(table.page)), "out of date: python tests/support/generated.py"


def test_the_command_prints_it():
    """`check-config --markdown` prints the defaults, regardless of the settings of this machine."""
    printed = CliRunner(env={"HALLEY_LIMITS_HEADERS": "9"}).invoke(main, ["check-config", "--markdown"])
    assert (printed.exit_code, printed.output.splitlines()) == (0, [*limits_table()])


def test_every_limit_that_says_no_is_in_it():
    """The table has all limits, also those outside of [limits], with their units."""
    rows = {line.split("`")[1].partition(".")[2]: line for line in limits_table() if "`" in line}
    assert rows.keys() >= set(LIMITS)
    assert "262,144 bytes" in rows["body_bytes"]
