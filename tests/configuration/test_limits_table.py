"""The table of limits on the settings' page is what the settings say."""

from __future__ import annotations

from click.testing import CliRunner
from support.generated import TABLES
from support.readme import page

from app.cli import main
from app.configuration import limits_table
from app.settings import LIMITS


def test_the_page_has_the_limits_of_the_settings():
    """It is generated; a changed default or reason makes it out of date."""
    table = TABLES["limits"]
    assert page(table.page) == table.written(page(table.page)), "out of date: python tests/support/generated.py"


def test_the_command_prints_it():
    """So that it can be renewed; whatever the settings of this machine, it shows the defaults."""
    printed = CliRunner(env={"HALLEY_LIMITS_HEADERS": "9"}).invoke(main, ["check-config", "--markdown"])
    assert (printed.exit_code, printed.output.splitlines()) == (0, [*limits_table()])


def test_every_limit_that_says_no_is_in_it():
    """Also those of Bayeux, and with the unit of each."""
    rows = {line.split("`")[1].partition(".")[2]: line for line in limits_table() if "`" in line}
    assert rows.keys() >= set(LIMITS)
    assert "262,144 bytes" in rows["body_bytes"]
