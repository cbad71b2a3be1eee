"""`halley demo`: runs a server, simulated clients of every protocol, and the pipeline."""

from __future__ import annotations

import signal
import sys
from typing import Literal

import click

from halley.cli.pipeline import NOT_INSTALLED, is_installed
from halley.cli.terminal import DONE, FAILED, USAGE_ERROR, print_status, run
from halley.configuration import KNOBS


@click.command()
@click.option("--port", type=click.IntRange(0, 65_535), default=KNOBS["port"].default, show_default=True,
              help="Port of the server; 0 picks a free one.")  # fmt: skip
@click.option("--nt4-port", type=click.IntRange(0, 65_535), default=KNOBS["nt4.port"].default, show_default=True,
              help="Port for robots; 0 as above.")  # fmt: skip
@click.option("--data-dir", metavar="DIR", help="Keep the history in this folder; an existing one is continued.")
@click.option("--pipeline", type=click.Choice(["on", "off", "auto"]), default="auto", show_default=True,
              help="Whether to run the data pipeline; auto: if it is installed.")  # fmt: skip
@click.option("--for", "for_s", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS",
              help="End after this time.")  # fmt: skip
def demo(
    *, port: int, nt4_port: int, data_dir: str | None, pipeline: Literal["on", "off", "auto"], for_s: float | None
) -> None:
    """Run a server with believable traffic over all protocols, and the pipeline, until Ctrl-C or SIGTERM.

    It prints the address to open in a browser. Settings files and environment variables are ignored, except for
    HALLEY_PIPELINE_NICENESS, and nothing is kept unless --data-dir is given.
    """
    missing = "" if pipeline == "off" else _missing()
    if missing and pipeline == "on":
        print_status(missing)
        sys.exit(USAGE_ERROR)
    from halley.demo import DemoFailed
    from halley.demo import run as run_demo

    if missing:
        print_status(f"without the pipeline: {missing}")
    has_pipeline = pipeline != "off" and not missing
    demo = run_demo(
        print_status,
        click.echo,
        port=port,
        nt4_port=nt4_port,
        data_dir=data_dir,
        has_pipeline=has_pipeline,
        for_s=for_s,
    )

    async def work() -> int:
        try:
            await demo
        except DemoFailed as failed:
            print_status(str(failed))
            return USAGE_ERROR if failed.is_wrong_use else FAILED
        return DONE

    ended_by = [signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
        ended_by.append(signal.SIGHUP)  # the terminal was closed: nothing else would end the processes we have started
    sys.exit(run(work(), ended_by=ended_by))


def _missing() -> str:
    """Return what the pipeline lacks on this machine; an empty string if it can run."""
    if not is_installed():
        return NOT_INSTALLED
    from halley.pipeline.errors import JobRejected
    from halley.pipeline.session import find_java

    try:
        find_java()
    except (JobRejected, OSError) as error:
        return str(error)
    return ""
