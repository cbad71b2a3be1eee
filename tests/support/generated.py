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


def lake_tables() -> Iterator[str]:
    """Yield the lines of a Markdown table with all tables of the lake, and how they are laid out."""
    from halley.pipeline.lake.dictionary import DICTIONARY
    from halley.pipeline.lake.shapes import TABLES as SHAPES

    yield "| table | layer | a row is | partitioned by | rows of a file ordered by | files ordered by |"
    yield "|---|---|---|---|---|---|"
    for name, entry in DICTIONARY.items():
        shape = SHAPES[name]
        layout = [", ".join(f"`{column}`" for column in each) for each in (shape.partition_by, shape.sorted_by)]
        yield f"| `{name}` | {entry.layer} | {entry.grain} | {' | '.join(layout)} | `{shape.ordered_by}` |"


def lake_columns() -> Iterator[str]:
    """Yield the lines of a Markdown table with the columns of all tables of the lake, those of SQL included."""
    from halley.pipeline.lake.dictionary import DICTIONARY, LIFTED
    from halley.pipeline.queries.views import view_of

    yield "| table | column | type | meaning |"
    yield "|---|---|---|---|"
    for name in DICTIONARY:
        view = view_of(Path(name), None)
        for field in view.schema.fields:
            kind, meaning = field.dataType.simpleString(), field.metadata["comment"]
            only = "" if field.name in view.stored.names else "; in SQL only"
            yield f"| `{name}` | `{field.name}` | `{kind}` | {meaning}{only} |"
        if name == "events":
            yield f"| `{name}` | lifted columns | double, bigint, string, boolean | {LIFTED} |"


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
    "lake tables": Table("app/halley/pipeline/README.md", "lake tables", lake_tables),
    "lake columns": Table("app/halley/pipeline/README.md", "lake columns", lake_columns),
}


def main() -> None:
    """Write all tables into their pages."""
    for table in TABLES.values():
        path = ROOT / table.page
        path.write_text(table.written(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
