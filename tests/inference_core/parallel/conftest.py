"""Ranks of meshes are forks. Meshes hold their memory in reference cycles, and a few objects start no collection."""

import gc
from collections.abc import Iterator

import pytest

from inference_core.parallel import local_ranks
from tests.inference_core.parallel.forked_ranks import POPEN


@pytest.fixture(autouse=True)
def freed_meshes(earlier_objects_frozen: None) -> Iterator[None]:
    yield
    gc.collect()


@pytest.fixture(scope="module", autouse=True)
def forked_ranks() -> Iterator[None]:
    """Ranks of this machine are forks of one process, not new processes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_ranks, "subprocess", POPEN)
        yield
