"""The lease book under any sequence of holds, settlements, renewals, stalls of the disk, deaths and clock steps: no
budget is overspent."""

import asyncio
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.base.inference_request import BudgetRef
from gateway.base.stores.database import DatabaseTime
from gateway.tenancy.budgets.budget_commands import set_budget
from gateway.tenancy.budgets.budget_leases import (
    REST_SECONDS,
    BudgetExceededError,
    BudgetLeases,
    BudgetsUnavailableError,
    Hold,
)
from gateway.tenancy.budgets.lease_book import LEASE_SECONDS, MICRO, LeaseBook, period_bounds
from gateway.tenancy.changes import Order
from migrations.tables.tenancy import budget_leases
from quality.store.database import migrate, open_database
from quality.store.queries import insert_records
from tests.examples import examples
from tests.quality.store.records import make_record

AMOUNT = 100
REPLICAS = st.integers(0, 1)


@cache
def empty_database() -> bytes:
    """A SQLite file with the schema, made once."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "store.db"
        asyncio.run(migrate(f"sqlite:///{file}"))
        return file.read_bytes()


class StallingBook(LeaseBook):
    """A book that may wait for its disk for too long: of the next transaction its caller learns nothing. `stall`:
    whether that one is "lost" or "made" all the same."""

    stall: str | None = None

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[AsyncConnection]:
        stall, self.stall = self.stall, None
        if stall == "lost":
            raise TimeoutError
        async with super()._transaction() as connection:
            yield connection
        if stall == "made":
            raise TimeoutError


class Replica:
    """A replica's budget slices, its holds, and its spending by budget and period, as its ledger has it."""

    def __init__(self, name: str, book: StallingBook, leases: BudgetLeases) -> None:
        self.name, self.book, self.budget_leases = name, book, leases
        self.holds: list[Hold] = []
        self.spent: Counter[tuple[str, str]] = Counter()


