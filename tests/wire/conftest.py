"""One server for all tests of a file that need no special settings and leave no connect held."""

import pytest
import pytest_asyncio
from support.server import serving


@pytest.fixture(scope="module", autouse=True)
def its_face(face):
    """Give the servers of this folder the face that a test's marker names."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(face):
    async with serving() as server:
        yield server
