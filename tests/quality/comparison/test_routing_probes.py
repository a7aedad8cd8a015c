"""Which stored probes say what routing is worth, and what routing's choice was."""

from typing import Any

import msgspec
import pytest
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.decision import ConstantTier
from migrations.tables.quality import training_rows
from quality.comparison.routing_probes import LEAST_OF_KEY, WorthAsked, WorthRecord
from quality.records.record import Attempt, Record
from quality.store.queries import delete_key_data, insert_records, reset_labels
from tests.quality.loop_world import record

TIERS = ("a", "b", "c", "d")
ASKED = WorthAsked(TIERS, 0.7, 0.01)


def probe(request_id: str, no_worse: list[bool | None], **changes: Any) -> dict[str, Any]:
    row = {
        "request_id": request_id, "key_id": "alice", "source": "probe", "feature_spec": "f", "embedding": b"",
        "no_worse": no_worse, "weights": [1.0] * 4, "tiers": list(TIERS), "created_at": 2000.0,
    }  # fmt: skip
    return row | changes


async def store(engine: AsyncEngine, records: list[Record], probes: list[dict[str, Any]]) -> None:
    async with engine.begin() as connection:
        await insert_records(connection, records)
        await connection.execute(insert(training_rows), probes)


def changed(made: Record, **inputs: Any) -> Record:
    """The record with other inputs of its decision."""
    decision = made.decision
    now = msgspec.structs.replace(decision, inputs=msgspec.structs.replace(decision.inputs, **inputs))
    return msgspec.structs.replace(made, decision=now)


async def test_routing_is_compared_with_every_tier_on_requests_that_all_tiers_answered(any_engine: AsyncEngine) -> None:
    # The target 0.9 takes tier 3 at a cost of 3; tier 4 costs 4.
    await store(any_engine, [record("r", tier=3)], [probe("r", [False, True, True, True])])

    found = (await WorthRecord(any_engine).of(ASKED)).catalogue

    assert found is not None
    assert found.probes == 1
    assert found.no_worse == 1.0
    assert found.usd == 3.0
    assert [round(one.gain.value, 6) for one in found.tiers] == [0.85, -0.075, 0.0, 0.075]


async def test_an_answer_that_was_handed_on_is_paid_twice_and_is_as_good_as_the_last(engine: AsyncEngine) -> None:
    attempts = [
        Attempt(tier=2, model="m", status="error", cost_usd=0.0),
        Attempt(tier=3, model="m", status="escalated", cost_usd=3.0),
        Attempt(tier=4, model="m", status="ok", cost_usd=4.0),
    ]
    handed = msgspec.structs.replace(record("r", tier=3), tier=4, attempts=attempts)
    await store(engine, [handed], [probe("r", [False, False, False, True])])

    found = (await WorthRecord(engine).of(ASKED)).catalogue

    assert found is not None
    assert (found.no_worse, found.usd) == (1.0, 7.0)


async def test_while_a_constant_answers_the_choice_of_routing_is_replayed(engine: AsyncEngine) -> None:
    constant = changed(record("c", tier=4), constant=ConstantTier(tier=4, meets=0.95))
    observed = changed(record("o", tier=4), observe_tier=4)
    outcomes: list[bool | None] = [False, True, False, True]
    await store(engine, [constant, observed], [probe("c", outcomes), probe("o", outcomes)])

    found = (await WorthRecord(engine).of(ASKED)).catalogue

    assert found is not None
    assert (found.probes, found.no_worse, found.usd) == (2, 0.0, 3.0)


async def test_pinned_requests_experiments_other_tiers_and_partial_outcomes_say_nothing(engine: AsyncEngine) -> None:
    records = [
        changed(record("pinned", tier=2), pinned_tier=2),
        changed(record("arm", tier=2), experiment_id="e", arm="a", arm_tier=2),
        record("others", tier=3),
        record("partial", tier=3),
        record("sampled", tier=3),
    ]
    good: list[bool | None] = [True] * 4
    probes = [
        probe("pinned", good),
        probe("arm", good),
        probe("others", good, tiers=["a", "b", "c", "other"]),
        probe("partial", [True, None, True, True]),
        probe("sampled", good, source="verification"),
    ]
    await store(engine, records, probes)

    assert (await WorthRecord(engine).of(ASKED)).catalogue is None


async def test_a_key_has_a_verdict_of_its_own_from_enough_probes_on(engine: AsyncEngine) -> None:
    record_of = WorthRecord(engine)
    good: list[bool | None] = [True] * 4
    for start, count, keys in ((0, LEAST_OF_KEY - 1, 0), (LEAST_OF_KEY - 1, 1, 1)):
        names = [f"r{number}" for number in range(start, start + count)]
        await store(engine, [record(name, tier=3) for name in names], [probe(name, good) for name in names])
        found = await record_of.of(ASKED)
        assert found.catalogue is not None
        assert found.catalogue.probes == start + count
        assert [one.key_id for one in found.keys] == ["alice"] * keys


async def test_a_reset_of_labels_and_other_tiers_begin_the_sequence_again(engine: AsyncEngine) -> None:
    record_of = WorthRecord(engine)
    await store(engine, [record("r", tier=3)], [probe("r", [True] * 4)])
    assert (await record_of.of(ASKED)).catalogue is not None

    assert (await record_of.of(ASKED._replace(tiers=("a", "b", "c", "new")))).catalogue is None
    assert (await record_of.of(ASKED)).catalogue is not None

    await reset_labels(engine, actor="admin", reason="a judge erred", now=3000.0)
    assert (await record_of.of(ASKED)).catalogue is None


async def test_more_probes_than_one_query_reads_are_all_counted(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quality.comparison.routing_probes.CHUNK", 7)
    monkeypatch.setattr("quality.comparison.routing_probes.OVERLAP", 3)
    names = [f"r{number}" for number in range(40)]
    await store(engine, [record(name, tier=3) for name in names], [probe(name, [True] * 4) for name in names])

    found = (await WorthRecord(engine).of(ASKED)).catalogue

    assert found is not None
    assert found.probes == 40


async def test_probes_of_an_erased_user_are_forgotten(engine: AsyncEngine) -> None:
    record_of = WorthRecord(engine)
    mine, other = record("mine", tier=3), msgspec.structs.replace(record("other", tier=3), key_id="bob")
    good: list[bool | None] = [True] * 4
    await store(engine, [mine, other], [probe("mine", good), probe("other", good, key_id="bob")])
    await record_of.of(ASKED)

    await delete_key_data(engine, "alice", now=5000.0)
    found = (await record_of.of(ASKED)).catalogue

    assert found is not None
    assert found.probes == 1
