"""The laptop catalogue behind `aio serve`, used through client libraries."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.served import ServedProcess, served


@pytest.fixture(scope="session")
def aio(tmp_path_factory: pytest.TempPathFactory, weight_cache: Path) -> Iterator[ServedProcess]:
    """One process for all modules: no test changes its state."""
    with served(tmp_path_factory.mktemp("data"), weight_cache) as process:
        yield process
