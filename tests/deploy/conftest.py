"""The shipped image, which is built once for all tests that use it."""

import shutil

import pytest
from support.image import Store, need_builder


@pytest.fixture(scope="session")
def store(tmp_path_factory):
    need_builder()
    folder = tmp_path_factory.mktemp("images")
    store = Store(folder)
    store.build()
    yield store
    shutil.rmtree(folder)  # a gigabyte that is not needed any more


@pytest.fixture
def image(store):
    with store.container() as image:
        yield image
