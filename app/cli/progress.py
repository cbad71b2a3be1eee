"""Names of `app/cli/terminal.py` for the groups of verbs that still import them from here."""

from app.cli.terminal import PhaseBar, Progress, ShareBar, input_bytes

__all__ = ["PhaseBar", "Progress", "ShareBar", "input_bytes"]
