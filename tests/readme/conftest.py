"""The browser tests' fixture for Chromium."""

from __future__ import annotations

from browser.conftest import chromium

__all__ = ["chromium"]
