"""A process that dies at a named point of its n-th commit.

    LD_PRELOAD=faults.so FAULTS_FOLDER=DIR python dying.py DIR POINT N

POINT is `before-fsync` (the rows are written), `after-fsync` (they are durable, but not reported) or `after-report`
(the commit is reported, but its events are not acknowledged). Prints `NUMBER OFFSET` for each event that is
acknowledged.
"""

import ctypes
import os
import signal
import sys
from pathlib import Path

from support.log import OpenLog

SYNC, KILL_BEFORE, KILL_AFTER = 4, 3, 4


def main(folder, point, n):
    with OpenLog(Path(folder)) as log:
        log.history.set_executor(lambda _hand_over: None)  # not each event by itself: `written` hands all three over
        for commit in range(1, 10):
            is_last = commit == int(n)
            if is_last and point != "after-report":
                ctypes.CDLL(None).faults_arm(1, 1, SYNC, KILL_BEFORE if point == "before-fsync" else KILL_AFTER)
            log.write(*(commit * 10 + event for event in range(3)))
            if is_last:
                os.kill(os.getpid(), signal.SIGKILL)
            for offset, number in list(log.reports.committed.items())[-3:]:
                os.write(1, f"{number} {offset}\n".encode())


main(*sys.argv[1:])
