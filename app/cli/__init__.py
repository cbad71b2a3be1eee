"""The command line: `halley serve | demo | publish | subscribe | token | check-config | bench`.

What each verb takes is in `verbs.py` and `bench_verbs.py`, what it does in a file of its own. Results go to standard
output, everything else to standard error; exit codes are 0 (done), 1 (failed), 2 (wrong use or settings) and 130
(interrupted).
"""

from app.cli.verbs import main

__all__ = ["main"]
