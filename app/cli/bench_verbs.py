"""The verbs of `halley bench` and their options."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from app.bench import Load, Nt4Plan, PipelinePlan, Plan, WampPlan, attached, halley_command, started
from app.bench.growth import CHANNELS, RECEIVERS
from app.bench.history import STORED
from app.bench.plot import SUFFIXES
from app.cli.bench import bench, bench_growth, bench_history, bench_nt4, bench_pipeline, bench_wamp
from app.cli.bench_options import (
    DATA_DIR,
    MOST_STORED,
    PIN,
    SECONDS,
    WARM_UP,
    count_option,
    counts,
    load_options,
    result_options,
    run_options,
    server_options,
    start_options,
    stocks,
)
from app.cli.console import run
from app.cli.pipeline import need_installed

if TYPE_CHECKING:
    from app.bench import Target
    from app.cli.bench import Serve

Verb = Callable[..., None]


@click.group("bench")
def bench_group() -> None:
    """Put a load on a server and print what each unit of work costs it.

    A closed loop finds the highest rate. An open loop (--rate) shows the true latencies: each is counted from the time
    at which its event was due. The exit code is 1 if an event was lost or repeated, or if anything else went wrong.
    """


@bench_group.command("publish")
@count_option("--publishers", 32, "Connections that publish.")
@click.option("--batch", type=click.IntRange(1, 1_000), default=1, show_default=True, help="Events in a request.")
@load_options
@server_options
@start_options
@run_options
def publish_verb(**options: Any) -> None:
    """Publish with acknowledgements, to channels without subscribers."""
    _bench("publish", options)


@bench_group.command("fanout")
@count_option("--receivers", 1_000, "Held polls.")
@count_option("--publishers", 1, "Connections that publish; in a closed loop, the number of events in flight.")
@load_options
@server_options
@start_options
@run_options
def fanout_verb(**options: Any) -> None:
    """Deliver each publish to many held polls."""
    _bench("fanout", options)


@bench_group.command("one-to-one")
@count_option("--receivers", 100, "Held polls.")
@count_option("--channels", 100, "Channels, divided among the receivers.")
@count_option("--publishers", 16, "Connections that publish; in a closed loop, the number of events in flight.")
@load_options
@server_options
@start_options
@run_options
def one_to_one_verb(**options: Any) -> None:
    """Deliver each publish to one held poll, over many channels."""
    if options["channels"] < options["receivers"]:
        raise click.UsageError("--channels: expected at least one for each receiver")
    _bench("one-to-one", options)


@bench_group.command("idle")
@count_option("--receivers", 1_000, "Held polls.")
@load_options
@server_options
@start_options
@run_options
def idle_verb(**options: Any) -> None:
    """Hold polls, and measure memory for each session and over time; with --rate, publish to all of them."""
    _bench("idle", options | {"publishers": 1 if options["rate"] else 0, "warm_up_s": 0.0})


@bench_group.command("growth")
@click.option("--receivers", callback=counts, default=",".join(map(str, RECEIVERS)), show_default=True, metavar="N,...")
@click.option("--channels", callback=counts, default=",".join(map(str, CHANNELS)), show_default=True, metavar="N,...")
@click.option(
    "--plot", "file", type=click.Path(dir_okay=False, path_type=Path), help="Also plot to this file, .svg or .png."
)
@server_options
@start_options
@run_options
def growth_verb(
    *,
    receivers: Sequence[int],
    channels: Sequence[int],
    file: Path | None,
    **options: Any,
) -> None:
    """Measure CPU time per delivery and memory by receivers and channels; a server is started for each point."""
    if file is not None and file.suffix not in SUFFIXES:
        raise click.UsageError(f"--plot: expected a file name that ends with {' or '.join(SUFFIXES)}")
    sizes = {"receivers": receivers, "channels": channels}
    sys.exit(run(bench_growth(_serve(options), sizes, file=file, **options)))


@bench_group.command("history")
@count_option("--publishers", 100, "Connections that publish.")
@click.option(
    "--batch",
    type=click.IntRange(1, 1_000),
    default=20,
    show_default=True,
    help="Events in a request, for the measurements with batches.",
)
@click.option(
    "--rate",
    type=click.FloatRange(0, min_open=True),
    default=20_000.0,
    show_default=True,
    metavar="N",
    help="Publishes a second while the event loop's lag is measured.",
)
@click.option(
    "--stored",
    callback=stocks,
    default=",".join(map(str, STORED)),
    show_default=True,
    metavar="N,...",
    help="Events in the logs that are read; '' reads none.",
)
@count_option("--rounds", 3, "Rounds of each measurement, alternately with the history and without it.")
@click.option(
    "--warm-up",
    "warm_up_s",
    type=click.FloatRange(0),
    default=2.0,
    show_default=True,
    help="Seconds of load before the measurement.",
)
@DATA_DIR
@PIN
@run_options
def history_verb(*, is_json: bool, saved: dict[str, Any] | None, **options: Any) -> None:
    """Measure the cost of the durable history and the speed of reading it; starts servers with it and without it."""
    sys.exit(run(bench_history(Plan(**options), is_json=is_json, saved=saved)))


@bench_group.command("wamp")
@count_option("--subscribers", 100, "WebSockets that receive every event.")
@count_option("--window", 8, "Publications in flight while the highest rate is measured.")
@click.option(
    "--payload-chars",
    type=click.IntRange(0, 50_000),
    default=64,
    show_default=True,
    help="Characters of each event's payload.",
)
@click.option(
    "--rate",
    type=click.FloatRange(0, min_open=True),
    default=20.0,
    show_default=True,
    metavar="N",
    help="Publishes a second in the paced phase.",
)
@count_option("--rounds", 3, "Rounds of each measurement; the servers take turns.")
@WARM_UP
@click.option(
    "--crossbar",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Also measure this crossbar: bin/crossbar of the environment in which it is installed.",
)
@DATA_DIR
@PIN
@SECONDS
@result_options
def wamp_verb(*, is_json: bool, saved: dict[str, Any] | None, **options: Any) -> None:
    """Deliver one WAMP publisher's events to many WebSockets; starts servers with and without a history, and crossbar.

    Each server is measured in three phases of --seconds.
    """
    sys.exit(run(bench_wamp(WampPlan(**options), is_json=is_json, saved=saved)))


@bench_group.command("nt4")
@count_option("--subscribers", 20, "WebSockets that receive every value.")
@click.option(
    "--rates", callback=counts, default="10000,100000", show_default=True, metavar="N,...", help="Values a second."
)
@click.option(
    "--periodic",
    "periodic_s",
    type=click.FloatRange(0.005, 1),
    default=0.01,
    show_default=True,
    help="Seconds between transmissions to a subscriber.",
)
@count_option("--rounds", 3, "Rounds of each measurement; the servers take turns.")
@WARM_UP
@click.option(
    "--history",
    type=click.Choice(["on", "off"]),
    default="off",
    show_default=True,
    help="on: also measure Halley with a history.",
)
@click.option(
    "--ntcore",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="PYTHON",
    help="Also measure ntcore: bin/python of an environment that has pyntcore.",
)
@DATA_DIR
@PIN
@SECONDS
@result_options
def nt4_verb(*, is_json: bool, saved: dict[str, Any] | None, history: str, **options: Any) -> None:
    """Deliver one NetworkTables publisher's values to many WebSockets; starts servers, and ntcore's.

    Each server is measured at each rate for --seconds.
    """
    sys.exit(run(bench_nt4(Nt4Plan(history=history == "on", **options), is_json=is_json, saved=saved)))


@bench_group.command("pipeline")
@click.option(
    "--stored",
    type=click.IntRange(0, MOST_STORED),
    default=5_000_000,
    show_default=True,
    help="Events in the log that is read, ingested and queried; 0 omits these measurements.",
)
@count_option("--rounds", 5, "Rounds of each read and query.")
@click.option(
    "--rate",
    type=click.FloatRange(0, min_open=True),
    default=2_000.0,
    show_default=True,
    metavar="N",
    help="Publishes a second while rollups and the server's replies are timed.",
)
@click.option(
    "--warm-up",
    "warm_up_s",
    type=click.FloatRange(0),
    default=10.0,
    show_default=True,
    help="Seconds of these publishes before the measurement; Spark is slow at first.",
)
@click.option("--master", default="local[2]", show_default=True, help="Where Spark runs.")
@click.option(
    "--data-dir",
    type=click.Path(exists=True, file_okay=False, writable=True, path_type=Path),
    help="Parent of the temporary folder for log and lake. [default: /var/tmp]",
)
@click.option(
    "--pin/--no-pin",
    "is_pinned",
    default=True,
    show_default=True,
    help="Run the server on a separate core while its replies are timed.",
)
@run_options
def pipeline_verb(*, is_json: bool, saved: dict[str, Any] | None, **options: Any) -> None:
    """Measure how fast Spark reads, ingests and queries, how soon rollups arrive, and what that costs the server.

    Rollups are timed with all processes on the same cores, the server's replies without the pipeline and with it.
    """
    need_installed()
    sys.exit(run(bench_pipeline(PipelinePlan(**options), is_json=is_json, saved=saved)))


def _bench(verb: Any, options: dict[str, Any]) -> None:
    serve = _serve(options)
    is_json, saved = options.pop("is_json"), options.pop("saved")
    sys.exit(run(bench(Load(verb, **options), serve, is_json=is_json, saved=saved)))


def _serve(options: dict[str, Any]) -> Serve:
    """Remove the options that describe the server from `options`, and return how to provide that server."""
    return _serving(**{name: options.pop(name) for name in ("server", "token", "pid", "metrics", "config", "pin")})


def _serving(
    *, server: str | None, token: str | None, pid: int | None, metrics: str | None, config: str | None, pin: bool
) -> Serve:
    if server is None:
        if pid or metrics:
            raise click.UsageError("--pid and --metrics are for a running --server")
        return lambda: started(halley_command(config), token=token, is_pinned=pin)
    if config:
        raise click.UsageError("--config is for a server that is started, not for a running --server")
    try:
        target = attached(server, token=token, pid=pid, metrics_url=metrics)
    except ValueError as error:
        raise click.UsageError(f"--server: {error}") from None

    @asynccontextmanager
    async def running() -> AsyncIterator[Target]:
        yield target

    return running
