"""What a new installation still needs: each step with its state, from the installation's own data."""

import asyncio

import msgspec
from sqlalchemy import Table, select
from sqlalchemy.exc import SQLAlchemyError

from gateway.operations.running import Operations
from migrations.tables.quality import training_rows
from migrations.tables.requests import requests
from migrations.tables.tenancy import budgets

# A page does not wait longer for a database that hangs.
WAIT_SECONDS = 1.0


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """`done`: None while the database does not answer. `how`: what to do; `link`: where."""

    title: str
    done: bool | None
    how: str
    link: str
    link_text: str


async def first_steps(operations: Operations) -> list[Step]:
    """Return all steps in their order."""
    asked, labelled, limited = await _held(operations, requests, training_rows, budgets)
    return [
        Step(
            title="Send a first request",
            done=asked,
            how="Any OpenAI client works, with the model auto.",
            link="/docs",
            link_text="API documentation",
        ),
        Step(
            title="Make a key",
            done=operations.access.tenancy.directory.asks_for_keys,
            how="Without one everybody who reaches this port is answered.",
            link="/admin/keys",
            link_text="Keys",
        ),
        Step(
            title="Add a second tier",
            done=len(operations.serving.routing.served.tiers) > 1,
            how="Routing chooses between a cheap model and a strong one: add a tier to the catalogue.",
            link="/admin/system",
            link_text="System",
        ),
        Step(
            title="Give it labels",
            done=labelled,
            how="Feedback, verified samples or aio outcomes import say where the cheap tier is good enough.",
            link="/admin/quality",
            link_text="Quality",
        ),
        Step(
            title="Limit spending",
            done=limited,
            how="A budget of a key or a team ends requests that would exceed it.",
            link="/admin/keys",
            link_text="Budgets",
        ),
    ]


async def _held(operations: Operations, *tables: Table) -> list[bool | None]:
    """Whether each table has a row; None while the database is away or takes too long. A table that has once had one is
    not asked again."""
    live, answered = operations.live, True
    unknown = [table for table in tables if table.name not in live.tables_held]
    if unknown:
        # Pages share a look, and wait for it no longer than `WAIT_SECONDS` from its start: a database may hang.
        now = asyncio.get_running_loop().time()
        if live.tables_reading is None or live.tables_reading[0].done():
            live.tables_reading = (asyncio.ensure_future(_read(operations, unknown)), now + WAIT_SECONDS)
        reading, until = live.tables_reading
        await asyncio.wait([reading], timeout=max(until - now, 0.0))
        answered = reading.done() and reading.result()
    return [True if table.name in live.tables_held else (False if answered else None) for table in tables]


async def _read(operations: Operations, tables: list[Table]) -> bool:
    """Note which tables have a row; return whether the database answered."""
    try:
        async with operations.serving.database.connect() as connection:
            for table in tables:
                if (await connection.execute(select(1).select_from(table).limit(1))).first() is not None:
                    operations.live.tables_held.add(table.name)
    except (SQLAlchemyError, OSError):
        return False
    return True
