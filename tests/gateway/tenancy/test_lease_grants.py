"""The lease book to the micro-dollar and the second: what it grants, whose leases it changes, and which it ends."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from gateway.base.stores.database import DatabaseTime
from gateway.tenancy.budgets.budget_commands import remove_budget, set_budget, states_of
from gateway.tenancy.budgets.lease_book import LEASE_SECONDS, MICRO, Grant, LeaseBook, Statement, period_bounds
from gateway.tenancy.changes import Order, UnknownSubjectError
from gateway.tenancy.keys.key_commands import BUDGETS, KeyTerms, create_key, create_team
from migrations.tables.audit import audit_events
from migrations.tables.tenancy import budget_leases, budgets, tenancy_state
from quality.store.queries import insert_records
from tests.quality.store.records import make_record
from tests.support.database import migrated

ORDER = Order(actor="test", now=7.0, reason="why")


class Books:
    """A lease book per replica, on one machine whose clock is at `monotonic`."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine, self.monotonic = engine, 1000.0

    def of(self, replica: str) -> LeaseBook:
        clock = DatabaseTime(lambda: 1_900_000_000.0, lambda: self.monotonic)
        return LeaseBook(self.engine, replica, clock)

    async def granted(self, replica: str, budget_id: str, needed: int, spent: int = 0, key: str = "total") -> Any:
        return await self.of(replica).grant(budget_id, key, needed, spent)

    async def rows(self, *columns: str) -> list[tuple[Any, ...]]:
        """The leases in the order in which they were made."""
        query = select(*(budget_leases.c[name] for name in columns)).order_by(budget_leases.c.lease_id)
        async with self.engine.connect() as connection:
            return [tuple(row) for row in await connection.execute(query)]


@pytest_asyncio.fixture
async def books(sqlite_url: str) -> AsyncIterator[Books]:
    async with migrated(sqlite_url) as engine:
        yield Books(engine)


async def budget(books: Books, micro: int = 1000, subject: str = "ada", period: Any = "total") -> str:
    return await set_budget(books.engine, "key", subject, period, micro / MICRO, ORDER, static=True)


async def test_a_tenth_of_the_rest_is_granted_at_once_and_more_where_it_is_needed(books: Books) -> None:
    one = await budget(books)
    assert await books.granted("a", one, 50) == Grant(100, 900)
    assert await books.granted("a", one, 100) == Grant(100, 900), "it has as much already"
    assert await books.granted("a", one, 101) == Grant(190, 810)
    assert await books.granted("b", one, 811) == Grant(0, 810), "more than is left"
    assert await books.granted("b", one, 810) == Grant(810, 0)
    assert await books.granted("a", one, 10, spent=185) == Grant(190, 0)
    assert await books.granted("a", "no-budget", 1) is None


async def test_spending_counts_as_reported_or_as_said_whichever_is_more(books: Books) -> None:
    one = await budget(books)
    await books.granted("a", one, 100)
    assert await books.of("a").tell([Statement(one, "total", spent=60, granted=70)]) == [True]
    assert await books.rows("granted_microusd", "spent_microusd") == [(70, 60)]
    # 60 are spent and 20 needed: 10 above the 70.
    assert await books.granted("a", one, 20, spent=10) == Grant(70 + 93, 1000 - 70 - 93)
    assert await books.rows("spent_microusd") == [(60,)]
    # Of a returned lease only what was spent is taken.
    await books.of("a").tell([Statement(one, "total", spent=80, granted=80, final=True)])
    assert await books.rows("status", "granted_microusd", "spent_microusd") == [("returned", 80, 80)]
    assert await books.granted("b", one, 920) == Grant(920, 0)
    assert await books.granted("a", one, 0, spent=80) == Grant(80, 0)


async def test_a_returned_or_lost_lease_becomes_active_again_with_a_grant(books: Books) -> None:
    one = await budget(books)
    await books.granted("a", one, 500)
    await books.of("a").tell([Statement(one, "total", spent=5, granted=5, final=True)])
    books.monotonic += 3
    assert await books.granted("a", one, 1, spent=5) == Grant(5 + 99, 1000 - 5 - 99)
    ((status, expires_at, replica),) = await books.rows("status", "expires_at", "replica")
    assert (status, expires_at, replica) == ("active", 1003.0 + LEASE_SECONDS, "a")


