"""What several verbs of `halley bench` take."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from app.access.tokens import can_be_sent

if TYPE_CHECKING:
    from collections.abc import Callable

    Verb = Callable[..., None]

MOST_STORED = 1_000_000_000
_MOST = 1_000_000  # what the events' numbering has room for


def _saved(ctx: click.Context, param: click.Parameter, file: Path | None) -> dict[str, Any] | None:
    """The result in a file."""
    if file is None:
        return None
    try:
        saved = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise click.BadParameter(f"{file}: {error.strerror}", ctx, param) from None
    except ValueError:
        saved = None
    if not isinstance(saved, dict):
        raise click.BadParameter(f"{file} holds no result that --json has printed", ctx, param)
    return saved


def _token(ctx: click.Context, param: click.Parameter, token: str | None) -> str | None:
    """A token that can be written into a header."""
    if token is not None and not can_be_sent(token):
        raise click.BadParameter("a token consists of letters, digits and -._~+/ with = at its end", ctx, param)
    return token


def counts(ctx: click.Context, param: click.Parameter, text: str, most: int = _MOST) -> tuple[int, ...]:
    """Whole numbers with commas between them."""
    try:
        counts = tuple(map(int, text.split(",")))
    except ValueError:
        raise click.BadParameter("expected numbers like 1,10,100", ctx, param) from None
    if not all(1 <= count <= most for count in counts):
        raise click.BadParameter(f"expected numbers from 1 to {most:,}", ctx, param)
    return counts


def stocks(ctx: click.Context, param: click.Parameter, text: str) -> tuple[int, ...]:
    """Sizes of logs; none, where nothing is to be read."""
    return counts(ctx, param, text, MOST_STORED) if text else ()


def _options(*options: Callable[[Verb], Verb]) -> Callable[[Verb], Verb]:
    def add(verb: Verb) -> Verb:
        for option in reversed(options):
            verb = option(verb)
        return verb

    return add


def count_option(name: str, default: int, text: str, low: int = 1) -> Callable[[Verb], Verb]:
    """An option that is a whole number."""
    return click.option(name, type=click.IntRange(low, _MOST), default=default, show_default=True, help=text)


server_options = _options(
    click.option("--server", metavar="URL", help="A running server. [default: one is started with your settings]"),
    click.option("--pid", type=click.IntRange(1), help="Process of that server, to read its CPU time and memory."),
    click.option("--metrics", metavar="URL", help="Or its metrics, like http://127.0.0.1:8081/metrics."),
)
start_options = _options(
    click.option(
        "--token",
        envvar="HALLEY_TOKEN",
        show_envvar=True,
        callback=_token,
        help="Sent as 'Authorization: Bearer', where access rules ask for one.",
    ),
    click.option(
        "--config", type=click.Path(exists=True, dir_okay=False), help="Settings file of the server that is started."
    ),
    click.option(
        "--pin/--no-pin", default=True, show_default=True, help="Give a started server and the load cores of their own."
    ),
)
SECONDS = click.option(
    "--seconds", type=click.FloatRange(0.1), default=10.0, show_default=True, help="How long to measure."
)
_PROCESSES = click.option(
    "--processes",
    type=click.IntRange(1, 64),
    default=lambda: max(min((os.cpu_count() or 1) - 1, 4), 1),
    help="Load processes. [default: one for each core but one, at most 4]",
)
result_options = _options(
    click.option("--json", "is_json", is_flag=True, help="Print the result as JSON, to be saved."),
    click.option(
        "--compare",
        "saved",
        type=click.Path(path_type=Path),
        callback=_saved,
        metavar="FILE",
        help="Print ratios to a saved result, too.",
    ),
)
run_options = _options(SECONDS, _PROCESSES, result_options)
load_options = _options(
    click.option(
        "--rate",
        type=click.FloatRange(0),
        default=0.0,
        metavar="N",
        help="Open loop: N publishes a second, due whatever the server does. [default: closed loop]",
    ),
    click.option("--warm-up", "warm_up_s", type=click.FloatRange(0), default=2.0, show_default=True, help="Seconds."),
    click.option("--data-bytes", type=click.IntRange(0, 50_000), default=20, show_default=True, help="Padding."),
    click.option("--browser-headers", is_flag=True, help="Send the headers that Chromium sends."),
)

WARM_UP = click.option(
    "--warm-up", "warm_up_s", type=click.FloatRange(0), default=1.0, show_default=True, help="Seconds."
)
DATA_DIR = click.option(
    "--data-dir",
    type=click.Path(exists=True, file_okay=False, writable=True, path_type=Path),
    help="Where a folder is made for the logs, and removed. [default: /var/tmp]",
)
PIN = click.option(
    "--pin/--no-pin",
    "is_pinned",
    default=True,
    show_default=True,
    help="Give the servers and the load cores of their own.",
)
