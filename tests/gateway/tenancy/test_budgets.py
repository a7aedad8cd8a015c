"""Budgets: replicas never overspend, return what they do not spend, and keep nothing when they die."""

import asyncio
import itertools
import math
import signal
import sys
import time
from decimal import Decimal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import func, insert, select
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.base.inference_request import BudgetRef, Period
from gateway.base.stores.database import DatabaseTime
from gateway.tenancy.budgets.budget_commands import BudgetState, remove_budget, set_budget, states_of
from gateway.tenancy.budgets.budget_leases import (
    REST_SECONDS,
    BudgetExceededError,
    BudgetLeases,
    BudgetsUnavailableError,
    Hold,
)
from gateway.tenancy.budgets.lease_book import MICRO, LeaseBook, microusd, period_bounds, period_key
from gateway.tenancy.changes import Order
from gateway.tenancy.keys.key_commands import BUDGETS
from migrations.tables.tenancy import budget_leases, budgets
from quality.store.queries import insert_records
from tests.database_outage import outage
from tests.polling import eventually
from tests.quality.store.records import make_record

ORDER = Order(actor="test", now=1.0)
NOON = 1_900_000_000.0  # in the year 2030


class Clock:
    def __init__(self) -> None:
        self.wall, self.monotonic = NOON, 1000.0

    def time(self) -> DatabaseTime:
        return DatabaseTime(lambda: self.wall, lambda: self.monotonic)


@pytest.fixture
def engine(any_engine: AsyncEngine) -> AsyncEngine:
    return any_engine


@pytest.fixture
def sqlite(sqlite_engine: AsyncEngine) -> AsyncEngine:
    return sqlite_engine


_NUMBERS = itertools.count()


async def budget(engine: AsyncEngine, micro: int, period: Period = "total") -> BudgetRef:
    budget_id = await set_budget(engine, "key", "ada", period, micro / MICRO, ORDER, static=True)
    return BudgetRef(budget_id=budget_id, period=period, amount_usd=micro / MICRO)


def leases(
    engine: AsyncEngine, name: str, clock: Clock | None = None, here: DatabaseTime | None = None, *, open_: bool = False
) -> BudgetLeases:
    """Of a replica that sees the database's time as `here`, or by `clock`, or by this machine's."""
    if clock is None:
        here = here or DatabaseTime()
        return BudgetLeases(LeaseBook(engine, name, here), here, open_without_database=open_)
    here = here or clock.time()
    return BudgetLeases(
        LeaseBook(engine, name, here), here, open_without_database=open_, monotonic=lambda: clock.monotonic
    )


async def state(engine: AsyncEngine, now: float = NOON) -> BudgetState:
    page = await BUDGETS.page(engine, {})
    return (await states_of(engine, page.rows, now))[0]


async def look(engine: AsyncEngine, here: DatabaseTime) -> None:
    """Ask the database for its time, as the poll does."""
    async with engine.connect() as connection:
        await here.look(connection)


async def spend(spender: BudgetLeases, ref: BudgetRef, amount: int) -> None:
    (await spender.hold([ref], amount)).settle(amount)


async def test_of_100_at_once_a_budget_for_10_lets_10_through(engine: AsyncEngine) -> None:
    ref = await budget(engine, 1000)
    both_leases = [leases(engine, "a"), leases(engine, "b")]
    held = await asyncio.gather(
        *(both_leases[number % 2].hold([ref], 100) for number in range(100)), return_exceptions=True
    )
    holds = [one for one in held if isinstance(one, Hold)]
    assert len(holds) == 10
    assert all(isinstance(one, BudgetExceededError) for one in held if not isinstance(one, Hold))
    for hold in holds:
        hold.settle(100)
        hold.settle(100)
    for one in both_leases:
        await one.close()
    found = await state(engine)
    assert (found.spent_usd, found.leased_usd) == (0.001, 0.0)


async def test_what_answers_did_not_cost_can_be_spent_again(engine: AsyncEngine) -> None:
    ref = await budget(engine, 100)
    spender = leases(engine, "a")
    hold = await spender.hold([ref], 80)
    with pytest.raises(BudgetExceededError, match=r"up to \$0.000050, and \$0.000020 are left .* in total"):
        await spender.hold([ref], 50)
    hold.settle(30)
    await spend(spender, ref, 50)
    await spender.close()
    assert (await state(engine)).spent_usd == 80 / MICRO


