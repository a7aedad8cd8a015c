"""Fixtures of the dashboard's tests: a gateway per module, and a browser signed in as its admin."""

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import httpx
import pytest
import pytest_asyncio
from argon2 import PasswordHasher

from gateway.base.settings import Settings
from gateway.tenancy.users import users
from tests.gateway.operations.dashboard.browsing import browser, sign_in
from tests.support.app import RunningGateway, running_gateway

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(autouse=True)
def password_hasher(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hash of a password costs 1 ms instead of 50 of processor time; `test_passwords` has that of production."""
    monkeypatch.setattr(users, "_ARGON2", quick := PasswordHasher(time_cost=1, memory_cost=1024, parallelism=1))
    monkeypatch.setattr(users, "_HASH_OF_NOTHING", quick.hash("of no user"))


@pytest.fixture(scope="module")
def chrome() -> "Iterator[Browser]":
    """Debian's Chromium."""
    # Without Playwright only the tests that need it are left out.
    from tests.gateway.operations.dashboard.real_gateway import chromium

    with chromium() as browser:
        yield browser


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def aio(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[RunningGateway]:
    """With the module's SETTINGS, and without a monitor."""
    given = getattr(request.module, "SETTINGS", {})
    settings = Settings(data_dir=str(tmp_path_factory.mktemp("data")), monitor=False, **given)
    async with running_gateway(settings) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def admin(aio: RunningGateway) -> AsyncIterator[httpx.AsyncClient]:
    """Signed in by the settings' admin key, or without if there is none."""
    async with browser(aio) as client:
        await sign_in(client, aio.serving.settings.admin_keys.partition("=")[2])
        yield client
