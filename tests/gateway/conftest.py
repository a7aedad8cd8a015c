"""Fixtures of the gateway's tests: one gateway or upstream per module, fresh tiers per test."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from gateway.base.settings import Settings
from tests.support.app import RunningGateway, laptop_hash_core, running_gateway
from tests.support.upstream import Upstream, running_upstream


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """A gateway with its own data folder, without a monitor."""
    return Settings(data_dir=str(tmp_path), monitor=False, drain_seconds=5)


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    """A server for tiers elsewhere, for a gateway process that serves the module's tests."""
    with running_upstream() as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningGateway]:
    """A gateway that serves while the module's tests run."""
    data = tmp_path_factory.mktemp("data")
    async with running_gateway(Settings(data_dir=str(data), monitor=False, drain_seconds=5)) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def aio(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningGateway]:
    """The laptop catalogue's tiers on a core of hash models, while the module's tests run."""
    settings = Settings(data_dir=str(tmp_path_factory.mktemp("data")), monitor=False, drain_seconds=5)
    async with running_gateway(settings, core=laptop_hash_core(settings), scripted=False) as running:
        yield running


@pytest.fixture
def gateway(served: RunningGateway) -> Iterator[RunningGateway]:
    """The module's gateway with its tiers and its classifier reset."""
    served.reset()
    yield served
    served.reset()
