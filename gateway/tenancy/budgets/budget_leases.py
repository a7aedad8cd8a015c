"""What this process may still spend of budgets, in memory: slices leased from the lease book, and spending reported to
it."""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from decimal import Decimal

import msgspec
from sqlalchemy.exc import SQLAlchemyError

from gateway.base.inference_request import BudgetRef
from gateway.base.stores.database import DatabaseTime
from gateway.tenancy.budgets.lease_book import MICRO, LeaseBook, Statement, period_key

log = logging.getLogger(__name__)

# How long a refusal is reused before the book is asked again: another replica may have returned something.
REFUSAL_SECONDS = 1.0
# After a failure no request waits for the book again before this has passed.
REST_SECONDS = 1.0
_PERIODS = ("day", "month", "total")


class BudgetExceededError(Exception):
    """A budget charged for the request has less left than the request may cost. `held_usd`: what requests in flight
    here hold of it."""

    def __init__(self, budget: BudgetRef, needed: int, left: Decimal | int, held: int = 0) -> None:
        self.held_usd = held / MICRO
        self.budget, self.left_usd = budget, max(math.floor(left), 0) / MICRO
        super().__init__(
            f"it may cost up to ${needed / MICRO:.6f}, and ${self.left_usd:.6f} are left of the budget of {budget.said}"
        )
        self.needed_usd = needed / MICRO


class BudgetsUnavailableError(Exception):
    """The leased slice is used up or expired, and the database, which would grant another, is down. `left_usd`: what
    may still be held of the slice; `held_usd`: what requests in flight hold of it."""

    def __init__(self, left: Decimal | int = 0, held: int = 0) -> None:
        self.held_usd = held / MICRO
        self.left_usd = max(math.floor(left), 0) / MICRO
        super().__init__(f"${self.left_usd:.6f} are left of the slice, and the database is down")


class Slice(msgspec.Struct):
    """A lease in micro-dollars: granted by the book, spent, and held for running requests.

    What is spent has fractions, so that many small answers are not free; the book keeps whole micro-dollars and gets
    the sum rounded up.
    """

    budget_id: str
    period_key: str
    granted: int = 0
    spent: Decimal = Decimal(0)
    held: int = 0
    valid_until: float = 0.0
    """Monotonic seconds, after which it may have been granted to another process."""
    reported: Decimal = Decimal(0)
    """Spending last reported to the book."""
    beyond: int = 0
    """What the book had left besides this slice when it refused to grant more."""
    refused: BudgetRef | None = None
    """The budget of which it refused to grant more."""
    refused_at: float = -REFUSAL_SECONDS
    """When it refused, in monotonic seconds."""
    talking: asyncio.Lock = msgspec.field(default_factory=asyncio.Lock)
    """A lock that is held while the book is asked about this slice; other slices do not wait for it."""
    waiting: list[asyncio.Future[None]] = []
    """Requests that wait for the next one to release what it held."""

    @property
    def free(self) -> Decimal:
        """How much may still be held."""
        return self.granted - self.spent - self.held

    @property
    def whole_spent(self) -> int:
        """What is reported to the book."""
        return math.ceil(self.spent)

    def wake(self) -> None:
        """Something was released."""
        waiting, self.waiting = self.waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    def needed(self, more: int) -> int:
        """Return what must be granted beyond `whole_spent` to hold `more` besides what is held."""
        return math.ceil(self.spent + self.held + more) - self.whole_spent


