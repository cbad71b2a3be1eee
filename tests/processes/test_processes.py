"""Child processes: their lines, their end by SIGTERM or by force, and that nothing of them is left."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from support.wire import DEADLINE_S

from halley.processes import child_process, is_cancelled_twice, module_command, module_environment, pinned

READY = re.compile(r"ready (\d+)")
OBEDIENT = "import sys, time; print('ready 0', file=sys.stderr, flush=True); time.sleep(600)"
STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("ready", child.pid, file=sys.stderr, flush=True)
time.sleep(600)
"""


def running(program, end_within_s=DEADLINE_S):
    return child_process([sys.executable, "-c", program], environment=os.environ, end_within_s=end_within_s)


def is_alive(pid):
    """Whether a process runs; one that has ended can wait in the process table for its parent."""
    try:
        os.kill(pid, 0)
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except ProcessLookupError:
        return False
    except FileNotFoundError:
        return not Path("/proc/self").exists()  # as on macOS


async def test_it_is_asked_to_end_and_its_lines_are_known():
    """SIGTERM ends it with the block; a line that does not come is None once it has ended."""
    async with asyncio.timeout(DEADLINE_S), running(OBEDIENT) as child:
        assert await child.logged(READY)
    assert await child.ended() == -signal.SIGTERM
    assert await child.logged(re.compile("more")) is None
    assert [*child.lines] == ["ready 0"]


async def test_one_that_does_not_end_is_killed_with_its_children():
    """The whole process group is killed when its time is over."""
    async with asyncio.timeout(DEADLINE_S):
        async with running(STUBBORN, end_within_s=0.01) as child:
            grandchild = int((await child.logged(READY))[1])
            assert is_alive(grandchild)
        assert await child.ended() == -signal.SIGKILL
        while is_alive(grandchild):
            await asyncio.sleep(0.01)


async def test_a_task_that_is_cancelled_twice_kills_at_once():
    """It does not wait until the time of the child is over."""

    async def work():
        async with running(STUBBORN, end_within_s=600) as child:
            await child.logged(READY)
            ready.set_result(child)
            await asyncio.sleep(600)

    ready = asyncio.get_running_loop().create_future()
    assert not is_cancelled_twice()
    task = asyncio.create_task(work())
    async with asyncio.timeout(DEADLINE_S):
        child = await ready
        task.cancel()
        task.cancel()
        await asyncio.wait([task])
        assert await child.ended() == -signal.SIGKILL


async def test_overlong_lines_are_left_out():
    """Any other line is kept, without its end."""
    program = "import sys; sys.stderr.write('x' * 3_000_000 + '\\n' + 'short\\n')"
    async with asyncio.timeout(DEADLINE_S), running(program) as child:
        assert await child.ended() == 0
    assert child.lines[-1] == "short"
    assert max(map(len, child.lines)) < 3_000_000


async def test_a_module_of_halley_is_found_from_any_folder(tmp_path):
    """A folder `halley` in the working directory does not hide the package."""
    (tmp_path / "halley").mkdir()
    (tmp_path / "halley" / "__init__.py").write_text("raise SystemExit(3)")
    process = await asyncio.create_subprocess_exec(
        *module_command("halley"), "--version", cwd=tmp_path, env=module_environment(), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert (process.returncode, output[:6]) == (0, b"halley")


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system does not tie processes to cores")
async def test_a_process_is_on_its_cores_from_the_start():
    """A process that is started in the block may run only on those cores; this process may again run on all of its."""
    program = "import os, sys; print('ready', *os.sched_getaffinity(0), file=sys.stderr, flush=True)"
    before = os.sched_getaffinity(0)
    core = max(before)
    async with AsyncExitStack() as stack:
        with pinned(core):
            child = await stack.enter_async_context(running(program))
        assert os.sched_getaffinity(0) == before
        assert (await child.logged(READY))[1] == str(core)
    with pinned():
        assert os.sched_getaffinity(0) == before
