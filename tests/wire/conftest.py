"""One server for all tests of a file that need no settings of their own and leave no connect held."""

import pytest_asyncio
from support.server import serving


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served():
    async with serving() as server:
        yield server