class LeaseBookMachine(RuleBasedStateMachine):
    """Two replicas on one machine, two budgets of the same key."""

    @initialize()
    def begin(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.folder = tempfile.TemporaryDirectory()
        file = Path(self.folder.name) / "store.db"
        file.write_bytes(empty_database())
        self.wall, self.monotonic, self.births, self.rows = 1_900_000_000.0, 1000.0, 0, 0
        self.engine = open_database(f"sqlite:///{file}")
        self.refs = [self.run(self.budget(period)) for period in ("total", "day")]
        self.replicas = [self.born() for _ in range(2)]
        self.gone: Counter[tuple[str, str]] = Counter()

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    async def budget(self, period: Any) -> BudgetRef:
        order = Order(actor="test", now=1.0)
        budget_id = await set_budget(self.engine, "key", "ada", period, AMOUNT / MICRO, order, static=True)
        return BudgetRef(budget_id=budget_id, period=period, amount_usd=AMOUNT / MICRO)

    def born(self) -> Replica:
        self.births += 1
        name, time = f"replica-{self.births}", DatabaseTime(lambda: self.wall, lambda: self.monotonic)
        book = StallingBook(self.engine, name, time)
        return Replica(name, book, BudgetLeases(book, time, monotonic=lambda: self.monotonic))

    @rule(number=REPLICAS, stall=st.sampled_from(["lost", "made"]))
    def stall(self, number: int, stall: str) -> None:
        self.replicas[number].book.stall = stall

    @rule(number=REPLICAS, amount=st.sampled_from([60, 100, 20, 0]), both=st.booleans())
    def hold(self, number: int, amount: int, both: bool) -> None:
        replica = self.replicas[number]
        with suppress(BudgetExceededError):
            try:
                replica.holds.append(self.run(replica.budget_leases.hold(self.refs if both else self.refs[:1], amount)))
            except BudgetsUnavailableError:
                self.later(REST_SECONDS)

    @rule(number=REPLICAS, share=st.sampled_from([1.0, 0.5, 0.0]))
    def settle(self, number: int, share: float) -> None:
        replica = self.replicas[number]
        if replica.holds:
            hold = replica.holds.pop(0)
            spent = int(hold.amount * share)
            hold.settle(spent)
            for part in hold.slices:
                replica.spent[part.budget_id, part.period_key] += spent

    @rule(number=REPLICAS, more=st.integers(0, 30))
    def extend(self, number: int, more: int) -> None:
        for hold in self.replicas[number].holds[:1]:
            hold.extend(more)

    @rule(number=REPLICAS)
    def tell(self, number: int) -> None:
        with suppress(TimeoutError):
            self.run(self.replicas[number].budget_leases.tell())

    @rule(number=REPLICAS)
    def drain(self, number: int) -> None:
        replica = self.replicas[number]
        while replica.holds:
            self.settle(number, 1.0)
        if replica.book.stall is not None:
            # What a slice has spent is not reported, but its requests are in the ledger.
            self.die(number)
            return
        self.run(replica.budget_leases.close())
        self.gone += replica.spent
        self.replicas[number] = self.born()

    @rule(number=REPLICAS)
    def die(self, number: int) -> None:
        """Answered requests are in the ledger, as one row per budget and period here; others never are."""
        replica = self.replicas[number]
        # A row counts for all budgets of its key: the total's rows include the day's requests.
        total = replica.spent[self.refs[0].budget_id, "total"]
        days = {key: spent for (one, key), spent in replica.spent.items() if one == self.refs[1].budget_id}
        rows = [(period_bounds(day)[0], spent) for day, spent in days.items()]
        rows.append((1.0, total - sum(days.values())))
        self.run(self.store(replica.name, rows))
        self.gone += replica.spent
        self.replicas[number] = self.born()

    async def store(self, replica: str, rows: list[tuple[float, int]]) -> None:
        records = []
        for created_at, spent in rows:
            self.rows += 1
            changes = {"key_id": "ada", "replica": replica, "cost_usd": spent / MICRO, "created_at": created_at}
            records.append(make_record(f"r-{self.rows}", **changes))
        async with self.engine.begin() as connection:
            await insert_records(connection, records)

    @rule(parts=st.sampled_from([1, 4]))
    def wait(self, parts: int) -> None:
        """Longer than a lease lasts, in four parts; live replicas report to the book meanwhile, as the poll does."""
        for _ in range(parts):
            self.later(LEASE_SECONDS / 3)

    def later(self, seconds: float) -> None:
        """A report that failed is made again while the lease lasts."""
        self.monotonic += seconds
        self.wall += seconds
        for number in range(len(self.replicas)):
            self.tell(number)
            self.tell(number)

    @rule(seconds=st.sampled_from([-86_400.0, -3600.0, 3600.0, 86_400.0]))
    def step(self, seconds: float) -> None:
        self.wall += seconds

    @rule(number=REPLICAS)
    def look(self, number: int) -> None:
        async def look() -> None:
            async with self.engine.connect() as connection:
                await self.replicas[number].budget_leases._clock.look(connection)

        self.run(look())

    @invariant()
    def nothing_is_overspent(self) -> None:
        if hasattr(self, "replicas"):
            spent = sum((replica.spent for replica in self.replicas), self.gone)
            assert all(one <= AMOUNT for one in spent.values()), spent

    @invariant()
    def leases_never_exceed_the_budget(self) -> None:
        if hasattr(self, "replicas"):
            counted: Counter[tuple[str, str]] = Counter()
            for row in self.run(self.leases()):
                granted = row["granted_microusd"] if row["status"] == "active" else 0
                counted[row["budget_id"], row["period_key"]] += max(granted, row["spent_microusd"])
            assert all(one <= AMOUNT for one in counted.values()), counted

    @invariant()
    def what_a_replica_may_spend_is_in_the_book(self) -> None:
        if hasattr(self, "replicas"):
            found = {(row["replica"], row["budget_id"], row["period_key"]): row for row in self.run(self.leases())}
            for replica in self.replicas:
                leases = replica.budget_leases
                for part in leases._slices.values():
                    if self.monotonic < part.valid_until and not leases._is_over(part):
                        row = found[replica.name, part.budget_id, part.period_key]
                        assert row["status"] == "active"
                        assert part.spent + part.held <= part.granted <= row["granted_microusd"]

    async def leases(self) -> list[Any]:
        async with self.engine.connect() as connection:
            return list((await connection.execute(select(budget_leases))).mappings())

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            self.run(self.engine.dispose())
            self.loop.close()
            self.folder.cleanup()


LeaseBookMachine.TestCase.settings = settings(
    max_examples=examples(15),
    stateful_step_count=30,
    deadline=None,
    database=None,
    # A sequence takes as long as its transactions; shrinking one takes minutes.
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.generate],
)
test_leases_never_exceed_the_budget = LeaseBookMachine.TestCase
