"""The kinds of WAMP clients. A test marked with `every_wamp_client` runs once with each of them.

One marked with `every_wamp_library` runs with one of each library. The kinds in `NIGHTLY` run in `.ci/nightly` only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest
from clients.kinds import Kind, require
from clients.node import NodeClient
from clients.page import PageClient
from clients.wamp_foreign import WampDriven, WampForeign
from support.programs import require_module

if TYPE_CHECKING:
    from clients.conftest import Site


class WampKind(NamedTuple):
    """A library, where it runs, and its serializer; "" leaves the choice to the server."""

    library: str
    runtime: str
    serializer: str
    is_polling: bool = False


_PYTHON = ("json", "json.batched", "msgpack", "msgpack.batched", "cbor", "cbor.batched")
_ALL = ("json", "msgpack", "cbor")

WAMP_KINDS = {
    **{f"autobahn-python-{each}": WampKind("autobahn", "python", each) for each in _PYTHON},
    **{f"autobahn-js-{each}": WampKind("autobahn", "node", each) for each in _ALL},
    "autobahn-js-usual": WampKind("autobahn", "node", ""),
    "autobahn-js-polling": WampKind("autobahn", "node", "json", is_polling=True),
    **{f"wampy-{each}": WampKind("wampy", "node", each) for each in _ALL},
    **{f"wampy-page-{each}": WampKind("wampy", "browser", each) for each in _ALL},
}

NIGHTLY = {"autobahn-python-json", "autobahn-python-msgpack", "autobahn-js-cbor", "wampy-msgpack", "wampy-page-cbor"}
"""Combinations of a library, a runtime and a serializer each of which others have."""

_MARKS = {"python": (), "node": (pytest.mark.node,), "browser": (pytest.mark.browser, pytest.mark.node)}


def wamp_clients(*names: str) -> pytest.MarkDecorator:
    """Run a test once with each of these clients, as its argument `kind`."""
    return pytest.mark.parametrize("kind", [pytest.param(name, marks=_marks(name)) for name in names])


def _marks(name: str) -> tuple[pytest.MarkDecorator, ...]:
    of_runtime: tuple[pytest.MarkDecorator, ...] = _MARKS[WAMP_KINDS[name].runtime]
    return (*of_runtime, pytest.mark.nightly) if name in NIGHTLY else of_runtime


every_wamp_client = wamp_clients(*WAMP_KINDS)
every_wamp_library = wamp_clients(
    "autobahn-python-cbor.batched", "autobahn-js-msgpack", "autobahn-js-polling", "wampy-cbor", "wampy-page-json"
)
"""Each library once on each of its transports: for steps in which the serializers have the same work as in others."""


async def start(site: Site, kind: str, port: int) -> WampForeign:
    """A client of that kind for the server at that port, not joined yet; closed with the site."""
    library, runtime, serializer, is_polling = WAMP_KINDS[kind]
    require(runtime)
    url = f"ws://127.0.0.1:{port}/ws"
    client: WampForeign
    if runtime == "python":
        require_module("autobahn", "pip install -r tests/clients/requirements.txt")
        from clients.wamp_python import AutobahnPython

        client = AutobahnPython(url, serializer)
    elif runtime == "node":
        more = {"pollUrl": f"http://127.0.0.1:{port}/wamp"} if is_polling else {}
        client = WampDriven(await NodeClient.start(url, Kind(library, runtime), serializer=serializer, **more))
    else:
        origin = f"http://localhost:{site.pages_port}"  # not the server's, as for pages in development
        page = await PageClient.start(
            await site.profile(), origin, url, Kind(library, runtime, origin="cross"), serializer=serializer
        )
        client = WampDriven(page)
    site.closes(client)
    return client


async def join(site: Site, kind: str, port: int) -> WampForeign:
    """A client as by `start`, with an anonymous session."""
    client = await start(site, kind, port)
    assert (await client.join()).error is None, client.lately()
    return client
