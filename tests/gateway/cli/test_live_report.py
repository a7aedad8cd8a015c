"""`aio report`: four questions in their order, and the traffic, cost and stages of the ledger's records."""

import asyncio
import re
import time
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from gateway.cli import main
from quality.records.record import Timings
from quality.store.database import open_database
from quality.store.queries import insert_records
from tests.quality.store.records import make_embedding, make_record
from tests.support.database import migrated


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
        async with migrated(url) as engine, engine.begin() as connection:
            await insert_records(connection, made)

    asyncio.run(fill())
    return url


def report(tmp_path: Path, *words: str) -> str:
    """What `aio report` prints, each table's row with single spaces."""
    shown = CliRunner().invoke(main, ["report", "--data-dir", str(tmp_path), *words], catch_exceptions=False)
    assert shown.exit_code == 0, shown.output
    return re.sub(" +", " ", shown.output)


def test_cost_tiers_and_stages_are_those_of_the_ledger(ledger: str, tmp_path: Path) -> None:
    text = report(tmp_path, "--database-url", ledger)

    assert "4 requests cost $0.0040, and checks $0.00" in text
    assert "All by tier-4 would have cost $0.016: after checks, routing saved $0.012, 75.0%." in text
    assert "\n1 smollm2-int4 3 75.0% 1,500 $0.0010 $0.0030 $0.00 75.0%\n" in text
    assert "\nall 4 100.0% 1,500 $0.0010 $0.0040 $0.00 75.0%\n" in text
    assert "Tier 1, 3 answers\n" in text
    for row in ("route 2 0.50", "schedule 3 4.00", "prefill 25 60.00", "decode 65 990.00", "stream 5 1.25"):
        assert text.count(f"\n{row} ") == 2, row
    assert text.count("\nall 100 1055.75\n") == 2


def test_the_same_figures_are_there_for_programs(ledger: str, tmp_path: Path) -> None:
    told = msgspec.json.decode(report(tmp_path, "--database-url", ledger, "--json"))
    served = told["cost"]
    assert list(told) == ["since", "until", "cost", "quality", "worth", "help"]
    assert served["costs"]["total"]["spent"]["requests"] == 4
    assert {tier: times["answers"] for tier, times in served["timings"].items()} == {"1": 3, "4": 1}
    assert served["all_timings"]["e2e_p95_ms"] == 1500.0


def test_embeddings_are_a_row_of_their_own_and_no_answers(ledger: str, tmp_path: Path) -> None:
    async def embed() -> None:
        engine = open_database(ledger)
        async with engine.begin() as connection:
            vectors = make_embedding(created_at=time.time() - 60, prompt_tokens=1000, cost_usd=0.01)
            await insert_records(connection, [vectors])
        await engine.dispose()

    asyncio.run(embed())
    text = report(tmp_path, "--database-url", ledger)
    assert "\nembeddings – 1 20.0% – $0.010 $0.010 $0.00 0.0%\n" in text
    assert "\n1 smollm2-int4 3 60.0% 1,500 " in text


def test_a_longer_stretch_has_older_requests(ledger: str, tmp_path: Path) -> None:
    assert "Tier 2, 1 answers" not in report(tmp_path, "--database-url", ledger)
    assert "Tier 2, 1 answers" in report(tmp_path, "--database-url", ledger, "--days", "100")


def test_the_settings_own_database_is_read_and_an_empty_one_says_what_is_missing(tmp_path: Path) -> None:
    text = report(tmp_path)

    questions = ["What it costs", "How good it is", "Does it pay?", "What would help"]
    places = [text.index(f"{question}\n") for question in questions]
    assert places == sorted(places)
    assert "Nothing was spent in this period." in text
    assert "\nall 0 0.0% – – $0.00 $0.00 –\n" in text
    assert "No answer has been verified yet" in text
    assert "Whether routing pays here is not known yet" in text
    assert "about 100 more requests that every tier answers" in text
    assert "There are 0 labels: routing uses the general estimates that AIO ships with." in text
    assert "answers\n\nstage" not in text


def test_another_target_is_looked_at_next_to_the_active_one(tmp_path: Path) -> None:
    text = report(tmp_path, "--quality-target", "1")
    assert "The active quality target of 70.0% is expected to cost " in text
    assert "A quality target of 100.0% is expected to cost " in text
    assert "for an even mix of the four classes" in text


@pytest.mark.parametrize(
    ("name", "section"),
    [("live", "What it costs"), ("learning", "What would help"), ("worth", "Does it pay?"), ("shadow", "Does it pay?")],
)
def test_a_former_command_says_which_section_it_became(name: str, section: str) -> None:
    refused = CliRunner().invoke(main, ["report", name])
    assert refused.exit_code == 2
    assert f"aio report {name} is gone: aio report shows it under {section!r}" in refused.output
    assert "unexpected extra argument (other)" in CliRunner().invoke(main, ["report", "other"]).output
