"""Every server of these tests speaks TLS."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import authority, server

from app.settings import Tls


@pytest.fixture(autouse=True)
def tls(monkeypatch):
    """Let `brisk` settings name a certificate; `Served.wire` then speaks TLS too."""
    place = authority.folder()
    names = Tls(cert=str(place / "cert.pem"), key=str(place / "key.pem"))
    monkeypatch.setattr(server, "USUAL", replace(server.USUAL, tls=names))
    return names


@pytest.fixture
def face():
    """The short way only; that both faces do the same is shown without TLS."""
