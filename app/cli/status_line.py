"""Names of `app/cli/terminal.py` for the groups of verbs that still import them from here."""

from app.cli.terminal import StatusLine

__all__ = ["StatusLine"]
