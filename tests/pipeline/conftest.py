"""Fixtures of the pipeline's tests: one Spark session for most, since each takes seconds to start."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from halley.pipeline import session
from halley.settings import Pipeline

NICENESS = 1
"""Of the session for most tests, which take longest of all: it gives way to other tests, but only a little."""

_HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def beside(request, tmp_path_factory):
    """Yield the results of each module's function `begin`, by the module's name: processes that start their own Spark.

    They run while tests of other modules run, which mostly use one core; a test that checks the outcome of such a
    process waits for its future.
    """
    modules = dict.fromkeys(item.module for item in request.session.items if hasattr(item, "module"))
    with ThreadPoolExecutor(2) as executor:
        yield {
            module.__name__: module.begin(executor.submit, tmp_path_factory)
            for module in modules
            if Path(module.__file__).parent == _HERE and hasattr(module, "begin")
        }
        executor.shutdown(cancel_futures=True)


@pytest.fixture(scope="session")
def spark(beside):
    """Start real Spark, on two cores of this machine, and what runs beside its tests."""
    started = session.start(Pipeline(master="local[2]", driver_memory="1g", niceness=NICENESS), "halley-tests")
    yield started
    started.stop()
