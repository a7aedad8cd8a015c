"""Slices of budgets in memory, over a lease book that answers as a test says: what it is asked, and when."""

import asyncio
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, cast

import pytest

from gateway.base.inference_request import BudgetRef, Period
from gateway.base.stores.database import DatabaseTime
from gateway.tenancy.budgets.budget_leases import BudgetExceededError, BudgetLeases, BudgetsUnavailableError
from gateway.tenancy.budgets.lease_book import MICRO, Grant, LeaseBook, Statement
from tests.polling import eventually

NOON = 1_900_000_000.0
TOTAL = BudgetRef(budget_id="b", period="total", amount_usd=0.001)
ERROR = OSError("the database does not answer")


class Book:
    """Grants `answers` in their order; `asked`: period, needed and spent of each time; `alive`: what reports hear."""

    lease_seconds = 30.0

    def __init__(self, *answers: Grant | Exception | None) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, int, int]] = []
        self.told: list[list[Statement]] = []
        self.alive: bool | Exception = True
        self.go = asyncio.Event()
        self.go.set()
        self.turns = asyncio.Semaphore(1)

    async def grant(self, budget_id: str, key: str, needed: int, spent: int) -> Grant | None:
        self.asked.append((key, needed, spent))
        answer = self.answers.pop(0)
        await self.go.wait()
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def tell(self, statements: Sequence[Statement]) -> list[bool]:
        self.told.append(list(statements))
        await self.go.wait()
        if isinstance(self.alive, Exception):
            raise self.alive
        return [self.alive and not statement.final for statement in statements]


class World:
    """Leases over `book`; both clocks stand still, the monotonic one near the machine's start."""

    def __init__(self, *answers: Grant | Exception | None, open_: bool = False) -> None:
        self.book, self.wall, self.monotonic = Book(*answers), NOON, 0.25
        # A step of the wall clock is seen at once.
        self.clock = DatabaseTime(lambda: self.wall, lambda: 0.0)
        self.leases = BudgetLeases(
            cast(LeaseBook, self.book), self.clock, open_without_database=open_, monotonic=lambda: self.monotonic
        )

    def step(self, seconds: float) -> None:
        self.wall += seconds
        self.clock._ahead += seconds

    async def hold(self, amount: int, *budgets: BudgetRef) -> Any:
        return await self.leases.hold(budgets or [TOTAL], amount)


def told(book: Book) -> list[tuple[str, int, int, bool]]:
    """The last report: period, spent, granted, and whether it is the final one."""
    return [(one.period_key, one.spent, one.granted, one.final) for one in book.told[-1]]


async def test_a_slice_is_used_to_its_last_micro_dollar_and_to_the_end_of_its_time() -> None:
    world = World(Grant(100, 0), Grant(100, 0), Grant(130, 0))
    (await world.hold(100)).settle(40)
    await world.hold(60)
    assert world.book.asked == [("total", 100, 0)]
    world.monotonic += 29.9
    await world.hold(0)
    assert len(world.book.asked) == 1
    world.monotonic = 30.25
    await world.hold(0)
    assert world.book.asked[1:] == [("total", 60, 40)]
    await world.hold(30)
    assert world.book.asked[2:] == [("total", 90, 40)]


async def test_what_is_asked_for_counts_what_is_held_and_spending_is_reported_rounded_up() -> None:
    world = World(Grant(11, 0), Grant(31, 0))
    (await world.hold(1)).settle(Decimal("0.5"))
    await world.hold(10)
    await world.hold(20)
    # 0.5 spent, 10 held and 20 wanted are 31 whole ones, of which one is reported as spent.
    assert world.book.asked == [("total", 1, 0), ("total", 30, 1)]


