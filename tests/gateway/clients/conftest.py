"""The laptop catalogue behind `aio serve`, as the client libraries of other people meet it."""

from collections.abc import Iterator

import pytest

from tests.gateway.served_process import ServedProcess, served


@pytest.fixture(scope="session")
def aio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedProcess]:
    """One process for all modules: nothing here changes its state."""
    with served(tmp_path_factory.mktemp("data"), tmp_path_factory.mktemp("cache")) as process:
        yield process