class Hold(msgspec.Struct):
    """The amounts held of each slice for one request; `settle` it exactly once."""

    slices: list[Slice]
    amount: int
    monotonic: Callable[[], float] = time.monotonic
    settled: bool = False

    @property
    def free(self) -> int:
        """Micro-dollars by which it can be extended without waiting."""
        now = self.monotonic()
        return min((max(0, math.floor(part.free)) if now < part.valid_until else 0 for part in self.slices), default=0)

    def extend(self, more: int) -> bool:
        """Hold `more` micro-dollars without waiting; False, holding none, if a slice has too little or expired."""
        now = self.monotonic()
        if any(part.free < more or now >= part.valid_until for part in self.slices):
            return False
        for part in self.slices:
            part.held += more
        self.amount += more
        return True

    def drop(self) -> None:
        """Release what is held of some budgets because another refused. No request is woken: two that wait would wake
        each other without end."""
        self.settled = True
        for part in self.slices:
            part.held -= self.amount

    def settle(self, spent: Decimal | int) -> None:
        """Release what is held, and charge the request's cost, micro-dollars: at most what was held. Idempotent."""
        if self.settled:
            return
        self.settled = True
        charged = min(spent, self.amount)
        for part in self.slices:
            part.held -= self.amount
            part.spent += charged
            part.wake()