async def test_within_a_second_of_a_refusal_the_book_is_asked_for_no_more_than_it_has_left() -> None:
    world = World(Grant(0, 20), Grant(0, 20), Grant(10, 10), Grant(20, 0))
    left = r"\$0.000020 are left of the budget of \$0.001 in total"
    with pytest.raises(BudgetExceededError, match=rf"up to \$0.000050, and {left}"):
        await world.hold(50)
    world.monotonic += 0.75
    for amount in (50, 21):
        with pytest.raises(BudgetExceededError, match=left):
            await world.hold(amount)
    assert len(world.book.asked) == 1
    world.monotonic += 0.25
    with pytest.raises(BudgetExceededError, match=left):
        await world.hold(50)
    assert len(world.book.asked) == 2
    first = await world.hold(10)
    await world.hold(10)
    assert [needed for _, needed, _ in world.book.asked[2:]] == [10, 20]
    first.settle(4)
    with pytest.raises(BudgetExceededError, match=r"\$0.000006 are left"):
        await world.hold(7)
    assert len(world.book.asked) == 4


async def test_a_budget_that_was_raised_is_asked_for_at_once() -> None:
    world = World(Grant(0, 20), Grant(50, 950))
    with pytest.raises(BudgetExceededError):
        await world.hold(50)
    await world.hold(50, BudgetRef(budget_id="b", period="total", amount_usd=0.002))
    assert len(world.book.asked) == 2


async def test_what_a_slice_returned_is_left_for_the_next_request() -> None:
    world = World(Grant(40, 0), Grant(40, 0), Grant(40, 0))
    (await world.hold(40)).settle(10)
    with pytest.raises(BudgetExceededError, match=r"\$0.000030 are left"):
        await world.hold(31)
    await world.leases.tell()
    assert told(world.book) == [("total", 10, 10, False)]
    with pytest.raises(BudgetExceededError, match=r"\$0.000030 are left"):
        await world.hold(31)
    assert len(world.book.asked) == 2
    await world.hold(30)


async def test_a_database_that_failed_is_not_asked_again_for_a_second_however_many_requests_come() -> None:
    world = World(ERROR, ERROR, Grant(5, 0))
    for at, asked in ((0.25, 1), (1.0, 1), (1.25, 2), (2.25, 3)):
        world.monotonic = at
        if asked < 3:
            with pytest.raises(BudgetsUnavailableError):
                await world.hold(5)
        else:
            await world.hold(5)
        assert len(world.book.asked) == asked


async def test_without_the_database_nothing_is_held_unless_that_is_configured() -> None:
    world = World()
    usual = BudgetLeases(cast(LeaseBook, Book(ERROR)), world.clock, monotonic=lambda: 0.25)
    for amount in (5, 0):
        with pytest.raises(BudgetsUnavailableError):
            await usual.hold([TOTAL], amount)


async def test_who_waits_is_woken_by_a_request_that_ends_and_not_by_one_that_another_budget_refuses() -> None:
    world = World(Grant(100, 0), Grant(100, 0), Grant(5, 0))
    day = BudgetRef(budget_id="d", period="day", amount_usd=0.1)
    first = await world.hold(60)
    with pytest.raises(BudgetExceededError) as refused:
        await world.hold(50)
    assert refused.value.held_usd == 60 / MICRO
    waiting = world.leases.next_release([TOTAL, day])
    with pytest.raises(BudgetExceededError) as refused:
        await world.hold(10, TOTAL, day)
    assert refused.value.held_usd == 0
    assert not waiting.done()
    first.settle(20)
    assert waiting.done()
    await world.hold(50)
    assert not world.leases.next_release([TOTAL]).done()


async def test_an_open_gateway_asks_later_for_what_it_held_meanwhile() -> None:
    world = World(ERROR, Grant(12, 0), open_=True)
    first = await world.hold(5)
    world.monotonic += 1
    second = await world.hold(7)
    assert world.book.asked[1:] == [("total", 12, 0)]
    first.settle(5)
    second.settle(7)
    await world.leases.close()
    assert told(world.book) == [("total", 12, 12, True)]


async def test_more_is_held_only_if_every_slice_has_it() -> None:
    world = World(Grant(100, 0), Grant(15, 0))
    day = BudgetRef(budget_id="d", period="day", amount_usd=0.1)
    hold = await world.hold(10, TOTAL, day)
    assert not hold.extend(6)
    assert hold.extend(5)
    assert not hold.extend(1)
    hold.settle(20)
    hold.settle(20)
    await world.leases.close()
    # At most what was held, once.
    assert [(spent, granted) for _, spent, granted, _ in told(world.book)] == [(15, 15), (15, 15)]


