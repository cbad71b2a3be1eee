"""One server for all tests of a file that need no settings of their own and leave no connect held."""

import pytest
import pytest_asyncio
from support.server import FACES, RECORDED, facing, serving


@pytest.fixture(scope="module", params=[*FACES, RECORDED], autouse=True)
def face(request):
    """Every test of this folder runs over both faces of the server (design 3)."""
    with facing(request.param):
        yield


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(face):
    async with serving() as server:
        yield server
