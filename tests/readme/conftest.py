"""Chromium, as the browser tests have it."""

from __future__ import annotations

from browser.conftest import chromium

__all__ = ["chromium"]
