"""Names of `app/cli/terminal.py` for the groups of verbs that still import them from here."""

from app.cli.terminal import CHUNK_BYTES, STDERR, STDIN, STDOUT, on_hang_up, read_some, write_all

__all__ = ["CHUNK_BYTES", "STDERR", "STDIN", "STDOUT", "on_hang_up", "read_some", "write_all"]
