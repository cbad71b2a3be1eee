"""Tests of the Bayeux client are run over a WebSocket, which `auto` finds, and over long-polling."""

import pytest

from halley.client import Client


@pytest.fixture(params=["auto", "long-polling"])
def transport(request, monkeypatch):
    """The transport of each `Client` that is made without one."""
    monkeypatch.setitem(Client.__init__.__kwdefaults__, "transport", request.param)
    return request.param
