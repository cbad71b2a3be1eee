"""The tables of the pages that are generated from the code, and the program that writes them.

    python tests/support/generated.py

Each table is between two comments on its page; a test fails if one is out of date. The comparison with other servers is
not among them: `tests/bench/peers.py --readme` measures it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from halley.configuration import limits_table
from halley.telemetry.events import EVENTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

ROOT = Path(__file__).resolve().parents[2]


def log_events() -> Iterator[str]:
    """Yield the lines of a Markdown table with all events of the log and their meanings."""
    yield "| event | meaning |"
    yield "|---|---|"
    for name, event in EVENTS.items():
        yield f"| `{name}` | {event.meaning} |"


class Table(NamedTuple):
    """A page, the name in the comments around its table, and a function that makes the lines of the table."""

    page: str
    name: str
    lines: Callable[[], Iterable[str]]

    @property
    def begin(self) -> str:
        """The comment before the table."""
        return f"<!-- {self.name}: begin, written by tests/support/generated.py -->\n"

    @property
    def end(self) -> str:
        """The comment after the table."""
        return f"<!-- {self.name}: end -->\n"

    def written(self, text: str) -> str:
        """Return the page's text with the table made again. Raises `ValueError` if the comments are missing."""
        before, begin, rest = text.partition(self.begin)
        _, end, after = rest.partition(self.end)
        if not begin or not end:
            raise ValueError(f"{self.page} has no place for the table: {self.begin}and {self.end}")
        table = "".join(f"{line}\n" for line in self.lines())
        return f"{before}{begin}{table}{end}{after}"


TABLES = {
    "limits": Table("app/halley/settings/README.md", "limits", limits_table),
    "log events": Table("deploy/README.md", "log events", log_events),
}


def main() -> None:
    """Write all tables into their pages."""
    for table in TABLES.values():
        path = ROOT / table.page
        path.write_text(table.written(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
