"""The benchmarks of lists and of the monitor fill what they say, ask for everything, and touch no other data."""

from itertools import chain, combinations
from pathlib import Path

import pytest
from sqlalchemy import func, select

from benchmarks.gateway.lists import DECISIONS, LISTS, SUMMARIES, DatabaseInUseError, bench_lists, fill, queries
from benchmarks.gateway.monitor import bench_monitor
from gateway.base.settings import Settings
from gateway.operations.dashboard.site import PAGES
from migrations.tables.quality import verifications
from quality.store.database import migrate, open_database
from quality.store.listings import ARTEFACTS, EXPERIMENTS, REQUESTS, RETRAININGS, ROLLOUTS, TRANSITIONS, VERIFICATIONS
from tiers.catalog.load import load_catalog

pytestmark = pytest.mark.processes


async def test_every_filter_has_rows_to_find_and_a_used_database_is_left_alone(database_url: str) -> None:
    await migrate(database_url)
    engine = open_database(database_url)
    try:
        await fill(engine, 2000, lambda stage, share: None)
        for table, columns, _ in [*LISTS.values(), *DECISIONS.values()]:
            async with engine.connect() as connection:
                assert await connection.scalar(select(func.count()).select_from(table)) == 2000
                for name, column in columns.items():
                    found = set((await connection.execute(select(table.c[name]).distinct())).scalars())
                    assert set(column.values) <= found, name
        with pytest.raises(DatabaseInUseError, match="requests"):
            await fill(engine, 1, lambda stage, share: None)
        async with engine.connect() as connection:
            assert await connection.scalar(select(func.count()).select_from(verifications)) == 2000
    finally:
        await engine.dispose()


async def test_one_list_alone_is_filled(sqlite_url: str) -> None:
    await migrate(sqlite_url)
    engine = open_database(sqlite_url)
    try:
        await fill(engine, 10, lambda stage, share: None, only="rollouts")
        async with engine.connect() as connection:
            found = {name: len((await connection.execute(select(table))).all()) for name, (table, *_) in LISTS.items()}
        assert {name: rows for name, rows in found.items() if rows} == {"rollouts": 10}
    finally:
        await engine.dispose()


def test_every_combination_of_filters_of_the_api_is_asked_for() -> None:
    listings = {"verifications": VERIFICATIONS, "transitions": TRANSITIONS, "retrainings": RETRAININGS}
    listings |= {"artefacts": ARTEFACTS, "rollouts": ROLLOUTS, "experiments": EXPERIMENTS, "requests": REQUESTS}
    assert set(listings) == set(LISTS)
    for name, listing in listings.items():
        asked = {frozenset(query) - {"since", "until"} for query in queries(LISTS[name][1])}
        sizes = range(len(listing.filters) + 1)
        assert asked == {
            frozenset(some) for some in chain.from_iterable(combinations(listing.filters, n) for n in sizes)
        }


@pytest.mark.slow
async def test_every_list_and_every_page_answers_over_what_was_filled_in(tmp_path: Path) -> None:
    settings = Settings(data_dir=str(tmp_path), monitor=True, verification_budget=0.0)
    found = await bench_lists(settings, rows=300, repeats=1, progress=lambda stage, share: None)
    assert {one.endpoint for one in found} == {
        *LISTS,
        *SUMMARIES,
        *(f"/admin{page.path}".rstrip("/") for page in PAGES),
    }


async def test_what_a_monitor_costs_is_measured_on_requests_of_which_some_are_drawn(tmp_path: Path) -> None:
    cost = await bench_monitor(load_catalog("laptop"), tmp_path, 1000)

    assert cost.requests == 1000
    assert 0 < cost.sampled < 200
    assert 0 < cost.offer_p50_us <= cost.offer_p99_us
    assert min(cost.background_us, cost.redaction_us, cost.feedback_us) > 0