class BudgetLeases:
    """Holds are taken in memory; a request waits for the book only if a slice is used up or has expired.

    `open_without_database`: whether requests go on beyond their slices while the book is unreachable; their cost is
    charged later. `monotonic`: seconds.
    """

    def __init__(
        self,
        book: LeaseBook,
        clock: DatabaseTime,
        *,
        open_without_database: bool = False,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._book, self._clock, self._monotonic = book, clock, monotonic
        self._open = open_without_database
        self._slices: dict[tuple[str, str], Slice] = {}
        self._rests_until = -REST_SECONDS

    def now(self) -> float:
        """Epoch seconds by the database."""
        return self._clock.now()

    async def hold(self, budgets: Sequence[BudgetRef], amount: int) -> Hold:
        """Hold `amount` micro-dollars of every budget, or nothing if it raises `BudgetExceededError` or
        `BudgetsUnavailableError`."""
        hold = Hold([], amount, self._monotonic)
        try:
            for budget in budgets:
                part = self._take(budget, amount) or await self._leased(budget, amount)
                if part is not None:
                    hold.slices.append(part)
        except BaseException:
            hold.drop()
            raise
        return hold

    def next_release(self, budgets: Sequence[BudgetRef]) -> asyncio.Future[None]:
        """Return what is done once a request here releases what it holds of one of `budgets`."""
        now = self._clock.now()
        release: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        for budget in budgets:
            if (part := self._slices.get((budget.budget_id, period_key(budget.period, now)))) is not None:
                part.waiting = [*(waiter for waiter in part.waiting if not waiter.done()), release]
        return release

    async def tell(self) -> None:
        """Renew what is needed, return the rest, and report spending. Raises what the database raises.

        A slice about which the book is being asked comes next time.
        """
        async with AsyncExitStack() as stack:
            began = self._monotonic()
            free = [part for part in self._slices.values() if not part.talking.locked()]
            parts = [part for part in free if self._has_news(part)]
            for part in parts:
                await stack.enter_async_context(part.talking)
                returned = max(0, part.granted - self._kept(part))
                part.granted, part.beyond = part.granted - returned, part.beyond + returned
            statements = [
                Statement(part.budget_id, part.period_key, part.whole_spent, part.granted, final=self._is_over(part))
                for part in parts
            ]
            # What answers add meanwhile is in the next report.
            spent_then = [part.spent for part in parts]
            alive = await self._book.tell(statements) if statements else []
            for part, spent, is_alive in zip(parts, spent_then, alive, strict=True):
                await self._told(part, spent, is_alive, began)

    async def follow(self, seconds: float) -> None:
        """Report to the book every `seconds` until cancelled."""
        while True:
            await asyncio.sleep(seconds)
            try:
                await self.tell()
            except (SQLAlchemyError, OSError) as error:
                log.warning("budgets: the database is down (%s); leased slices are spent", type(error).__name__)

    async def close(self) -> None:
        """Return everything unspent. What cannot be returned expires."""
        statements = [
            Statement(part.budget_id, part.period_key, part.whole_spent, part.whole_spent, final=True)
            for part in self._slices.values()
        ]
        if statements:
            try:
                await self._book.tell(statements)
            except (SQLAlchemyError, OSError) as error:
                log.warning("budgets: slices could not be returned, and expire: %s", type(error).__name__)

    def _take(self, budget: BudgetRef, amount: int) -> Slice | None:
        part = self._slices.get((budget.budget_id, period_key(budget.period, self._clock.now())))
        if part is None or part.free < amount or self._monotonic() >= part.valid_until:
            return None
        part.held += amount
        return part

    async def _leased(self, budget: BudgetRef, amount: int) -> Slice | None:
        """As `_take`, with a slice fresh from the book; None if the budget was removed."""
        while True:
            part = self._slice(budget, period_key(budget.period, self._clock.now()))
            async with part.talking:
                # Of a period that has ended, the slice may be gone by now.
                if self._slices.get((part.budget_id, part.period_key)) is part:
                    return self._take(budget, amount) or await self._asked(part, budget, amount)

    async def _asked(self, part: Slice, budget: BudgetRef, amount: int) -> Slice | None:
        """As `_leased`, while no one else talks about this slice."""
        began = self._monotonic()
        is_known = part.refused == budget and began < part.refused_at + REFUSAL_SECONDS
        if is_known and amount > part.free + part.beyond:
            raise BudgetExceededError(budget, amount, part.free + part.beyond, part.held)
        try:
            async with self._book.turns:
                # Those that wait for a turn go on while others are answered, and fail with the first that is not.
                began = self._monotonic()
                if began < self._rests_until:
                    raise TimeoutError("the database did not answer a moment ago")
                spent = part.spent
                grant = await self._book.grant(budget.budget_id, part.period_key, part.needed(amount), part.whole_spent)
        except (SQLAlchemyError, OSError) as error:
            # A request that did not ask prolongs no rest: else under steady load it would never end.
            if began >= self._rests_until:
                self._rests_until = self._monotonic() + REST_SECONDS
            if not self._open:
                is_valid = began < part.valid_until
                raise BudgetsUnavailableError(*((part.free, part.held) if is_valid else ())) from error
            part.held += amount
            return part
        if grant is None:
            return None
        part.granted, part.reported = grant.granted, spent
        part.valid_until = began + self._book.lease_seconds
        part.beyond = grant.left
        if part.free < amount:
            part.refused, part.refused_at = budget, began
            raise BudgetExceededError(budget, amount, part.free + part.beyond, part.held)
        part.held += amount
        return part

    def _slice(self, budget: BudgetRef, key: str) -> Slice:
        return self._slices.setdefault((budget.budget_id, key), Slice(budget.budget_id, key))

    async def _told(self, part: Slice, spent: Decimal, is_alive: bool, began: float) -> None:
        """Apply the book's answer to the report that `spent` of a slice is spent."""
        if is_alive:
            part.valid_until = began + self._book.lease_seconds
        elif self._is_over(part):
            del self._slices[part.budget_id, part.period_key]
            return
        else:
            part.valid_until = 0.0
            if part.spent > part.reported and not part.granted:
                # Spent while the database was down: the book has no lease to charge it to.
                spent = part.spent
                await self._book.grant(part.budget_id, part.period_key, part.needed(0), part.whole_spent)
        part.reported = spent

    def _has_news(self, part: Slice) -> bool:
        return part.spent != part.reported or part.granted > part.spent or part.held > 0 or self._is_over(part)

    def _kept(self, part: Slice) -> int:
        """What requests hold, plus twice the spending since the last report."""
        return math.ceil(part.spent + part.held + 2 * (part.spent - part.reported))

    def _is_over(self, part: Slice) -> bool:
        """Whether its period has ended, and its last request."""
        now = self._clock.now()
        return not part.held and part.period_key not in {period_key(period, now) for period in _PERIODS}
