"""Costs by tier, key and day: every breakdown reconciles with the requests to the nano-dollar."""

import random

import msgspec
import pytest
from records import make_embedding, make_record
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncEngine

from migrations.tables.audit import JUDGE_TEST, audit_events
from migrations.tables.quality import verifications
from migrations.tables.tenancy import api_keys, teams
from quality.estimates.costs import CostReport, Part, cost_report, saved_between
from quality.records.record import Attempt, Record, Recorded
from quality.store.queries import insert_records
from tiers.catalog.load import load_catalog
from tiers.catalog.pricing import cost_usd
from tiers.tier import Usage

DAY = 86_400.0
CATALOG = load_catalog("laptop")


def price(tier: int, usage: Usage) -> float:
    return cost_usd(CATALOG.tier(tier), usage)


async def stored(engine: AsyncEngine, *records: Recorded) -> None:
    async with engine.begin() as connection:
        await insert_records(connection, records)


async def verified(engine: AsyncEngine, at: float, cost: float, request: str = "", key: str | None = None) -> None:
    row = {
        "request_id": request or f"v-{at}", "key_id": key, "tier": 1, "model": "m",
        "sampled_probability": 0.05, "sampled_reason": "sample", "status": "done", "cost_usd": cost,
        "reserved_usd": 0.0, "attempts": 1, "created_at": at,
    }  # fmt: skip
    async with engine.begin() as connection:
        await connection.execute(insert(verifications), row)


def traffic(count: int, keys: int) -> list[Record]:
    rng = random.Random(7)
    made = []
    for number in range(count):
        tier, usage = rng.randint(1, 4), Usage(prompt_tokens=rng.randint(1, 900), completion_tokens=rng.randint(1, 400))
        made.append(
            make_record(
                f"r-{number}",
                created_at=10 * DAY + rng.random() * 3 * DAY,
                tier=tier,
                key_id=rng.choice([None, *(f"key-{k}" for k in range(keys))]),
                prompt_tokens=usage.prompt_tokens,
                completion_tokens=usage.completion_tokens,
                cost_usd=price(tier, usage),
                baseline_cost_usd=price(4, usage),
            )
        )
    return made


def nano(dollars: float) -> int:
    return round(dollars * 1e9)


async def test_every_cut_sums_to_the_requests_to_the_nano_dollar(engine: AsyncEngine) -> None:
    records = traffic(400, keys=12)
    await stored(engine, *records)

    report = await cost_report(engine, 0.0, 20 * DAY, shown=5)

    exact = sum(nano(record.cost_usd) for record in records)
    assert nano(report.total.spent.cost_usd) == exact
    others = report.other_keys
    assert others is not None
    assert len(report.by_key) == 5
    for cut in (report.by_tier, report.by_day, [*report.by_key, others]):
        assert sum(nano(part.spent.cost_usd) for part in cut) == exact
        assert sum(part.spent.requests for part in cut) == 400
        assert sum(part.spent.prompt_tokens for part in cut) == sum(record.prompt_tokens for record in records)
        assert sum(part.share for part in cut) == pytest.approx(1)
    assert [part.name for part in report.by_day] == ["1970-01-11", "1970-01-12", "1970-01-13"]
    first_day = [r for r in records if r.created_at < 11 * DAY]
    assert report.by_day[0].spent.requests == len(first_day)
    costs = [part.spent.cost_usd for part in report.by_key]
    assert costs == sorted(costs, reverse=True)
    key = report.by_key[0]
    mine = [record for record in records if record.key_id == key.name]
    assert nano(key.spent.cost_usd) == sum(nano(record.cost_usd) for record in mine)


async def test_bills_can_be_split_by_a_tag(engine: AsyncEngine) -> None:
    tagged = [{"project": "a"}, {"project": "b", "team": "x"}, {"project": "a"}, {"team": "x"}, None]
    await stored(engine, *(make_record(f"r-{n}", tags=tags, cost_usd=0.25) for n, tags in enumerate(tagged)))

    report = await cost_report(engine, 0.0, 2e9, tag="project")
    assert {part.name: (part.spent.requests, part.spent.cost_usd) for part in report.by_tag} == {
        "a": (2, 0.5), "b": (1, 0.25), None: (2, 0.5),
    }  # fmt: skip
    assert report.other_tags is None

    bounded = await cost_report(engine, 0.0, 2e9, tag="project", shown=1)
    assert bounded.other_tags is not None
    assert len(bounded.by_tag) == 1
    assert bounded.by_tag[0].spent.requests + bounded.other_tags.spent.requests == 5
    assert (await cost_report(engine, 0.0, 2e9)).by_tag == []


async def test_a_stretch_begins_at_since_and_ends_before_until(engine: AsyncEngine) -> None:
    await stored(engine, *(make_record(f"r-{at}", created_at=at, cost_usd=0.5) for at in (1.0, 2.0, 3.0)))
    assert (await cost_report(engine, 2.0, 3.0)).total.spent.requests == 1


async def test_the_saving_counts_what_checking_costs(engine: AsyncEngine) -> None:
    await stored(
        engine,
        make_record("old", created_at=1.0, cost_usd=100.0),
        make_record("r-1", created_at=2.0, cost_usd=0.5, baseline_cost_usd=2.0),
        make_record("r-2", created_at=3.0, cost_usd=0.25, baseline_cost_usd=2.0),
    )
    await verified(engine, 1.0, 100.0)
    await verified(engine, 2.0, 0.25)

    report = await cost_report(engine, 2.0, 10.0)

    assert (report.verification_usd, report.total.net.saved_usd, report.total.net.share) == (0.25, 3.0, 0.75)
    assert (report.judge_test_usd, report.total.net.checks_usd) == (0.0, 0.25)
    assert report.total.cost_per_1k_tokens_usd == pytest.approx(0.75 / 38 * 1e3)


