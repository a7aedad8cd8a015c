"""What keys are used for is read in one query, by indexes that begin with the key."""

from functools import partial

from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.tenancy.changes import Order
from gateway.tenancy.keys.key_commands import KeyTerms, create_key
from gateway.tenancy.keys.key_use import KeyUse, read_key_use
from quality.store.queries import RefusalCount, RefusalKind, add_refused
from tests.gateway.operations.dashboard.rows import insert_requests
from tests.quality.estimates.test_estimates import plans_of

NOW, DAY = 1_800_000_000.0, 86_400.0


async def test_spending_last_use_and_refusals_are_of_their_times(any_engine: AsyncEngine) -> None:
    busy, idle = [await _key(any_engine, name) for name in ("busy", "idle")]
    await insert_requests(
        any_engine,
        {"request_id": "a", "created_at": NOW - 29 * DAY, "key_id": busy, "cost_usd": 2.0},
        {"request_id": "b", "created_at": NOW - 5, "key_id": busy, "cost_usd": 0.5},
        {"request_id": "c", "created_at": NOW - 31 * DAY, "key_id": busy, "cost_usd": 64.0},
        {"request_id": "d", "created_at": NOW - 1, "key_id": "another", "cost_usd": 128.0},
    )
    refused = RefusalKind(busy, 429, "budget_exceeded", "", "")
    counts = [(NOW - 0.9 * DAY, refused, RefusalCount(count=7)), (NOW - 1.1 * DAY, refused, RefusalCount(count=90))]
    over_budget = RefusalKind(idle, 429, "insufficient_quota", "", "")
    counts += [(NOW - ago * DAY, over_budget, RefusalCount(count=1, last_at=NOW - ago * DAY)) for ago in (2, 3)]
    await add_refused(any_engine, counts)

    use = await read_key_use(any_engine, (busy, idle), NOW)

    assert use == {
        busy: KeyUse(spent_usd=2.5, last_at=NOW - 5, refused=7, over_budget_at=None),
        idle: KeyUse(spent_usd=0.0, last_at=None, refused=0, over_budget_at=NOW - 2 * DAY),
    }


async def test_it_is_one_query_by_indexes_of_the_key(sqlite_engine: AsyncEngine) -> None:
    plans = await plans_of(sqlite_engine, partial(read_key_use, keys=("a", "b"), now=NOW))

    assert not [line for line in plans if line.startswith("SCAN")]
    searches = [line for line in plans if " requests " in line or " refused_requests " in line]
    assert [line.partition("USING ")[2] for line in searches] == [
        "COVERING INDEX ix_requests_key_id_created_at (key_id=? AND created_at>?)",
        "COVERING INDEX ix_requests_key_id_created_at (key_id=?)",
        "INDEX ix_refused_requests_key_id_created_at (key_id=? AND created_at>?)",
        "INDEX ix_refused_requests_key_id_code_created_at (key_id=? AND code=? AND created_at>?)",
    ]
    assert len([line for line in plans if " api_keys " in line]) == 1


async def _key(engine: AsyncEngine, name: str) -> str:
    return (await create_key(engine, name, None, KeyTerms(), Order(actor="test", now=1.0))).key_id
