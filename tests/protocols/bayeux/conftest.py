"""Fixtures that all tests of the Bayeux engine share."""

import pytest
from support.bayeux import House


@pytest.fixture
def house():
    """A house with the settings that a fresh `halley serve` has."""
    return House()
