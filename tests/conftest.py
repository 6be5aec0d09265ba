"""One thread for each process: models are small here, and with two workers a second thread only takes turns with them.

The environment is set before torch is imported, and passed on to the processes that tests start.
"""

import gc
import os
from collections.abc import Iterator

import pytest

for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[variable] = "1"

pytest.register_assert_rewrite("tests.support")


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    import torch  # not above: the process that hands out tests to workers does without

    assert torch.get_num_threads() == 1, "torch was imported before tests/conftest.py"
    yield
    assert torch.get_num_threads() == 1, "a test has changed the number of threads for those after it"


def pytest_collection_finish() -> None:
    """What was imported and collected stays: Python need not go through it again to find what tests have left behind.

    It puts that off where it takes long, and a backward pass asks every private model that is still there.
    """
    gc.collect()
    gc.freeze()