async def test_three_hundred_answers_for_less_than_a_micro_dollar_each_are_not_free(engine: AsyncEngine) -> None:
    ref = await budget(engine, 20)
    spender, served = leases(engine, "a"), 0
    for number in range(300):
        try:
            hold = await spender.hold([ref], 1)
        except BudgetExceededError:
            break
        hold.settle(microusd(4e-7))
        served += 1
        if number % 7 == 0:
            await spender.tell()
    # Of 20 micro-dollars 19.2 are spent; one more may cost a whole one.
    assert served == 48
    await spender.close()
    assert (await state(engine)).spent_usd == 20 / MICRO


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    answers=st.lists(st.tuples(st.integers(0, 3_000_000), st.integers(0, 2)), max_size=60),
    amount=st.integers(0, 40),
)
async def test_charges_add_up_to_the_exact_costs_and_no_budget_is_exceeded(
    sqlite: AsyncEngine, answers: list[tuple[int, int]], amount: int
) -> None:
    """Costs in millionths of a micro-dollar; after some answers the process starts again, or reports."""
    engine, clock = sqlite, DatabaseTime()
    budget_id = f"budget-{next(_NUMBERS)}"
    row = {"budget_id": budget_id, "subject_kind": "key", "subject": budget_id, "period": "total"}
    async with engine.begin() as connection:
        await connection.execute(insert(budgets).values(row | {"amount_microusd": amount, "created_at": 1.0}))
    ref = BudgetRef(budget_id=budget_id, period="total", amount_usd=amount / MICRO)
    processes, exact = 1, Decimal(0)
    spender = BudgetLeases(LeaseBook(engine, f"{budget_id}-0", clock), clock)
    for cost, then in answers:
        charge = Decimal(cost) / MICRO
        try:
            hold = await spender.hold([ref], math.ceil(charge))
        except BudgetExceededError:
            continue
        hold.settle(charge)
        exact += charge
        if then == 1:
            await spender.tell()
        elif then == 2:
            await spender.close()
            spender = BudgetLeases(LeaseBook(engine, f"{budget_id}-{processes}", clock), clock)
            processes += 1
    await spender.close()
    async with engine.connect() as connection:
        columns = budget_leases.c
        charged = await connection.scalar(
            select(func.sum(columns.spent_microusd)).where(columns.budget_id == budget_id)
        )
    assert exact <= (charged or 0) < exact + processes
    assert (charged or 0) <= amount


async def test_a_request_that_one_of_its_budgets_refuses_holds_nothing_of_the_others(sqlite: AsyncEngine) -> None:
    plenty, scarce = await budget(sqlite, 1000, "month"), await budget(sqlite, 10, "day")
    spender = leases(sqlite, "a")
    with pytest.raises(BudgetExceededError, match="per day"):
        await spender.hold([plenty, scarce], 20)
    await spend(spender, plenty, 1000)
    await spend(spender, scarce, 10)


async def test_an_idle_replica_returns_its_slice_and_a_drained_one_all(engine: AsyncEngine) -> None:
    ref = await budget(engine, 1000)
    idle, busy = leases(engine, "a"), leases(engine, "b")
    await spend(idle, ref, 900)
    with pytest.raises(BudgetExceededError):
        await busy.hold([ref], 101)
    hold = await idle.hold([ref], 50)
    await idle.tell()
    hold.settle(0)
    await idle.tell()
    assert (await state(engine)).leased_usd == 0
    await spend(busy, ref, 60)
    await busy.close()
    found = await state(engine)
    assert (found.spent_usd, found.leased_usd) == (960 / MICRO, 0)


async def test_an_expired_lease_returns_except_for_what_the_ledger_recorded(sqlite: AsyncEngine) -> None:
    clock = Clock()
    ref = await budget(sqlite, 1000)
    dead, other = leases(sqlite, "dead", clock), leases(sqlite, "other", clock)
    await spend(dead, ref, 300)
    await dead.hold([ref], 600)
    with pytest.raises(BudgetExceededError):
        await other.hold([ref], 200)
    record = make_record("r-1", key_id="ada", replica="dead", cost_usd=300 / MICRO, created_at=NOON)
    clock.monotonic += 29
    with pytest.raises(BudgetExceededError):
        await other.hold([ref], 200)
    clock.monotonic += 2
    async with sqlite.begin() as connection:
        await insert_records(connection, [record])
    await spend(other, ref, 700)
    with pytest.raises(BudgetExceededError):
        await other.hold([ref], 1)
    # The dead one was only slow: its lease is no longer its own, and it learns so before it spends.
    with pytest.raises(BudgetExceededError):
        await dead.hold([ref], 1)


