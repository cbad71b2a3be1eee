"""The README's table of limits is what the settings say, and nobody's handwriting."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from app.cli import main
from app.configuration import limits_table
from app.settings import LIMITS

README = (Path(__file__).resolve().parents[1] / "README.md").read_text(encoding="utf-8")
COMMAND = "halley check-config --markdown"
BEGIN, END = f"<!-- written by `{COMMAND}` -->\n", "<!-- end of the limits -->\n"


def test_the_readme_has_the_limits_of_the_settings():
    """Issue 4: it is generated; a changed default or reason makes it out of date."""
    table = "".join(f"{line}\n" for line in limits_table())
    in_readme = README.partition(BEGIN)[2].partition(END)[0]
    assert in_readme == table, f"out of date: put what `{COMMAND}` prints between the marks of README.md"


def test_the_command_prints_it():
    """Issue 4: so that it can be renewed; whatever the settings of this machine, it shows the defaults."""
    printed = CliRunner(env={"HALLEY_LIMITS_HEADERS": "9"}).invoke(main, ["check-config", "--markdown"])
    assert (printed.exit_code, printed.output.splitlines()) == (0, [*limits_table()])


def test_every_limit_that_says_no_is_in_it():
    """Reliability.md 3: also those of Bayeux, and with the unit of each."""
    rows = {line.split("`")[1].partition(".")[2]: line for line in limits_table() if "`" in line}
    assert rows.keys() >= set(LIMITS)
    assert "262,144 bytes" in rows["body_bytes"]
