"""The report with a ledger: traffic and cost by tier and the stage budget come from the ledger's records."""

import asyncio
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway.cli import main
from quality.records.record import Timings
from quality.store.database import migrate, open_database
from quality.store.queries import insert_records
from tests.quality.store.records import make_embedding, make_record


@pytest.fixture
def ledger(tmp_path: Path) -> str:
    """Three answers of tier 1 and one of tier 4 from today, and one from long ago."""
    url = f"sqlite+aiosqlite:///{tmp_path}/ledger.db"
    timings = Timings(
        route_ms=0.5, ttft_ms=65.0, e2e_ms=1500.0, overhead_ms=1.75, queue_ms=4.0, prefill_ms=60.0, decode_ms=1000.0
    )
    now = time.time()
    made = [
        make_record(
            f"r-{number}", created_at=at, tier=tier, prompt_tokens=899, completion_tokens=101, timings=timings,
            cost_usd=0.001, baseline_cost_usd=0.004,
        )
        for number, (tier, at) in enumerate([(1, now - 60)] * 3 + [(4, now - 60), (2, now - 90 * 86_400)])
    ]  # fmt: skip

    async def fill() -> None:
        await migrate(url)
        engine = open_database(url)
        async with engine.begin() as connection:
            await insert_records(connection, made)
        await engine.dispose()

    asyncio.run(fill())
    return url


def report(tmp_path: Path, *words: str) -> str:
    empty = tmp_path / "measurements"
    empty.mkdir(exist_ok=True)
    shown = CliRunner().invoke(
        main, ["report", "--measurements", str(empty), "--data-dir", str(tmp_path), *words], catch_exceptions=False
    )
    assert shown.exit_code == 0, shown.output
    return shown.output


def test_cost_tiers_and_stages_are_those_of_the_ledger(ledger: str, tmp_path: Path) -> None:
    text = report(tmp_path, "--database-url", ledger)

    assert "and from the ledger of 30 days" in text
    assert "| 1 | smollm2-int4 | 3 | 75.0% | 1,500 | $0.0010 | $0.0030 | 75.0% |" in text
    assert "| all |  | 4 | 100.0% | 1,500 | $0.0010 | $0.0040 | 75.0% |" in text
    assert "Tier 1, 3 answers:" in text
    for row in (
        "| route | 2 | 0.50 |",
        "| schedule | 3 | 4.00 |",
        "| prefill | 25 | 60.00 |",
        "| decode | 65 | 990.00 |",
        "| stream | 5 | 1.25 |",
    ):
        assert text.count(row) == 2, row
    assert "| cost per 1k tokens | $0.12 | $0.03 | $0.0010 (as served) |" in text
    assert "| P95 latency (ms) | 210 | 68 | 1,500 (whole answers, as served) |" in text


def test_embeddings_are_a_row_of_their_own_and_no_answers(ledger: str, tmp_path: Path) -> None:
    async def embed() -> None:
        engine = open_database(ledger)
        async with engine.begin() as connection:
            vectors = make_embedding(created_at=time.time() - 60, prompt_tokens=1000, cost_usd=0.01)
            await insert_records(connection, [vectors])
        await engine.dispose()

    asyncio.run(embed())
    text = report(tmp_path, "--database-url", ledger)
    assert "| embeddings | – | 1 | 20.0% | – | $0.0100 | $0.0100 | 0.0% |" in text
    assert "| 1 | smollm2-int4 | 3 | 60.0% | 1,500 |" in text


def test_a_longer_stretch_has_older_requests(ledger: str, tmp_path: Path) -> None:
    assert "Tier 2, 1 answers:" in report(tmp_path, "--database-url", ledger, "--days", "100")


def test_the_settings_own_database_is_read_where_asked_for_and_may_be_empty(tmp_path: Path) -> None:
    assert "As served" not in report(tmp_path)
    assert "| all |  | 0 | 0.0% | – | – | $0.0000 | – |" in report(tmp_path, "--live")
