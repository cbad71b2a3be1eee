"""`halley bench`: puts a load on a server, prints the result, and compares it with a saved one."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from halley.bench.measurement import Watch
    from halley.bench.result import Result

Verb = Callable[..., None]

_MOST = 1_000_000  # the numbering of the events has no room for more


# Options


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
    from halley.access.tokens import can_be_sent

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


def options(*each: Callable[[Verb], Verb]) -> Callable[[Verb], Verb]:
    """Return a decorator that adds several options, or groups of them, to a verb."""

    def add(verb: Verb) -> Verb:
        for option in reversed(each):
            verb = option(verb)
        return verb

    return add


def count_option(name: str, default: int, text: str) -> Callable[[Verb], Verb]:
    """Return an option whose value is a whole number from 1."""
    return click.option(name, type=click.IntRange(1, _MOST), default=default, show_default=True, help=text)


def seconds_option(name: str, default: float, text: str, low: float = 0) -> Callable[[Verb], Verb]:
    """Return an option whose value is a number of seconds, at least `low`; --warm-up is passed on as `warm_up_s`."""
    field = "seconds" if name == "--seconds" else name.lstrip("-").replace("-", "_") + "_s"
    return click.option(name, field, type=click.FloatRange(low), default=default, show_default=True, help=text)


result_options = options(
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
SECONDS = seconds_option("--seconds", 10.0, "How long to measure.", low=0.1)
PROCESSES = click.option(
    "--processes",
    type=click.IntRange(1, 64),
    default=lambda: max(min((os.cpu_count() or 1) - 1, 4), 1),
    help="Load processes. [default: the number of cores less one, at most 4]",
)
SERVER = options(
    click.option("--server", metavar="URL", help="A running server. [default: one is started with your settings]"),
    click.option("--pid", type=click.IntRange(1), help="Process id of that server, to read its CPU time and memory."),
    click.option("--metrics", metavar="URL", help="Or the URL of its metrics, such as http://127.0.0.1:8081/metrics."),
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
    SECONDS,
    PROCESSES,
    result_options,
)
_load_options = options(
    click.option(
        "--rate",
        type=click.FloatRange(0),
        default=0.0,
        metavar="N",
        help="Open loop: N publishes a second, regardless of the server's speed. [default: closed loop]",
    ),
    seconds_option("--warm-up", 2.0, "Seconds of load before the measurement."),
    click.option(
        "--data-bytes",
        type=click.IntRange(0, 50_000),
        default=20,
        show_default=True,
        help="Bytes of padding in each event.",
    ),
    click.option("--browser-headers", is_flag=True, help="Send the headers that Chromium sends."),
    SERVER,
)
_RECEIVERS = count_option("--receivers", 1_000, "Held polls.")
_IN_FLIGHT = "Connections that publish; in a closed loop, the number of events in flight."


# Verbs


@click.group("bench")
def bench_group() -> None:
    """Put a load on a server and print what each unit of work costs it.

    A closed loop finds the highest rate. An open loop (--rate) shows the true latencies: each is counted from the time
    at which its event was due. The exit code is 1 if an event was lost or repeated, or if anything else went wrong.
    """


@bench_group.command("publish")
@count_option("--publishers", 32, "Connections that publish.")
@click.option("--batch", type=click.IntRange(1, 1_000), default=1, show_default=True, help="Events in a request.")
@_load_options
def publish_verb(**options: Any) -> None:
    """Publish with acknowledgements, to channels without subscribers."""
    _bench("publish", options)


@bench_group.command("fanout")
@_RECEIVERS
@count_option("--publishers", 1, _IN_FLIGHT)
@_load_options
def fanout_verb(**options: Any) -> None:
    """Deliver each publish to many held polls."""
    _bench("fanout", options)


@bench_group.command("one-to-one")
@count_option("--receivers", 100, "Held polls.")
@count_option("--channels", 100, "Channels, divided among the receivers.")
@count_option("--publishers", 16, _IN_FLIGHT)
@_load_options
def one_to_one_verb(**options: Any) -> None:
    """Deliver each publish to one held poll, over many channels."""
    if options["channels"] < options["receivers"]:
        raise click.UsageError("--channels: expected at least one for each receiver")
    _bench("one-to-one", options)


@bench_group.command("idle")
@_RECEIVERS
@_load_options
def idle_verb(**options: Any) -> None:
    """Hold polls, and measure memory for each session and over time; with --rate, publish to all of them."""
    _bench("idle", options | {"publishers": 1 if options["rate"] else 0, "warm_up_s": 0.0})


def _bench(verb: Any, options: dict[str, Any]) -> None:
    from halley.bench.load import Load
    from halley.bench.measurement import measure
    from halley.bench.result import table
    from halley.cli.measuring import print_measured, serving

    is_json, saved = options.pop("is_json"), options.pop("saved")
    serve = serving(**{name: options.pop(name) for name in ("server", "token", "pid", "metrics", "config", "pin")})

    async def measured(watch: Watch) -> Result:
        async with serve() as target:
            return await measure(Load(verb, **options), target, watch)

    print_measured(measured, table, is_json=is_json, saved=saved)
