"""Shares by tier and cluster stand for the whole traffic, and say how sure they are."""

from typing import Any

import numpy as np
import pytest
from loop_world import record, store_request
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncEngine

from migrations.tables import classifier_versions, training_rows, verifications
from quality.kinds import Tally, acceptance, kind_share, sampling_weights

BLANK = {
    "model": "m", "status": "done", "judge": "exact", "judge_reliability": 1.0, "cost_usd": 0.0, "reserved_usd": 0.0,
    "attempts": 1, "created_at": 5.0, "finished_at": 5.0,
}  # fmt: skip


async def verified(
    engine: AsyncEngine, number: int, label: str, *, tier: int = 1, cluster: int | None = 0, **values: Any
) -> None:
    name = f"r{number}"
    await store_request(engine, record(name, tier=tier))
    row = {"request_id": name, "tier": tier, "label": label, "sampled_probability": 0.05, "sampled_reason": "sample"}
    encoded = {
        "request_id": name, "source": "verification", "feature_spec": "s", "embedding": b"", "no_worse": [],
        "weights": [], "cluster": cluster, "created_at": 5.0,
    }  # fmt: skip
    async with engine.begin() as connection:
        await connection.execute(insert(verifications).values(**BLANK | row | values))
        await connection.execute(insert(training_rows).values(encoded))


async def test_shares_are_shown_by_tier_by_cluster_and_by_both(any_engine: AsyncEngine) -> None:
    for number in range(8):
        await verified(any_engine, number, "worse" if number < 2 else "tie", tier=1 + number % 2, cluster=number // 4)

    found = {(one.tier, one.cluster): (one.answers, one.value) for one in (await acceptance(any_engine)).by_kind}

    assert found == {
        (None, 0): (4, 0.5), (None, 1): (4, 1.0), (1, None): (4, 0.75), (2, None): (4, 0.75),
        (1, 0): (2, 0.5), (1, 1): (2, 1.0), (2, 0): (2, 0.5), (2, 1): (2, 1.0),
    }  # fmt: skip


async def test_a_prompt_that_was_never_encoded_counts_for_its_tier_alone(sqlite_engine: AsyncEngine) -> None:
    await verified(sqlite_engine, 0, "worse")
    await verified(sqlite_engine, 1, "tie", cluster=None)

    found = {(one.tier, one.cluster): one.answers for one in (await acceptance(sqlite_engine)).by_kind}

    assert found == {(1, None): 2, (None, 0): 1, (1, 0): 1}


async def test_what_was_sampled_rarely_counts_more_and_makes_it_less_sure(sqlite_engine: AsyncEngine) -> None:
    for number in range(40):
        rare = number < 10
        await verified(
            sqlite_engine, number, "worse" if rare else "no_worse", sampled_probability=0.01 if rare else 0.05
        )

    [share] = [one for one in (await acceptance(sqlite_engine)).by_kind if (one.tier, one.cluster) == (1, None)]

    assert share.value == pytest.approx(30 * 20 / (30 * 20 + 10 * 100), abs=1e-6)
    plain = kind_share(Tally(40, 40.0, 40.0, 15.0), 1, None)
    assert share.high - share.low > plain.high - plain.low
    assert share.low < share.value < share.high


async def test_the_database_weighs_probes_and_samples_as_the_rule_says(any_engine: AsyncEngine) -> None:
    probabilities = [0.05, 0.02, 0.01, 0.001, 0.0005, 0.002]
    reasons = ["sample", "downgrade", "sample", "probe", "probe", "probe"]
    labels = ["worse", "tie", "no_worse", "worse", "no_worse", "tie"]
    for number, (p, reason, label) in enumerate(zip(probabilities, reasons, labels, strict=True)):
        await verified(any_engine, number, label, sampled_probability=p, sampled_reason=reason, cluster=number % 2)

    shares = {(one.tier, one.cluster): one for one in (await acceptance(any_engine)).by_kind}

    weights, good = np.array(sampling_weights(probabilities, reasons)), np.array([label != "worse" for label in labels])
    for cluster, mine in ((None, slice(None)), (0, slice(0, None, 2)), (1, slice(1, None, 2))):
        w, g = weights[mine], good[mine]
        assert shares[1, cluster] == kind_share(Tally(len(w), w.sum(), w @ w, w @ g), 1, cluster)


async def test_clusters_and_shares_begin_anew_with_another_classifier(sqlite_engine: AsyncEngine) -> None:
    for number in range(4):
        await verified(sqlite_engine, number, "worse")
    async with sqlite_engine.begin() as connection:
        await connection.execute(
            insert(classifier_versions).values(
                version="v2", path="", status="promoted", reason="", metrics={}, created_at=5.0, promoted_at=6.0
            )
        )
    assert (await acceptance(sqlite_engine)).by_kind == []
    await verified(sqlite_engine, 9, "tie", finished_at=7.0)
    assert {one.value for one in (await acceptance(sqlite_engine)).by_kind} == {1.0}


def test_probes_and_samples_count_by_what_they_are_worth() -> None:
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
            Tally(len(rate), float(weight.sum()), float(weight @ weight), float(weight @ good[drawn])), 1, 0
        )
        held += share.low <= 0.4 * 0.6 + 0.6 * 0.95 <= share.high
    assert held >= 0.92 * 300
