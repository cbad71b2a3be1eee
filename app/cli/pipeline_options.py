"""Options of the verbs that use the lake or Spark, combined into one value, a `Place`."""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from app.cli.console import WRONG_USE, say
from app.cli.options import config_option, load_settings

if TYPE_CHECKING:
    from app.settings import Settings

Verb = Callable[..., None]

NOT_INSTALLED = "the data pipeline is not installed: pip install 'halley[pipeline]'"
_MODULES = ("pyspark", "deltalake", "pyarrow")


class Place(NamedTuple):
    """The lake, the log and the settings that a verb uses.

    settings   the settings, including those that options override
    lake       the folder of the tables
    log        the argument for `source.log.open_log`: a folder's `path`, or a server's `url` and `token`
    token      the token for servers; None without one
    spark      Spark's own settings, from --conf
    """

    settings: Settings
    lake: Path
    log: dict[str, str]
    token: str | None
    spark: dict[str, str]


_DATA_DIR = click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    help="The data folder. [default: the setting data_dir, halley-data unless set]",
)
_LAKE = click.option(
    "--lake",
    type=click.Path(path_type=Path),
    help="The folder of the lake's tables. [default: the setting pipeline.lake, else lake in the data folder]",
)
_FROM = click.option(
    "--from", "url", metavar="URL", help="Read this server's log, not a data folder; the right `export` is needed."
)
_TOKEN = click.option(
    "--token",
    envvar="HALLEY_TOKEN",
    show_envvar=True,
    help="Sent as 'Authorization: Bearer'. Other users may see command lines: the variable is safer.",
)
_MASTER = click.option(
    "--master", metavar="MASTER", help="Where Spark runs: local[*], spark://HOST:PORT, k8s://..., yarn."
)
_CONF = click.option(
    "--conf",
    "confs",
    multiple=True,
    metavar="KEY=VALUE",
    help="One of Spark's own settings. Can be given several times.",
)


def lake_options(verb: Verb) -> Verb:
    """Add the options of a verb that uses the lake; the verb gets a `place` instead."""
    return _taking(verb, config_option, _DATA_DIR, _LAKE)


def spark_options(verb: Verb) -> Verb:
    """Add the options of a verb that uses the lake by means of Spark; the verb gets a `place` instead."""
    return _taking(verb, config_option, _DATA_DIR, _LAKE, _MASTER, _CONF)


def pipeline_options(verb: Verb) -> Verb:
    """Add the options of a verb that uses the lake, Spark and the log; the verb gets a `place` instead."""
    return _taking(verb, config_option, _DATA_DIR, _FROM, _TOKEN, _LAKE, _MASTER, _CONF)


def _taking(verb: Verb, *options: Callable[[Verb], Verb]) -> Verb:
    @functools.wraps(verb)
    def with_place(
        *, file: Path | None, data_dir: Path | None, lake: Path | None, master: str | None = None, **more: Any
    ) -> None:
        flags = {"data_dir": data_dir, "pipeline.lake": lake, "pipeline.master": master}
        settings = load_settings(
            file, {name: str(value) for name, value in flags.items() if value is not None}
        ).settings
        log = {"path": settings.data_dir}
        token = None
        if _FROM in options:
            url, token = more.pop("url"), more.pop("token")
            if url is not None and data_dir is not None:
                raise click.UsageError("expected either --data-dir or --from, not both")
            if url is not None:
                log = {"url": url} | ({"token": token} if token else {})
        spark = dict(map(_pair, more.pop("confs", ())))
        need_installed()
        lake_path = Path(settings.pipeline.lake or Path(settings.data_dir, "lake"))
        verb(place=Place(settings, lake_path, log, token, spark), **more)

    decorated: Verb = with_place
    for option in reversed(options):
        decorated = option(decorated)
    return decorated


def is_installed() -> bool:
    """Whether the extra [pipeline] is installed."""
    return all(importlib.util.find_spec(name) is not None for name in _MODULES)


def need_installed() -> None:
    """Print how to install the extra [pipeline] and exit, unless it is installed."""
    if not is_installed():
        say(NOT_INSTALLED)
        sys.exit(WRONG_USE)


def _pair(text: str) -> tuple[str, str]:
    name, is_there, value = text.partition("=")
    if not (name and is_there):
        raise click.UsageError(f"--conf {text}: expected KEY=VALUE")
    return name, value
