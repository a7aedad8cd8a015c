"""Shares by tier and kind of prompts estimate the whole traffic, with intervals."""

from typing import Any

import msgspec
import numpy as np
import pytest
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.complexity.classes import Complexity
from migrations.tables.quality import training_rows, verifications
from quality.estimates.verified_sample import ALL, Kind, Tally, acceptance, kind_share, sampling_weights
from tests.quality.loop_world import record, store_request

BLANK = {
    "model": "m", "status": "done", "judge": "exact", "judge_reliability": 1.0, "cost_usd": 0.0, "reserved_usd": 0.0,
    "attempts": 1, "created_at": 5.0, "finished_at": 5.0,
}  # fmt: skip


CLASSES = {name: [0.97 if one == name else 0.01 for one in Complexity] for name in Complexity}
SIMPLE, EXPERT = (Kind(by="class", complexity=one) for one in (Complexity.SIMPLE, Complexity.EXPERT))
ALICE = Kind(by="application", key_id="alice")


async def verified(
    engine: AsyncEngine, number: int, label: str, *, tier: int = 1, complexity: Complexity | None = Complexity.SIMPLE,
    app: str | None = None, **values: Any,
) -> None:  # fmt: skip
    name = f"r{number}"
    await store_request(engine, record(name, tier=tier))
    row = {"request_id": name, "tier": tier, "label": label, "sampled_probability": 0.05, "sampled_reason": "sample"}
    encoded = {
        "request_id": name, "source": "verification", "feature_spec": "s", "embedding": b"", "no_worse": [],
        "weights": [], "classes": complexity and CLASSES[complexity], "created_at": 5.0, "key_id": "alice", "app": app,
    }  # fmt: skip
    async with engine.begin() as connection:
        await connection.execute(insert(verifications).values(**BLANK | row | values))
        await connection.execute(insert(training_rows).values(encoded))


async def test_shares_are_shown_by_tier_by_kind_and_by_both(any_engine: AsyncEngine) -> None:
    for number in range(8):
        complexity, app = (Complexity.SIMPLE, None) if number < 4 else (Complexity.EXPERT, "f00d")
        label = "worse" if number < 2 else "tie"
        await verified(any_engine, number, label, tier=1 + number % 2, complexity=complexity, app=app)

    shown = await acceptance(any_engine)

    other = msgspec.structs.replace(ALICE, app="f00d")
    assert {(one.tier, one.kind): (one.answers, one.value) for one in shown.by_kind} == {
        (None, ALL): (8, 0.75), (1, ALL): (4, 0.75), (2, ALL): (4, 0.75),
        (None, SIMPLE): (4, 0.5), (1, SIMPLE): (2, 0.5), (2, SIMPLE): (2, 0.5),
        (None, EXPERT): (4, 1.0), (1, EXPERT): (2, 1.0), (2, EXPERT): (2, 1.0),
        (None, ALICE): (4, 0.5), (1, ALICE): (2, 0.5), (2, ALICE): (2, 0.5),
        (None, other): (4, 1.0), (1, other): (2, 1.0), (2, other): (2, 1.0),
    }  # fmt: skip
    assert shown.overall is not None
    assert shown.overall.answers == 8


async def test_the_database_finds_each_class_by_its_probability(any_engine: AsyncEngine) -> None:
    for number, complexity in enumerate(Complexity):
        await verified(any_engine, number, "tie", complexity=complexity)
    found = [one.kind.complexity for one in (await acceptance(any_engine)).by_kind if one.tier and one.kind.complexity]
    assert found == list(Complexity)


async def test_a_prompt_without_a_class_counts_for_its_tier_and_its_application(sqlite_engine: AsyncEngine) -> None:
    await verified(sqlite_engine, 0, "worse")
    await verified(sqlite_engine, 1, "tie", complexity=None)

    found = {(one.tier, one.kind): one.answers for one in (await acceptance(sqlite_engine)).by_kind}

    assert found == {
        (None, ALL): 2, (1, ALL): 2, (None, SIMPLE): 1, (1, SIMPLE): 1, (None, ALICE): 2, (1, ALICE): 2,
    }  # fmt: skip


async def test_rarely_sampled_answers_count_more_and_widen_the_interval(sqlite_engine: AsyncEngine) -> None:
    for number in range(40):
        rare = number < 10
        await verified(
            sqlite_engine, number, "worse" if rare else "no_worse", sampled_probability=0.01 if rare else 0.05
        )

    [share] = [one for one in (await acceptance(sqlite_engine)).by_kind if (one.tier, one.kind) == (1, ALL)]

    assert share.value == pytest.approx(30 * 20 / (30 * 20 + 10 * 100), abs=1e-6)
    plain = kind_share(Tally(40, 40.0, 40.0, 15.0), 1)
    assert share.high - share.low > plain.high - plain.low
    assert share.low < share.value < share.high


async def test_the_database_weighs_probes_and_samples_as_the_rule_says(any_engine: AsyncEngine) -> None:
    probabilities = [0.05, 0.02, 0.01, 0.001, 0.0005, 0.002]
    reasons = ["sample", "downgrade", "sample", "probe", "probe", "probe"]
    labels = ["worse", "tie", "no_worse", "worse", "no_worse", "tie"]
    for number, (p, reason, label) in enumerate(zip(probabilities, reasons, labels, strict=True)):
        await verified(
            any_engine,
            number,
            label,
            sampled_probability=p,
            sampled_reason=reason,
            complexity=(Complexity.SIMPLE, Complexity.EXPERT)[number % 2],
        )

    shares = {(one.tier, one.kind): one for one in (await acceptance(any_engine)).by_kind}

    weights, good = np.array(sampling_weights(probabilities, reasons)), np.array([label != "worse" for label in labels])
    for kind, mine in ((ALL, slice(None)), (SIMPLE, slice(0, None, 2)), (EXPERT, slice(1, None, 2))):
        w, g = weights[mine], good[mine]
        assert shares[1, kind] == kind_share(Tally(len(w), w.sum(), w @ w, w @ g), 1, kind)


def test_probes_and_samples_count_by_their_effective_size() -> None:
    """A hundred times rarer, a probe does not count for a hundred answers: both stand for the same traffic."""
    weights = sampling_weights([0.05] * 30 + [0.0005] * 10, ["sample"] * 30 + ["probe"] * 10)
    assert weights == pytest.approx([1.0] * 40)


def test_the_interval_holds_the_traffics_share_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(300):
        doubtful = rng.random(1500) < 0.4
        good = rng.random(1500) < np.where(doubtful, 0.6, 0.95)
        drawn = rng.random(1500) < np.where(doubtful, 0.2, 0.05)
        rate = np.where(doubtful, 0.2, 0.05)[drawn]
        weight = 1 / rate
        share = kind_share(
            Tally(len(rate), float(weight.sum()), float(weight @ weight), float(weight @ good[drawn])), 1
        )
        held += share.low <= 0.4 * 0.6 + 0.6 * 0.95 <= share.high
    assert held >= 0.92 * 300
