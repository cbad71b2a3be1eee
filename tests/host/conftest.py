"""What connections do must not depend on who answers their requests."""

import pytest
from support.server import FACES, facing


@pytest.fixture(scope="module", params=FACES)
def face(request):
    """Every test of this folder runs over both faces of the server (design 3)."""
    with facing(request.param):
        yield
