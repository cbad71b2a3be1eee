"""A process that backs up a log, and stops in the middle of it until it is continued.

    LD_PRELOAD=faults.so FAULTS_FOLDER=TARGET python copying.py SOURCE TARGET

It stops itself (SIGSTOP) before the tenth write to TARGET, and prints the names of damaged segments.
"""

import ctypes
import sys
from pathlib import Path

from halley.history.backup import backup

WRITE, STOP_BEFORE, AT = 2, 5, 10

ctypes.CDLL(None).faults_arm(AT, 1, WRITE, STOP_BEFORE)
print(*backup(*map(Path, sys.argv[1:])).damaged)