async def test_records_that_reach_the_ledger_late_are_charged_to_the_lost_lease(sqlite: AsyncEngine) -> None:
    clock = Clock()
    ref = await budget(sqlite, 1000)
    dead, other = leases(sqlite, "dead", clock), leases(sqlite, "other", clock)
    await spend(dead, ref, 300)
    clock.monotonic += 31
    await spend(other, ref, 1)
    async with sqlite.begin() as connection:
        record = make_record("r-1", key_id="ada", replica="dead", cost_usd=300 / MICRO, created_at=NOON)
        await insert_records(connection, [record])
    with pytest.raises(BudgetExceededError):
        await other.hold([ref], 700)
    assert (await state(sqlite)).spent_usd * MICRO == pytest.approx(301)


async def test_a_machine_restart_ends_its_leases_though_its_clock_restarts(sqlite: AsyncEngine) -> None:
    before, after = Clock(), Clock()
    before.monotonic = 1e6
    ref = await budget(sqlite, 1000)
    await leases(sqlite, "a", before).hold([ref], 1000)
    after.monotonic = 3.0
    await spend(leases(sqlite, "b", after), ref, 1000)


async def test_steps_of_the_wall_clock_end_no_lease_and_a_new_day_has_a_budget_of_its_own(sqlite: AsyncEngine) -> None:
    clock = Clock()
    ref = await budget(sqlite, 100, "day")
    here = clock.time()
    spender, other = leases(sqlite, "a", clock), leases(sqlite, "b", clock, here)
    await spend(spender, ref, 60)
    clock.wall += 1800
    with pytest.raises(BudgetExceededError):
        await other.hold([ref], 60)
    clock.wall += 86_400
    # The step is invisible until the database reports it.
    with pytest.raises(BudgetExceededError):
        await other.hold([ref], 61)
    await look(sqlite, here)
    await spend(other, ref, 100)
    clock.wall -= 86_400
    await look(sqlite, here)
    with pytest.raises(BudgetExceededError):
        await other.hold([ref], 41)


@pytest.mark.parametrize("forward", [0.0, 86_400.0], ids=["back", "forward and back"])
async def test_a_clock_that_goes_back_by_a_day_gives_no_day_again(
    sqlite: AsyncEngine, forward: float, caplog: pytest.LogCaptureFixture
) -> None:
    clock, ref = Clock(), await budget(sqlite, 100, "day")
    here = clock.time()
    spender = leases(sqlite, "a", clock, here)
    clock.wall += forward
    await look(sqlite, here)
    await spend(spender, ref, 100)

    clock.wall -= 86_400.0
    for _ in range(2):
        await look(sqlite, here)
    with pytest.raises(BudgetExceededError):
        await spender.hold([ref], 1)
    assert here.now() == NOON + forward
    assert [record.getMessage() for record in caplog.records if "went back by 86400 s" in record.getMessage()] != []

    # A correction is followed, and so is a clock that has caught up.
    clock.wall = NOON + forward - 10
    await look(sqlite, here)
    assert here.now() == NOON + forward - 10


async def test_an_amount_that_is_lowered_and_a_budget_that_is_removed(sqlite: AsyncEngine) -> None:
    ref = await budget(sqlite, 1000)
    spender = leases(sqlite, "a")
    await spend(spender, ref, 400)
    assert (await budget(sqlite, 500)).budget_id == ref.budget_id
    with pytest.raises(BudgetExceededError):
        await spender.hold([ref], 101)
    await remove_budget(sqlite, ref.budget_id, ORDER)
    await leases(sqlite, "b").hold([ref], 10_000)


async def slice_of(sqlite: AsyncEngine) -> int:
    """Micro-dollars that are leased and not reported as spent."""
    return round((await state(sqlite, time.time())).leased_usd * MICRO)


