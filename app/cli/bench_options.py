"""Options that several verbs of `halley bench` share."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from app.access.tokens import can_be_sent

Verb = Callable[..., None]

MOST_STORED = 1_000_000_000
_MOST = 1_000_000  # the numbering of the events has no room for more


def _saved(ctx: click.Context, param: click.Parameter, file: Path | None) -> dict[str, Any] | None:
    """Read a saved result from its file; None without a file."""
    if file is None:
        return None
    try:
        saved = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise click.BadParameter(f"{file}: {error.strerror}", ctx, param) from None
    except ValueError:
        saved = None
    if not isinstance(saved, dict):
        raise click.BadParameter(f"{file} is not a result that was printed by --json", ctx, param)
    return saved


def _token(ctx: click.Context, param: click.Parameter, token: str | None) -> str | None:
    """Check that a token can be written into a header."""
    if token is not None and not can_be_sent(token):
        raise click.BadParameter("a token consists of letters, digits and -._~+/ with = at its end", ctx, param)
    return token


def counts(ctx: click.Context, param: click.Parameter, text: str, most: int = _MOST) -> tuple[int, ...]:
    """Parse whole numbers from 1 to `most`, separated by commas."""
    try:
        counts = tuple(map(int, text.split(",")))
    except ValueError:
        raise click.BadParameter("expected numbers like 1,10,100", ctx, param) from None
    if not all(1 <= count <= most for count in counts):
        raise click.BadParameter(f"expected numbers from 1 to {most:,}", ctx, param)
    return counts


def stocks(ctx: click.Context, param: click.Parameter, text: str) -> tuple[int, ...]:
    """Parse the sizes of logs; an empty string means none."""
    return counts(ctx, param, text, MOST_STORED) if text else ()


def _options(*options: Callable[[Verb], Verb]) -> Callable[[Verb], Verb]:
    def add(verb: Verb) -> Verb:
        for option in reversed(options):
            verb = option(verb)
        return verb

    return add


def count_option(name: str, default: int, text: str, low: int = 1) -> Callable[[Verb], Verb]:
    """An option whose value is a whole number of at least `low`."""
    return click.option(name, type=click.IntRange(low, _MOST), default=default, show_default=True, help=text)


server_options = _options(
    click.option("--server", metavar="URL", help="A running server. [default: one is started with your settings]"),
    click.option("--pid", type=click.IntRange(1), help="Process id of that server, to read its CPU time and memory."),
    click.option("--metrics", metavar="URL", help="Or the URL of its metrics, such as http://127.0.0.1:8081/metrics."),
)
start_options = _options(
    click.option(
        "--token",
        envvar="HALLEY_TOKEN",
        show_envvar=True,
        callback=_token,
        help="Sent as 'Authorization: Bearer', for servers with access rules.",
    ),
    click.option(
        "--config", type=click.Path(exists=True, dir_okay=False), help="Settings file of the server that is started."
    ),
    click.option(
        "--pin/--no-pin", default=True, show_default=True, help="Run the started server and the load on separate cores."
    ),
)
SECONDS = click.option(
    "--seconds", type=click.FloatRange(0.1), default=10.0, show_default=True, help="How long to measure."
)
_PROCESSES = click.option(
    "--processes",
    type=click.IntRange(1, 64),
    default=lambda: max(min((os.cpu_count() or 1) - 1, 4), 1),
    help="Load processes. [default: the number of cores less one, at most 4]",
)
result_options = _options(
    click.option("--json", "is_json", is_flag=True, help="Print the result as JSON, to be saved."),
    click.option(
        "--compare",
        "saved",
        type=click.Path(path_type=Path),
        callback=_saved,
        metavar="FILE",
        help="Also print ratios to a result that was saved with --json.",
    ),
)
run_options = _options(SECONDS, _PROCESSES, result_options)
load_options = _options(
    click.option(
        "--rate",
        type=click.FloatRange(0),
        default=0.0,
        metavar="N",
        help="Open loop: N publishes a second, regardless of the server's speed. [default: closed loop]",
    ),
    click.option(
        "--warm-up",
        "warm_up_s",
        type=click.FloatRange(0),
        default=2.0,
        show_default=True,
        help="Seconds of load before the measurement.",
    ),
    click.option(
        "--data-bytes",
        type=click.IntRange(0, 50_000),
        default=20,
        show_default=True,
        help="Bytes of padding in each event.",
    ),
    click.option("--browser-headers", is_flag=True, help="Send the headers that Chromium sends."),
)

WARM_UP = click.option(
    "--warm-up",
    "warm_up_s",
    type=click.FloatRange(0),
    default=1.0,
    show_default=True,
    help="Seconds of load before the measurement.",
)
DATA_DIR = click.option(
    "--data-dir",
    type=click.Path(exists=True, file_okay=False, writable=True, path_type=Path),
    help="Parent of the temporary folder for the logs. [default: /var/tmp]",
)
PIN = click.option(
    "--pin/--no-pin",
    "is_pinned",
    default=True,
    show_default=True,
    help="Run the servers and the load on separate cores.",
)