async def test_no_more_is_held_of_a_slice_that_has_expired() -> None:
    world = World(Grant(100, 0), Grant(100, 0))
    hold = await world.hold(10)
    world.monotonic += 29.9
    assert hold.extend(5)
    world.monotonic += 0.1
    assert not hold.extend(5), "it may have been granted to another"
    hold.settle(15)
    await world.hold(0)
    assert world.book.asked[1:] == [("total", 0, 15)]


async def test_a_report_keeps_what_is_held_and_twice_what_was_spent_since_the_last() -> None:
    world = World(Grant(1000, 0), Grant(200, 0))
    spent, held = await world.hold(30), await world.hold(20)
    spent.settle(30)
    await world.leases.tell()
    assert told(world.book) == [("total", 30, 30 + 20 + 60, False)]
    (await world.hold(10)).settle(10)
    world.monotonic += 20
    await world.leases.tell()
    assert told(world.book) == [("total", 40, 40 + 20 + 20, False)]
    # Renewed by the report.
    world.monotonic += 29.9
    (await world.hold(20)).settle(0)
    assert len(world.book.asked) == 1
    world.monotonic += 0.1
    held.settle(0)
    await world.hold(1)
    assert world.book.asked[1:] == [("total", 1, 40)]


async def test_of_an_idle_slice_the_rest_is_returned_once() -> None:
    world = World(Grant(1000, 0))
    (await world.hold(30)).settle(0)
    await world.leases.tell()
    assert told(world.book) == [("total", 0, 0, False)]
    await world.leases.tell()
    assert len(world.book.told) == 1


