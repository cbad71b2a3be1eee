"""Fixtures of these tests: one server for all tests of a file, which their refused requests must leave unchanged."""

import pytest
import pytest_asyncio
from support.server import brisk, serving


@pytest.fixture(scope="module", autouse=True)
def its_face(face):
    """Give the servers of this folder the face that a test's marker names."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(face):
    async with serving(brisk(limits={"linger_s": 0.2})) as server:
        yield server
