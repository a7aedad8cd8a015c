"""The laptop catalogue behind `aio serve`, used through client libraries, and fixtures of a gateway in this process."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.app import app, gateway, module_app, module_gateway, settings  # noqa: F401 - fixtures
from tests.support.served import ServedProcess, served


@pytest.fixture(scope="session")
def aio(tmp_path_factory: pytest.TempPathFactory, weight_cache: Path) -> Iterator[ServedProcess]:
    """One process for all modules: no test changes its state."""
    with served(tmp_path_factory.mktemp("data"), weight_cache) as process:
        yield process
