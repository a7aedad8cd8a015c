"""Drift of inputs and of calibration: detected where present, and not elsewhere."""

import numpy as np
import pytest
from sqlalchemy import delete, insert
from sqlalchemy.ext.asyncio import AsyncEngine

from migrations.tables.quality import training_rows, verifications
from quality.estimates.verified_sample import PEOPLE, wilson_interval
from quality.monitor import status
from quality.monitor.status import InputWatch, calibration_drift, embedding_drift, held_against, novelty_drift
from tests.quality.loop_world import record, store_request


def unit(rng: np.random.Generator, n: int, towards: int = 0, share: float = 0.0) -> np.ndarray:
    vectors = rng.normal(size=(n, 24)) / 3
    vectors[:, 0] += 1.0
    vectors[rng.random(n) < share, towards] += 3.0
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


def test_a_new_kind_of_prompt_is_seen_in_embeddings_and_novelty() -> None:
    rng = np.random.default_rng(0)
    assert embedding_drift(unit(rng, 400, towards=5, share=0.2), unit(rng, 1600)).drifted
    assert novelty_drift(rng.beta(2, 1, 500), rng.random(2000)).drifted


def test_the_same_prompts_rarely_look_changed() -> None:
    rng = np.random.default_rng(1)
    seen = [embedding_drift(unit(rng, 100), unit(rng, 400)) for _ in range(60)]
    assert sum(one.drifted for one in seen) <= 5
    values = [one.value for one in seen if one.value is not None]
    assert abs(np.mean(values)) < 3 * np.std(values) / len(values) ** 0.5
    assert sum(novelty_drift(rng.random(200), rng.random(800)).drifted for _ in range(200)) <= 14


def test_too_few_prompts_say_nothing() -> None:
    few = novelty_drift(np.ones(10), np.zeros(1000))
    assert (few.value, few.drifted) == (None, False)
    assert embedding_drift(np.ones((500, 3)), np.ones((3, 3))).value is None


def test_verdicts_are_held_against_predictions_with_an_interval() -> None:
    rng = np.random.default_rng(2)
    predicted = rng.uniform(0.6, 1.0, 400)
    fine = held_against(1, (rng.random(400) < predicted).astype(float), predicted, np.ones(400))
    off = held_against(1, (rng.random(400) < predicted - 0.2).astype(float), predicted, np.ones(400))
    assert not fine.drifted
    assert off.drifted
    assert off.low < -0.2 < off.high


async def test_both_are_read_from_the_store(any_engine: AsyncEngine) -> None:
    """`record` predicts 0.7 for tier 1; a judge of reliability 0.9 would find 0.7 x 0.9 + 0.3 x 0.1 no worse."""
    rng = np.random.default_rng(3)
    vectors = unit(rng, 60).astype("<f4")
    for number in range(60):
        await store_request(any_engine, record(f"r{number}", created_at=1000.0 + number))
    verdicts = [
        {
            "request_id": f"r{number}", "tier": 1, "model": "m", "label": "worse" if number % 2 else "tie",
            "sampled_probability": 0.05, "sampled_reason": "sample", "status": "done", "judge": "pairwise",
            "judge_reliability": 0.9, "cost_usd": 0.0, "reserved_usd": 0.0, "attempts": 1, "created_at": 5.0,
            "finished_at": 5.0,
        }
        for number in range(60)
    ]  # fmt: skip
    encoded = [
        {
            "request_id": f"r{number}", "source": "verification", "feature_spec": "s", "no_worse": [], "weights": [],
            "embedding": vectors[number].tobytes(), "created_at": float(number),
        }
        for number in range(60)
    ]  # fmt: skip
    by_people = [
        verdict | {"request_id": f"r{number}", "label": "worse", "judge": PEOPLE}
        for number, verdict in enumerate(verdicts[:40], start=60)
    ]
    for number in range(60, 100):
        await store_request(any_engine, record(f"r{number}", created_at=1000.0 + number))
    async with any_engine.begin() as connection:
        await connection.execute(insert(verifications), [*verdicts, *by_people])
        await connection.execute(insert(training_rows), encoded)

    [found] = await calibration_drift(any_engine, [1, 2, 3])
    watch = InputWatch(any_engine)
    novelty, embedding = await watch.look()

    assert (found.tier, found.answers, found.verified, found.drifted) == (1, 60, 0.5, True)
    assert found.predicted == pytest.approx(0.66)
    assert (novelty.prompts, novelty.before, embedding.prompts) == (100, 0, 60)
    assert (await watch.look())[1] == embedding
    async with any_engine.begin() as connection:
        await connection.execute(
            insert(training_rows), encoded[0] | {"request_id": "another", "source": "probe", "created_at": 60.0}
        )
    assert (await watch.look())[1].prompts == 61


@pytest.mark.parametrize(("good", "drifted"), [(10, False), (8, False), (5, True), (0, True)])
def test_ten_verdicts_have_an_interval_of_their_share(good: int, drifted: bool) -> None:
    found = held_against(1, np.array([1.0] * good + [0.0] * (10 - good)), np.full(10, 0.89), np.ones(10))
    share = wilson_interval(good, 10)
    assert (found.low, found.high) == (round(share.low - 0.89, 6), round(share.high - 0.89, 6))
    assert found.drifted == drifted