async def test_a_report_changes_the_lease_of_its_replica_budget_and_period_alone(books: Books) -> None:
    one, other = await budget(books), await budget(books, subject="bob")
    for replica, of, key in (("a", one, "total"), ("b", one, "total"), ("a", other, "total"), ("a", one, "2030-03")):
        await books.granted(replica, of, 100, key=key)
    columns = ("granted_microusd", "spent_microusd", "expires_at", "status")
    before = await books.rows(*columns)
    assert before == [(100, 0, 1030.0, "active"), (100, 0, 1030.0, "active"), *before[2:]]
    books.monotonic += 7
    told = [Statement(one, "total", spent=40, granted=30), Statement(one, "gone", spent=1, granted=1)]
    assert await books.of("a").tell(told) == [True, False]
    # Not less than it spent.
    assert await books.rows(*columns) == [(40, 40, 1037.0, "active"), *before[1:]]
    assert await books.of("a").tell([Statement(one, "total", spent=41, granted=60, final=True)]) == [False]
    assert await books.rows(*columns) == [(41, 41, 1037.0, "returned"), *before[1:]]
    # No lease any more, but its spending counts.
    assert await books.of("a").tell([Statement(one, "total", spent=50, granted=60)]) == [False]
    assert await books.rows(*columns) == [(41, 50, 1037.0, "returned"), *before[1:]]


@pytest.mark.parametrize(
    ("seconds", "ended"), [(29.5, False), (30.0, True), (-30.0, False), (-30.5, True), (-1000.0, True)]
)
async def test_a_lease_ends_after_30_seconds_or_if_the_clock_restarted(
    books: Books, seconds: float, ended: bool
) -> None:
    """So far back that a lease would last for more than twice its time, the clock is another."""
    one = await budget(books)
    await books.granted("a", one, 1000)
    books.monotonic += seconds
    grant = await books.granted("b", one, 1000)
    assert grant == (Grant(1000, 0) if ended else Grant(0, 0))
    assert (await books.rows("status"))[0] == ("lost" if ended else "active",)


async def test_every_expired_lease_ends_whatever_comes_before_it(books: Books) -> None:
    one = await budget(books)
    for replica in ("b", "returned", "dead", "alive", "dead too"):
        await books.granted(replica, one, 100)
    await books.of("returned").tell([Statement(one, "total", spent=0, granted=0, final=True)])
    books.monotonic += 20
    await books.of("alive").tell([Statement(one, "total", spent=0, granted=100)])
    books.monotonic += 10
    left = (await books.granted("b", one, 0)).left
    assert await books.rows("status") == [("active",), ("returned",), ("lost",), ("active",), ("lost",)]
    assert left == 1000 - 100 - 100


async def test_of_a_lost_lease_what_its_replica_recorded_in_the_period_is_spent(books: Books) -> None:
    one, key = await budget(books, period="day"), "2030-03-17"
    begin, end = period_bounds(key)
    await books.granted("dead", one, 500, key=key)
    await books.granted("dead too", one, 300, key=key)
    await books.of("dead too").tell([Statement(one, key, spent=200, granted=300)])
    spent = [
        ("ada", "dead", 100, begin), ("ada", "dead", 10.5, end - 1), ("ada", "dead", 7, begin - 1),
        ("ada", "dead", 7, end), ("bob", "dead", 7, begin), ("ada", "another", 7, begin),
        ("ada", "dead too", 50, begin),
    ]  # fmt: skip
    async with books.engine.begin() as connection:
        await insert_records(
            connection,
            [
                make_record(f"r-{n}", key_id=key_id, replica=replica, cost_usd=micro / MICRO, created_at=at)
                for n, (key_id, replica, micro, at) in enumerate(spent)
            ],
        )
    books.monotonic += 31
    assert await books.granted("b", one, 10, key=key) == Grant(68, 1000 - 111 - 200 - 68)
    # In whole micro-dollars, at least what was reported; its rest is free.
    assert await books.rows("status", "spent_microusd") == [("lost", 111), ("lost", 200), ("active", 0)]


