"""One server for all tests of a file: what they send is refused, so it must not change."""

import pytest
import pytest_asyncio
from support.server import FACES, brisk, facing, serving

pytest.register_assert_rewrite("support.refusals")


@pytest.fixture(scope="module", params=FACES, autouse=True)
def face(request):
    """Every test of this folder runs over both faces of the server (design 3)."""
    with facing(request.param):
        yield request.param


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(face):
    async with serving(brisk(limits={"linger_s": 0.2})) as server:
        yield server
