"""The shipped image, which is built once for all tests that use it, and the browser tests' fixture for Chromium."""

import os
import shutil
from pathlib import Path

import pytest
from browser.conftest import chromium
from support.image import BUILT, Store, need_builder

__all__ = ["chromium"]


@pytest.fixture(scope="session")
def store(tmp_path_factory):
    need_builder()
    if built := os.environ.get(BUILT):
        yield Store(Path(built))
        return
    folder = tmp_path_factory.mktemp("images")
    store = Store(folder)
    store.build()
    yield store
    shutil.rmtree(folder)  # a gigabyte that is not needed any more


@pytest.fixture
def image(store):
    with store.container() as image:
        yield image