def test_the_rise_of_novelty_has_the_interval_of_two_means() -> None:
    rng = np.random.default_rng(4)
    now, before = rng.random(50), rng.random(70)
    rise = now.mean() - before.mean()
    half = 1.959963984540054 * (np.var(now, ddof=1) / 50 + np.var(before, ddof=1) / 70) ** 0.5
    found = novelty_drift(now, before)
    assert (found.value, found.low, found.high) == (round(rise, 6), round(rise - half, 6), round(rise + half, 6))
    assert (found.prompts, found.before) == (50, 70)
    # Nothing rose, with certainty.
    same = novelty_drift(np.ones(50), np.ones(50))
    assert (same.low, same.drifted) == (0.0, False)
    assert novelty_drift(np.ones(49), np.ones(50)).value is None


def test_the_distance_of_mean_vectors_is_less_what_chance_makes_and_in_the_middle_of_its_resamples() -> None:
    rng = np.random.default_rng(5)
    beside = []
    for seed in range(12):
        now, before = unit(rng, 60, towards=3, share=0.3), unit(rng, 90)
        chance = np.var(now, axis=0, ddof=1).sum() / 60 + np.var(before, axis=0, ddof=1).sum() / 90
        distance = float(((now.mean(axis=0) - before.mean(axis=0)) ** 2).sum())
        found = embedding_drift(now, before, seed)
        assert found.value == round(distance - chance, 6)
        assert found.low is not None
        assert found.high is not None
        assert found.low < found.value < found.high
        beside.append(((found.low + found.high) / 2 - found.value) / chance)
    # The sampling error of two samples is taken off, not that of one or three. The resamples lean a little upwards.
    assert np.mean(beside) == pytest.approx(0.45, abs=0.35)


def test_fifty_vectors_on_both_sides_are_enough() -> None:
    rng = np.random.default_rng(6)
    assert embedding_drift(unit(rng, 50), unit(rng, 50)).value is not None
    assert embedding_drift(unit(rng, 49), unit(rng, 50)).value is None


@pytest.mark.parametrize("seed", [7, 8])
def test_verdicts_weigh_by_their_sampling_and_an_interval_that_touches_nothing_is_no_drift(seed: int) -> None:
    rng = np.random.default_rng(seed)
    good, expected, weights = (rng.random(80) < 0.6).astype(float), rng.random(80), rng.uniform(1, 20, 80)
    share = weights / weights.sum()
    difference = share @ good - share @ expected
    half = 1.959963984540054 * (share**2 @ (good - expected - difference) ** 2) ** 0.5
    found = held_against(2, good, expected, weights)
    assert (found.tier, found.answers) == (2, 80)
    assert (found.predicted, found.verified) == (round(share @ expected, 6), round(share @ good, 6))
    assert (found.low, found.high) == (round(difference - half, 6), round(difference + half, 6))
    # Certain, and exactly as predicted; then a little above and below.
    same = np.full(60, 0.5)
    assert not held_against(1, same, same, np.ones(60)).drifted
    assert held_against(1, same + 0.25, same, np.ones(60)).drifted
    assert held_against(1, same - 0.25, same, np.ones(60)).drifted


async def test_only_the_newest_prompts_vectors_and_verdicts_are_compared(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("WINDOW", 50), ("BEFORE", 1), ("VECTORS", 55), ("VERDICTS", 50)):
        monkeypatch.setattr(status, name, value)
    for number in range(180):
        await store_request(engine, record(f"r{number}", created_at=1000.0 + number))
    verdicts = [
        {
            "request_id": f"r{number}", "tier": 1, "model": "m", "label": "no_worse" if number % 5 else "worse",
            "sampled_probability": 0.05, "sampled_reason": "sample", "status": "done", "judge": "exact",
            "judge_reliability": None, "cost_usd": 0.0, "reserved_usd": 0.0, "attempts": 1, "created_at": 5.0,
            "finished_at": 5.0 + number,
        }
        for number in range(70)
    ]  # fmt: skip
    vectors = unit(np.random.default_rng(9), 180).astype("<f4")
    encoded = [
        {
            "request_id": f"r{number}", "source": "probe", "feature_spec": "s" if number else "another",
            "no_worse": [], "weights": [], "embedding": vectors[number].tobytes(), "created_at": float(number),
        }
        for number in range(180)
    ]  # fmt: skip
    async with engine.begin() as connection:
        await connection.execute(insert(verifications), verdicts)
        await connection.execute(insert(training_rows), encoded)
    watch = InputWatch(engine)
    novelty, embedding = await watch.look()
    assert (novelty.prompts, novelty.before) == (50, 50)
    assert (embedding.prompts, embedding.before) == (55, 55)
    newest = vectors[::-1].astype(np.float64)
    assert embedding.value == pytest.approx(embedding_drift(newest[:55], newest[55:110]).value, abs=1e-5)
    [found] = await calibration_drift(engine, [1, 2])
    assert (found.tier, found.answers, found.predicted, found.verified) == (1, 50, 0.7, 0.8)
    async with engine.begin() as connection:
        await connection.execute(delete(verifications).where(verifications.c.finished_at > 13.5))
        await connection.execute(delete(training_rows))
    assert (await watch.look())[1] == embedding, "what was known last"
    assert await calibration_drift(engine, [1]) == [], "nine answers"
