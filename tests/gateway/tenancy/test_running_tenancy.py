"""What a start of the gateway does for its callers: keys are read, made and applied, or as soon as the database is
there; limits and budgets are as configured, and unspent slices go back at the end."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.base.errors import ApiError
from gateway.base.inference_request import Allowance, BudgetRef, Caller
from gateway.base.settings import Settings
from gateway.base.stores.redis_store import RedisStore
from gateway.tenancy.budgets.budget_commands import set_budget, states_of
from gateway.tenancy.budgets.lease_book import MICRO
from gateway.tenancy.changes import Order
from gateway.tenancy.keys.directory import UnknownKeyError
from gateway.tenancy.keys.key_commands import BUDGETS, KeyTerms, create_key, shown_key
from gateway.tenancy.keys.key_secrets import keys_of, new_key
from gateway.tenancy.tenancy import Tenancy, running_tenancy
from gateway.tenancy.windows import RedisWindows
from tests.database_outage import outage
from tests.gateway.chats import chat
from tests.polling import eventually
from tests.support.database import migrated
from tiers.catalog.catalog import CatalogInUse
from tiers.catalog.load import load_catalog

ORDER = Order(actor="test", now=1.0)
BOSS = new_key()[0]
BOUNDED = Caller(key_id="k", allowance=Allowance(requests_per_minute=1))


class Start:
    """Starts of a gateway's tenancy on one database; `shown`: the admin keys that were shown."""

    def __init__(self, engine: AsyncEngine, folder: Path) -> None:
        self.engine, self.folder, self.shown = engine, folder, list[str]()

    def tenancy(
        self, redis: RedisStore | None = None, *, shows: bool = True, **settings: Any
    ) -> AbstractAsyncContextManager[Tenancy]:
        given = Settings(**{"data_dir": str(self.folder), "keys_poll_seconds": 0.005} | settings)
        show = self.shown.append if shows else None
        return running_tenancy(given, CatalogInUse(load_catalog("laptop")), keys_of(given), self.engine, redis, show)

    @asynccontextmanager
    async def during_an_outage(self, **settings: Any) -> AsyncIterator[Tenancy]:
        """Started while the database is away; it is back in the block."""
        async with contextlib.AsyncExitStack() as stack:
            with outage(self.engine):
                tenancy = await stack.enter_async_context(self.tenancy(**settings))
            yield tenancy


@pytest_asyncio.fixture
async def start(sqlite_url: str, tmp_path: Path) -> AsyncIterator[Start]:
    async with migrated(sqlite_url) as engine:
        yield Start(engine, tmp_path)


def bearer(key: str) -> str:
    return f"Bearer {key}"


async def test_the_first_start_makes_an_admin_key_and_shows_it_once(start: Start) -> None:
    async with start.tenancy() as tenancy:
        (key,) = start.shown
        assert tenancy.directory.admin_caller(bearer(key)).scopes == {"admin"}
    async with start.tenancy():
        pass
    assert len(start.shown) == 1


@pytest.mark.parametrize("settings", [{"shows": False}, {"admin_keys": f"boss={BOSS}"}])
async def test_no_admin_key_is_made_where_another_process_does_or_the_settings_have_one(
    start: Start, settings: dict[str, Any]
) -> None:
    async with start.tenancy(**settings) as tenancy:
        assert tenancy.directory.has_admin == ("admin_keys" in settings)
    assert start.shown == []


