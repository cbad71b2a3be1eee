"""Names of `app/cli/terminal.py` for the groups of verbs that still import them from here."""

from app.cli.terminal import DONE, FAILED, INTERRUPTED, WRONG_USE, run, say

__all__ = ["DONE", "FAILED", "INTERRUPTED", "WRONG_USE", "run", "say"]