async def test_without_the_database_a_slice_is_spent_to_its_end_and_no_further(sqlite: AsyncEngine) -> None:
    ref = await budget(sqlite, 1000)
    spender = leases(sqlite, "a")
    await spend(spender, ref, 10)
    leased = await slice_of(sqlite)
    with outage(sqlite):
        await spend(spender, ref, leased - 10)
        with pytest.raises(BudgetsUnavailableError):
            await spender.hold([ref], 5)
        with pytest.raises(OSError):
            await spender.tell()
    await spender.tell()
    assert (await state(sqlite)).spent_usd == pytest.approx(leased / MICRO)


async def test_a_database_that_is_back_is_asked_again_however_many_requests_were_refused_meanwhile(
    sqlite: AsyncEngine,
) -> None:
    clock = Clock()
    ref = await budget(sqlite, 1000)
    spender = leases(sqlite, "a", clock)
    with outage(sqlite), pytest.raises(BudgetsUnavailableError):
        await spender.hold([ref], 1)
    for _ in range(3):
        clock.monotonic += REST_SECONDS / 4
        with pytest.raises(BudgetsUnavailableError):
            await spender.hold([ref], 1)
    clock.monotonic += REST_SECONDS / 4
    (await spender.hold([ref], 1)).settle(1)


async def test_without_the_database_an_open_gateway_spends_on_and_reports_it_later(sqlite: AsyncEngine) -> None:
    ref = await budget(sqlite, 1000)
    spender = leases(sqlite, "a", open_=True)
    await spend(spender, ref, 10)
    leased = await slice_of(sqlite)
    with outage(sqlite):
        await spend(spender, ref, leased - 10)
        await spend(spender, ref, 5)
    await spender.tell()
    assert (await state(sqlite)).spent_usd == pytest.approx((leased + 5) / MICRO)


async def test_a_slice_is_not_spent_after_its_time_though_the_database_is_away(sqlite: AsyncEngine) -> None:
    clock = Clock()
    ref = await budget(sqlite, 1000)
    spender = leases(sqlite, "a", clock)
    (await spender.hold([ref], 500)).settle(0)
    with outage(sqlite):
        clock.monotonic += 29
        (await spender.hold([ref], 1)).settle(0)
        clock.monotonic += 2
        with pytest.raises(BudgetsUnavailableError):
            await spender.hold([ref], 1)


_DOOMED = """
import asyncio, sys
from gateway.base.inference_request import BudgetRef
from gateway.base.stores.database import DatabaseTime
from gateway.tenancy.budgets.lease_book import LeaseBook
from gateway.tenancy.budgets.budget_leases import BudgetLeases
from quality.store.database import open_database

async def main():
    clock = DatabaseTime()
    book = LeaseBook(open_database(sys.argv[1]), "doomed", clock, lease_seconds=0.5)
    leases = BudgetLeases(book, clock)
    ref = BudgetRef(budget_id=sys.argv[2], period="total", amount_usd=0.001)
    (await leases.hold([ref], 900)).settle(300)
    await leases.tell()
    await leases.hold([ref], 600)
    print("held", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


async def test_a_replica_that_is_killed_leaves_its_slice_to_the_others(database_url: str, engine: AsyncEngine) -> None:
    ref = await budget(engine, 1000)
    doomed = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _DOOMED, database_url, ref.budget_id, stdout=asyncio.subprocess.PIPE
    )
    assert doomed.stdout is not None
    assert await doomed.stdout.readline() == b"held\n"
    doomed.send_signal(signal.SIGKILL)
    await doomed.wait()
    clock = DatabaseTime()
    book = LeaseBook(engine, "survivor", clock, lease_seconds=600)

    async def granted() -> bool:
        grant = await book.grant(ref.budget_id, "total", 700, 0)
        return grant is not None and grant.granted >= 700

    # The wait is for the database's clock.
    await eventually(granted)
    assert await book.grant(ref.budget_id, "total", 701, 0) is not None
    found = await state(engine)
    assert (found.spent_usd, found.leased_usd) == (300 / MICRO, 700 / MICRO)


@pytest.mark.parametrize(
    ("period", "key", "seconds"), [("day", "2024-02-29", 86_400), ("month", "2024-02", 29 * 86_400)]
)
def test_periods_are_calendar_periods_in_utc(period: str, key: str, seconds: int) -> None:
    leap = 1_709_164_800.0  # 2024-02-29T00:00Z
    assert period_key(period, leap) == key
    begin, end = period_bounds(key)
    assert end - begin == seconds
    assert (period_key(period, end - 1), period_key(period, end)[:7]) == (key, "2024-03")