async def test_a_teams_budget_counts_what_its_keys_recorded(books: Books) -> None:
    team = await create_team(books.engine, "lab", ORDER)
    member = await create_key(books.engine, "one", "lab", KeyTerms(), ORDER)
    other = await create_key(books.engine, "two", None, KeyTerms(), ORDER)
    one = await set_budget(books.engine, "team", "lab", "total", 1000 / MICRO, ORDER)
    await books.granted("dead", one, 500)
    async with books.engine.begin() as connection:
        records = [
            make_record(f"r-{n}", key_id=key_id, replica="dead", cost_usd=micro / MICRO)
            for n, (key_id, micro) in enumerate([(member.key_id, 30), (other.key_id, 7), (team, 7)])
        ]
        await insert_records(connection, records)
    books.monotonic += 31
    assert await books.granted("b", one, 970) == Grant(970, 0)


@pytest.mark.parametrize("period", ["day", "month", "total"])
async def test_a_new_budget_counts_once_what_was_spent_in_its_period_before_it(books: Books, period: Any) -> None:
    key = {"day": "2030-03-17", "month": "2030-03", "total": "total"}[period]
    begin, now = period_bounds(key)[0], 1_900_000_000.0
    await create_team(books.engine, "lab", ORDER)
    member = await create_key(books.engine, "one", "lab", KeyTerms(), ORDER)
    spent = [
        (member.key_id, 30.5, begin),
        (member.key_id, 10, now - 1),
        (member.key_id, 7, begin - 1),
        ("bob", 7, now - 1),
    ]
    records = [
        make_record(f"r-{n}", key_id=key_id, replica="dead", cost_usd=micro / MICRO, created_at=at)
        for n, (key_id, micro, at) in enumerate(spent)
        if at >= 0
    ]
    async with books.engine.begin() as connection:
        await insert_records(connection, records)
    order = Order(actor="test", now=now)
    one = await set_budget(books.engine, "team", "lab", period, 1000 / MICRO, order)
    [state] = await states_of(books.engine, (await BUDGETS.page(books.engine, {})).rows, now)
    assert (state.spent_usd, state.leased_usd) == (41 / MICRO, 0.0)
    assert await books.granted("dead", one, 900, key=key) == Grant(900, 59)
    late = make_record("late", key_id=member.key_id, replica="dead", cost_usd=20 / MICRO, created_at=now)
    async with books.engine.begin() as connection:
        await insert_records(connection, [late])
    books.monotonic += 31
    # The dead replica's requests from before the budget are counted already.
    assert await books.granted("b", one, 900, key=key) == Grant(900, 1000 - 41 - 20 - 900)
    assert await set_budget(books.engine, "team", "lab", period, 2000 / MICRO, order) == one
    assert (await books.rows("spent_microusd"))[0] == (41,)


async def test_a_replica_that_recorded_nothing_spent_what_it_reported(books: Books) -> None:
    one = await budget(books)
    await books.granted("dead", one, 500)
    books.monotonic += 31
    assert await books.granted("b", one, 1000) == Grant(1000, 0)


async def test_a_budget_is_one_of_its_subject_and_period_and_each_change_is_written_down(books: Books) -> None:
    engine = books.engine
    one = await create_key(engine, "one", None, KeyTerms(), ORDER)
    two = await create_key(engine, "two", None, KeyTerms(), ORDER)
    team = await create_team(engine, "lab", ORDER)
    day = await set_budget(engine, "key", "one", "day", 2.5, ORDER)
    others = [
        await set_budget(engine, "key", one.key_id, "month", 3.0, ORDER),
        await set_budget(engine, "key", two.key_id, "day", 4.0, ORDER),
        await set_budget(engine, "team", team, "day", 5.0, ORDER),
        await set_budget(engine, "team", "lab", "total", 6.0, ORDER),
    ]
    assert len({day, *others}) == 5
    assert await set_budget(engine, "key", one.key_id, "day", 0.0000014, ORDER) == day
    columns = (budgets.c.subject_kind, budgets.c.subject, budgets.c.period, budgets.c.amount_microusd)
    events = (audit_events.c.subject, audit_events.c.details)
    async with engine.connect() as connection:
        rows = [tuple(row) for row in await connection.execute(select(*columns, budgets.c.created_at))]
        query = select(*events).where(audit_events.c.action == "budget.set").order_by(audit_events.c.audit_event_id)
        written = [tuple(row) for row in await connection.execute(query)]
    assert sorted(rows) == sorted([
        ("key", one.key_id, "day", 1, 7.0), ("key", one.key_id, "month", 3_000_000, 7.0),
        ("key", two.key_id, "day", 4_000_000, 7.0), ("team", team, "day", 5_000_000, 7.0),
        ("team", team, "total", 6_000_000, 7.0),
    ])  # fmt: skip
    assert written[0] == (day, {"subject": one.key_id, "period": "day", "amount_usd": [None, 2.5]})
    assert written[-1] == (day, {"subject": one.key_id, "period": "day", "amount_usd": [2.5, 0.0000014]})


