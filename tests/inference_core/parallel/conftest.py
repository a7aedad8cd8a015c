"""Meshes hold their memory in reference cycles, and a few objects start no garbage collection."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def freed_meshes(earlier_objects_frozen: None) -> Iterator[None]:
    yield
    gc.collect()
