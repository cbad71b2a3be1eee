"""One server for all tests of a file: what they send is refused, so it must not change."""

import pytest
import pytest_asyncio
from support.server import brisk, serving

pytest.register_assert_rewrite("support.refusals")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served():
    async with serving(brisk(limits={"linger_s": 0.2})) as server:
        yield server
