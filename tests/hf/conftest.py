"""accelerate collects garbage before every run: without what the libraries are made of, that is quick."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="package")
def _libraries_are_no_garbage() -> Iterator[None]:
    gc.freeze()
    yield
    gc.unfreeze()
