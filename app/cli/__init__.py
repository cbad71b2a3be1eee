"""The command line: `halley serve | demo | publish | subscribe | token | check-config | bench`.

The options of the verbs are in `verbs.py` and the files `*_verbs.py`, the work of each verb in its own file. Results go
to standard output, everything else to standard error. The exit codes are 0 (done), 1 (failed), 2 (wrong use or
settings) and 130 (interrupted).
"""

from app.cli.verbs import main

__all__ = ["main"]
