"""What tests of the pipeline share: one Spark session for most, since each takes seconds to start, and two cores."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from app.pipeline import session
from app.settings import Pipeline


@pytest.fixture(scope="session")
def spark():
    """Real Spark, on two cores of this machine; its tests take longest, so it does not give way to the others."""
    started = session.start(Pipeline(master="local[2]", driver_memory="1g", niceness=0), "halley-tests")
    yield started
    session.stop(started)


_HERE = Path(__file__).parent


@pytest.fixture(scope="session", autouse=True)
def beside(request, tmp_path_factory):
    """By its name what a module's function `begin` has begun: processes that start a Spark of their own.

    They live beside the tests of other modules, which wait for one core most of the time; whoever looks at what became
    of such a process waits for its future.
    """
    modules = dict.fromkeys(item.module for item in request.session.items if hasattr(item, "module"))
    with ThreadPoolExecutor(2) as executor:
        yield {
            module.__name__: module.begin(executor.submit, tmp_path_factory)
            for module in modules
            if Path(module.__file__).parent == _HERE and hasattr(module, "begin")
        }
        executor.shutdown(cancel_futures=True)