async def test_nothing_is_said_of_no_slices(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    await world.leases.tell()
    await world.leases.close()
    assert (world.book.told, caplog.text) == ([], "")


async def test_a_slice_of_a_period_that_ended_is_returned_after_its_last_request() -> None:
    world = World(Grant(100, 0), Grant(100, 0))
    day = BudgetRef(budget_id="d", period="day", amount_usd=0.1)
    hold = await world.hold(10, day)
    world.step(86_400)
    assert world.leases.now() == NOON + 86_400
    await world.leases.tell()
    assert told(world.book) == [("2030-03-17", 0, 10, False)]
    hold.settle(10)
    await world.leases.tell()
    assert told(world.book) == [("2030-03-17", 10, 10, True)]
    await world.leases.tell()
    assert len(world.book.told) == 2
    await world.hold(10, day)
    assert [key for key, *_ in world.book.asked] == ["2030-03-17", "2030-03-18"]


@pytest.mark.parametrize(("period", "key"), [("day", "2030-03-17"), ("month", "2030-03"), ("total", "total")])
async def test_a_slice_of_a_period_that_goes_on_is_no_final_one(period: Period, key: str) -> None:
    world = World(Grant(100, 0))
    await world.hold(10, BudgetRef(budget_id="p", period=period, amount_usd=0.1))
    await world.leases.tell()
    assert told(world.book) == [(key, 0, 10, False)]


async def test_a_lease_that_is_lost_is_asked_for_again_before_more_is_spent() -> None:
    world = World(Grant(100, 0), Grant(110, 0))
    (await world.hold(10)).settle(10)
    world.book.alive = False
    await world.leases.tell()
    assert len(world.book.asked) == 1, "the book has charged the lease itself"
    await world.hold(1)
    assert world.book.asked[1:] == [("total", 1, 10)]


async def test_what_an_open_gateway_spent_without_a_lease_gets_one_to_charge_it_to() -> None:
    world = World(ERROR, Grant(5, 0), open_=True)
    world.book.alive = False
    hold = await world.hold(1)
    await world.leases.tell()
    # Held, but nothing spent yet.
    assert (told(world.book), len(world.book.asked)) == ([("total", 0, 0, False)], 1)
    hold.settle(1)
    world.monotonic += 1
    await world.leases.tell()
    assert world.book.asked[1:] == [("total", 0, 1)]


async def test_a_budget_that_was_removed_bounds_nothing() -> None:
    world = World(None)
    hold = await world.hold(10)
    assert hold.extend(10**9)
    assert not hold.slices


async def test_the_book_is_asked_about_a_slice_one_at_a_time() -> None:
    world = World(Grant(100, 0))
    world.book.go.clear()
    asking = [asyncio.create_task(world.hold(10)) for _ in range(3)]
    await asyncio.sleep(0)
    # A report does not wait for the slice that is being asked for.
    await world.leases.tell()
    assert world.book.told == []
    world.book.go.set()
    await asyncio.gather(*asking)
    assert world.book.asked == [("total", 10, 0)]


@pytest.mark.parametrize("answer", [Grant(100, 0), ERROR])
async def test_slices_wait_for_their_turn_and_fail_with_the_first_that_is_not_answered(answer: Grant | OSError) -> None:
    world = World(answer, *[Grant(100, 0)] * 4)
    world.book.go.clear()
    budgets = [BudgetRef(budget_id=f"b{n}", period="total", amount_usd=0.001) for n in range(5)]
    asking = [asyncio.create_task(world.hold(10, budget)) for budget in budgets]
    await eventually(lambda: all(world.leases._slice(budget, "total").talking.locked() for budget in budgets))
    assert len(world.book.asked) == 1
    world.book.go.set()
    failures = [
        failure for failure in await asyncio.gather(*asking, return_exceptions=True) if isinstance(failure, Exception)
    ]
    if answer is ERROR:
        assert (len(failures), len(world.book.asked)) == (5, 1)
    else:
        assert (failures, len(world.book.asked)) == ([], 5)


async def test_a_slice_that_is_reported_is_not_asked_for_meanwhile() -> None:
    world = World(Grant(10, 0), Grant(30, 0))
    (await world.hold(10)).settle(10)
    world.book.go.clear()
    telling = asyncio.create_task(world.leases.tell())
    await asyncio.sleep(0)
    asking = asyncio.create_task(world.hold(20))
    await asyncio.sleep(0)
    assert (len(world.book.told), len(world.book.asked)) == (1, 1)
    world.book.go.set()
    await asyncio.gather(telling, asking)
    assert len(world.book.asked) == 2


async def test_what_is_spent_during_a_report_is_in_the_next_report() -> None:
    world = World(Grant(100, 0))
    whole = await world.hold(100)
    world.book.go.clear()
    telling = asyncio.create_task(world.leases.tell())
    await eventually(lambda: world.book.told)
    whole.settle(100)
    world.book.go.set()
    await telling
    await world.leases.tell()
    assert [report[0].spent for report in world.book.told] == [0, 100]


async def test_what_is_spent_during_a_grant_is_in_the_next_report() -> None:
    world = World(Grant(10, 0), Grant(10, 0))
    whole = await world.hold(10)
    world.book.go.clear()
    asking = asyncio.create_task(world.hold(5))
    await eventually(lambda: len(world.book.asked) == 2)
    whole.settle(10)
    world.book.go.set()
    with pytest.raises(BudgetExceededError):
        await asking
    await world.leases.tell()
    assert [one.spent for one in world.book.told[-1]] == [10]


async def test_reports_go_on_after_the_database_was_down(caplog: pytest.LogCaptureFixture) -> None:
    world = World(Grant(100, 0))
    await world.hold(10)
    world.book.alive = ERROR
    following = asyncio.create_task(world.leases.follow(0))
    await eventually(lambda: len(world.book.told) >= 2)
    assert "budgets: the database is down (OSError); leased slices are spent" in caplog.text
    assert not following.done()
    following.cancel()
    caplog.clear()
    await world.leases.close()
    assert "budgets: slices could not be returned, and expire: OSError" in caplog.text


def test_a_refusal_names_the_period_of_its_budget() -> None:
    day = BudgetRef(budget_id="d", period="day", amount_usd=2.5)
    error = BudgetExceededError(day, 3 * MICRO, -1)
    assert str(error) == "it may cost up to $3.000000, and $0.000000 are left of the budget of $2.5 per day"
    assert error.budget is day