async def test_the_saving_counts_what_the_test_of_the_judge_costs(engine: AsyncEngine) -> None:
    await stored(engine, make_record("r-1", key_id=None, created_at=2.0, cost_usd=0.5, baseline_cost_usd=2.0))
    await verified(engine, 2.0, 0.25)
    async with engine.begin() as connection:
        for at, spent in ((1.0, 8.0), (2.0, 0.5), (10.0, 16.0)):
            row = {"created_at": at, "actor": "x", "action": JUDGE_TEST, "subject": f"j/{at}"}
            await connection.execute(insert(audit_events).values(**row, details={"spent_usd": spent}))

    report = await cost_report(engine, 2.0, 10.0)

    assert (report.verification_usd, report.judge_test_usd, report.total.net.share) == (0.25, 0.5, 0.375)
    assert (report.by_key[0].net.checks_usd, report.by_key[0].net.share) == (0.25, 0.625)
    assert await saved_between(engine, 2.0, 10.0) == report.total.net


async def test_keys_of_a_team_and_models_are_summed_with_the_checks_of_their_answers(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        await connection.execute(insert(teams).values(team_id="team-1", name="research", created_at=1.0))
        for key, team in (("k-1", "team-1"), ("k-2", "team-1"), ("k-3", None)):
            row = {"key_id": key, "name": f"n-{key}", "team_id": team, "prefix": "p", "digest": "d", "scopes": []}
            await connection.execute(insert(api_keys).values(**row, consent=True, priority_ceiling=0, created_at=1.0))
    given = (("k-1", "small", 1.0), ("k-2", "large", 2.0), ("k-3", "small", 4.0), (None, "small", 8.0))
    for key, model, cost in given:
        record = make_record(f"r-{key}", key_id=key, created_at=5.0, cost_usd=cost, baseline_cost_usd=2 * cost)
        await stored(engine, msgspec.structs.replace(record, model=model))
    await verified(engine, 6.0, 0.5, "r-k-2", "k-2")
    await verified(engine, 7.0, 0.25, "r-k-3", "k-3")

    report = await cost_report(engine, 5.0, 10.0, shown=2)

    def found(parts: list[Part]) -> list[tuple[str | None, float, float, float | None]]:
        return [(one.name, one.spent.cost_usd, one.net.checks_usd, one.net.share) for one in parts]

    assert found(report.by_team) == [(None, 12.0, 0.25, 1 - 12.25 / 24), ("team-1", 3.0, 0.5, 1 - 3.5 / 6)]
    assert found(report.by_model) == [("small", 13.0, 0.25, 1 - 13.25 / 26), ("large", 2.0, 0.5, 1 - 2.5 / 4)]
    assert found(report.by_key) == [(None, 8.0, 0.0, 0.5), ("k-3", 4.0, 0.25, 1 - 4.25 / 8)]
    assert report.other_keys is not None
    assert found([report.other_keys]) == [("other", 3.0, 0.5, 1 - 3.5 / 6)]


async def test_embeddings_are_billed_apart_from_the_tiers_and_save_nothing(engine: AsyncEngine) -> None:
    await stored(
        engine,
        make_record("r-1", tier=3, cost_usd=0.5, baseline_cost_usd=2.0),
        make_embedding("e-1", cost_usd=0.25),
        make_embedding("e-2", cost_usd=0.25),
    )

    report = await cost_report(engine, 0.0, 2e9, tag="project")

    parts = [(part.name, part.spent.requests, part.spent.cost_usd, part.net.share) for part in report.by_tier]
    assert parts == [("3", 1, 0.5, 0.75), ("embeddings", 2, 0.5, 0.0)]
    assert report.total.spent.cost_usd == 1.0
    assert {part.name: part.spent.cost_usd for part in report.by_tag} == {"search": 0.5, None: 0.5}


async def test_without_traffic_there_is_no_saving_to_speak_of(engine: AsyncEngine) -> None:
    report = await cost_report(engine, 0.0, 10.0)
    empty = CostReport(
        since=0.0, until=10.0, total=report.total, verification_usd=0.0, judge_test_usd=0.0,
        by_tier=[], by_model=[], by_day=[], by_key=[], other_keys=None, by_team=[], by_tag=[], other_tags=None,
    )  # fmt: skip
    assert report == empty
    assert (report.total.spent.requests, report.total.net.share, report.total.cost_per_1k_tokens_usd) == (0, None, None)


async def test_what_no_server_has_counted_is_summed_apart(engine: AsyncEngine) -> None:
    counted = Attempt(tier=1, model="m", status="error", cost_usd=0.25)
    guessed = Attempt(tier=2, model="m", status="aborted", cost_usd=0.5, estimated=True)
    await stored(
        engine,
        make_record("left", key_id="a", attempts=[counted, guessed], cost_usd=0.75, created_at=DAY),
        make_record("whole", key_id="b", attempts=[counted], cost_usd=0.25, created_at=DAY),
    )
    report = await cost_report(engine, 0.0, 2 * DAY)
    assert (report.total.spent.cost_usd, report.total.spent.estimated_usd) == (1.0, 0.5)
    assert {part.name: part.spent.estimated_usd for part in report.by_key} == {"a": 0.5, "b": 0.0}