async def test_an_admin_key_is_made_as_soon_as_the_database_is_there(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    async with start.during_an_outage() as tenancy:
        await eventually(lambda: start.shown)
        await eventually(lambda: tenancy.directory.has_admin)
    for said in (
        "keys cannot be read yet (OSError); those of the settings hold",
        "no admin key can be made yet (OSError); administration is off until then",
    ):
        assert said in caplog.text


async def test_the_declared_keys_are_there_at_the_start_or_as_soon_as_the_database_is(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    secret, file = new_key()[0], start.folder / "keys.toml"
    monkeypatch.setenv("OPS_SECRET", secret)
    file.write_text('[[keys]]\nname = "ops"\nsecret_env = "OPS_SECRET"\n')
    settings = {"keys_file": str(file), "admin_keys": f"boss={BOSS}"}
    async with start.tenancy(shows=False, **settings) as tenancy:
        with pytest.raises(UnknownKeyError):
            tenancy.directory.inference_caller(bearer(secret))
    async with start.during_an_outage(**settings, keys_poll_seconds=600) as tenancy:
        assert f"{file} cannot be applied yet (OSError); stored keys hold" in caplog.text
        assert not tenancy.directory.is_read
    async with start.tenancy(**settings, keys_poll_seconds=600) as tenancy:
        assert tenancy.directory.inference_caller(bearer(secret)).name == "ops"
        assert f"{file}: 1 changes of teams, keys and budgets" in caplog.text
    file.write_text('[[keys]]\nname = "ops"\nsecret_env = "OPS_SECRET"\nstrict = true\n')
    async with start.during_an_outage(**settings) as tenancy:
        await eventually(
            lambda: tenancy.directory.is_read and tenancy.directory.inference_caller(bearer(secret)).strict
        )


async def test_a_start_makes_no_declared_key_whose_secret_it_could_not_show(start: Start) -> None:
    file = start.folder / "keys.toml"
    file.write_text('[[keys]]\nname = "made"\n')
    with pytest.raises(ValueError, match="secret_env: is missing"):
        async with start.tenancy(keys_file=str(file), admin_keys=f"boss={BOSS}"):
            pass


@pytest.mark.parametrize(
    ("settings", "asks"),
    [
        ({"host": "127.0.0.1"}, False), ({"host": "0.0.0.0"}, True), ({"host": "0.0.0.0", "insecure": True}, False),
        ({"host": "127.0.0.1", "insecure": True}, False),
    ],
)  # fmt: skip
async def test_callers_need_no_key_on_this_machine_or_where_that_is_allowed(
    start: Start, settings: dict[str, Any], asks: bool
) -> None:
    async with start.tenancy(**settings) as tenancy:
        assert tenancy.directory.asks_for_keys == asks


async def test_keys_that_were_needed_are_needed_after_a_restart_without_the_database(start: Start) -> None:
    async with start.during_an_outage() as tenancy:
        assert not tenancy.directory.asks_for_keys
    await create_key(start.engine, "ada", None, KeyTerms(), ORDER)
    async with start.tenancy():
        assert (start.folder / "keys_required").exists()
    with outage(start.engine):
        async with start.tenancy() as tenancy:
            assert tenancy.directory.asks_for_keys


async def test_keys_are_followed_and_unspent_slices_are_returned(start: Start) -> None:
    budget_id = await set_budget(start.engine, "key", "app", "total", 1000 / MICRO, ORDER, static=True)
    ref = BudgetRef(budget_id=budget_id, period="total", amount_usd=1000 / MICRO)

    async def state() -> tuple[float, float]:
        page = await BUDGETS.page(start.engine, {})
        (found,) = await states_of(start.engine, page.rows, 1.0)
        return round(found.spent_usd * MICRO), round(found.leased_usd * MICRO)

    async with start.tenancy() as tenancy:
        made = await create_key(start.engine, "ada", None, KeyTerms(), ORDER)
        await eventually(lambda: tenancy.directory.knows(bearer(made.key)))
        (await tenancy.budget_leases.hold([ref], 10)).settle(10)
        await eventually(lambda: _is(state, (10, 0)))
        hold = await tenancy.budget_leases.hold([ref], 200)
        hold.settle(100)
    assert await state() == (110, 0)
    async with start.tenancy(keys_poll_seconds=600) as tenancy:
        (await tenancy.budget_leases.hold([ref], 10)).settle(10)
        assert (await state())[1] > 0
    assert await state() == (120, 0)
    assert tenancy.replica.startswith("replica_")
    assert (await shown_key(start.engine, "ada"))["name"] == "ada"


async def _is(state: Any, wanted: Any) -> bool:
    return bool(await state() == wanted)


@pytest.mark.parametrize(("setting", "passes"), [("open", True), ("closed", False)])
async def test_without_the_database_budgets_are_as_configured(start: Start, setting: str, passes: bool) -> None:
    ref = BudgetRef(budget_id="b", period="total", amount_usd=1.0)
    caller = Caller(key_id="k", allowance=Allowance(budgets=(ref,)))
    async with start.tenancy(budgets_without_database=setting, keys_poll_seconds=600) as tenancy:
        with outage(start.engine):
            admission = await tenancy.admission_control.enter_call(caller, "r")
            if passes:
                await admission.reserve(caller, 1e-6)
            else:
                with pytest.raises(ApiError) as refused:
                    await admission.reserve(caller, 1e-6)
                assert (refused.value.status, refused.value.body.code) == (503, "budget_unavailable")


@pytest.mark.parametrize(("setting", "passes"), [("open", True), ("closed", False)])
async def test_without_redis_limits_are_as_configured(start: Start, setting: str, passes: bool) -> None:
    redis = RedisStore("redis://127.0.0.1:1/0")
    async with start.tenancy(redis, limits_without_redis=setting) as tenancy:
        if passes:
            await tenancy.admission_control.enter_call(BOUNDED, "r")
        with pytest.raises(ApiError) as refused:
            await tenancy.admission_control.enter_call(BOUNDED, "r")
    assert (refused.value.status, refused.value.body.code) == (
        (429, "rate_limit_exceeded") if passes else (503, "limits_unavailable")
    )
    await redis.redis.aclose()


async def test_places_in_redis_are_kept_up_while_it_runs_and_departures_are_sent_at_the_end(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    async def follow(_: RedisWindows) -> None:
        said.append("follows")
        await asyncio.Event().wait()

    async def close(_: RedisWindows) -> None:
        said.append("closed")

    monkeypatch.setattr(RedisWindows, "follow", follow)
    monkeypatch.setattr(RedisWindows, "close", close)
    redis = RedisStore("redis://127.0.0.1:1/0")
    async with start.tenancy(redis):
        await eventually(lambda: said)
    assert said == ["follows", "closed"]
    await redis.redis.aclose()


async def test_the_answer_of_the_tier_with_the_longest_ones_is_expected(start: Start) -> None:
    caller = Caller(key_id="k", allowance=Allowance(tokens_per_minute=10_000))
    longest = max(tier.expected_answer_tokens for tier in load_catalog("laptop").tiers)
    async with start.tenancy() as tenancy:
        admission = await tenancy.admission_control.enter(msgspec.structs.replace(chat(), caller=caller))
    # "Say hello." has ten bytes.
    assert admission.headers["x-ratelimit-remaining-tokens"] == str(10_000 - (1 + 10 // 4 + longest))