async def test_a_removed_budget_takes_its_leases_with_it_and_leaves_the_others(books: Books) -> None:
    one, other = await budget(books), await budget(books, subject="bob")
    for of in (one, other):
        await books.granted("a", of, 100)
    await remove_budget(books.engine, one, ORDER)
    assert await books.rows("budget_id") == [(other,)]
    page = await BUDGETS.page(books.engine, {})
    assert [row["budget_id"] for row in page.rows] == [other]
    async with books.engine.connect() as connection:
        query = select(audit_events.c.details, audit_events.c.subject, audit_events.c.reason)
        event = (await connection.execute(query.where(audit_events.c.action == "budget.removed"))).one()
    assert tuple(event) == ({"subject": "ada", "period": "total"}, one, "why")
    with pytest.raises(UnknownSubjectError, match="there is no budget"):
        await remove_budget(books.engine, one, ORDER)
    with pytest.raises(UnknownSubjectError, match="there is no key 'nobody'"):
        await set_budget(books.engine, "key", "nobody", "day", 1.0, ORDER)


async def test_a_change_of_a_budget_is_one_that_replicas_look_for(books: Books) -> None:
    async def revisions() -> tuple[int, int]:
        async with books.engine.connect() as connection:
            row = (await connection.execute(select(tenancy_state))).one()
        return row.revision, row.budgets_revision

    before, _ = await revisions()
    one = await budget(books)
    assert await revisions() == (before + 1, before + 1)
    await create_team(books.engine, "lab", ORDER)
    assert await revisions() == (before + 2, before + 1)
    await remove_budget(books.engine, one, ORDER)
    assert await revisions() == (before + 3, before + 3)


async def test_leases_go_with_their_budget_also_on_a_connection_that_enforces_no_keys(
    books: Books, sqlite_url: str
) -> None:
    one = await budget(books)
    await books.granted("a", one, 100)
    plain = create_async_engine(sqlite_url.replace("sqlite:", "sqlite+aiosqlite:"))
    await remove_budget(plain, one, ORDER)
    await plain.dispose()
    assert await books.rows("budget_id") == []


async def test_the_state_of_a_budget_is_that_of_its_current_period_in_dollars(books: Books) -> None:
    engine, now = books.engine, 1_900_000_000.0
    day, unused = await budget(books, 1_500_000, period="day"), await budget(books, 2_000_000, subject="bob")
    for replica, spent in (("a", 250_000), ("b", 100_000)):
        await books.granted(replica, day, 300_000, key="2030-03-17")
        await books.of(replica).tell([Statement(day, "2030-03-17", spent=spent, granted=300_000)])
    await books.granted("a", day, 1, key="2030-03-16")
    async with engine.begin() as connection:
        row = {"budget_id": day, "period_key": "2030-03-17", "replica": "c", "status": "lost", "created_at": 1.0}
        more = {"granted_microusd": 900_000, "spent_microusd": 150_000, "expires_at": 1.0}
        await connection.execute(insert(budget_leases).values(row | more))
    page = await BUDGETS.page(engine, {})
    states = {state.budget_id: state for state in await states_of(engine, page.rows, now)}
    assert (states[day].amount_usd, states[day].spent_usd, states[day].leased_usd) == (1.5, 0.5, 0.25)
    assert (states[day].subject_kind, states[day].subject, states[day].period) == ("key", "ada", "day")
    assert states[day].period_key == "2030-03-17"
    assert (states[unused].amount_usd, states[unused].spent_usd, states[unused].leased_usd) == (2.0, 0.0, 0.0)
