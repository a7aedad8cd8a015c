"""What every quality target would come to, and the day on which a verdict is expected."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import numpy as np
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.decision import Prediction
from quality.estimates.targets import Predicted, at_target, even_mix, predicted_requests, read_targets
from quality.records.record import Record
from quality.routing_report import missing_in_words
from tests.quality.loop_world import record, store_request

COSTS = [0.001, 0.002, 0.004, 0.01]


def predicted(p_ok: list[list[float]], enough: float = 1.0) -> Predicted:
    n = len(p_ok)
    return Predicted(
        p_ok=np.array(p_ok), usd=np.array([COSTS] * n), reference=np.full(n, COSTS[-1]), enough=np.full(n, enough)
    )


def routed(request_id: str, p_ok: list[float], **inputs: Any) -> Record:
    made = record(request_id, tier=1)
    prediction = Prediction(
        p_ok=p_ok, kind="measured", novelty=1.0, classifier_version="v1", classes=[0.7, 0.2, 0.1, 0.0]
    )
    given = {"prediction": prediction, "costs": COSTS, "objective": "utility"} | inputs
    decision = msgspec.structs.replace(made.decision, inputs=msgspec.structs.replace(made.decision.inputs, **given))
    return msgspec.structs.replace(made, decision=decision)


def test_a_higher_target_gives_the_doubtful_prompt_to_the_strongest_tier() -> None:
    """At 0 a strongest answer is worth as much as a good one, so both prompts go lower; at 0.9 the second gets it."""
    prompts = predicted([[0.9, 0.9, 0.95, 1.0], [0.3, 0.4, 0.9, 1.0]])
    cheap, careful = at_target(prompts, 0.0), at_target(prompts, 0.9)
    assert (cheap.no_worse, cheap.cost_share) == (pytest.approx((0.9 + 0.9) / 2), pytest.approx(0.005 / 0.02))
    assert (careful.no_worse, careful.cost_share) == (pytest.approx((0.95 + 1.0) / 2), pytest.approx(0.014 / 0.02))
    assert (cheap.split, careful.split) == ([0.5, 0.0, 0.5, 0.0], [0.0, 0.0, 0.5, 0.5])


def test_on_the_first_day_what_is_good_enough_counts_as_certain() -> None:
    prompts = predicted([[0.9, 0.9, 0.95, 1.0], [0.3, 0.4, 0.9, 1.0]], enough=0.7)
    assert at_target(prompts, 0.9).cost_share == pytest.approx((0.001 + 0.004) / 0.02)


async def test_the_newest_requests_that_routing_decided_count_in_place_of_the_even_mix(engine: AsyncEngine) -> None:
    mix = even_mix(np.full((4, 3), 0.5), COSTS, 0.7)
    assert (await read_targets(engine, mix, 0.9, None)).requests == 0
    await store_request(engine, routed("cheap", [0.99, 0.99, 0.99, 1.0]))
    await store_request(engine, routed("dear", [0.1, 0.1, 0.1, 1.0]))
    await store_request(engine, routed("pinned", [0.1, 0.1, 0.1, 1.0], pinned_tier=4))
    await store_request(engine, routed("other ladder", [0.1, 1.0], costs=[0.1, 0.2]))
    await store_request(engine, routed("heuristic", [0.1, 0.1, 0.1, 1.0], objective="target"))

    targets = await read_targets(engine, mix, 0.9, 0.0)

    assert (targets.requests, targets.classes) == (2, {"SIMPLE": 2})
    assert targets.active.split == [0.5, 0.0, 0.0, 0.5]
    assert targets.previewed is not None
    assert (targets.previewed.target, len(targets.points)) == (0.0, 41)
    assert await predicted_requests(engine, 3) is None


@pytest.mark.parametrize(
    ("missing", "a_day", "expected"),
    [
        (100, 0.0, "none come while no requests do"),
        (100, 0.1, "more than a year"),
        (90, 30.0, "90 more requests that every tier answers and a judge compares: expected on 2026-01-04"),
        (1, 0.5, "1 more request that every tier answers"),
    ],
)
def test_what_is_missing_is_one_sentence_with_a_number_and_a_day(missing: int, a_day: float, expected: str) -> None:
    sentence = missing_in_words(missing, a_day, datetime(2026, 1, 1, tzinfo=UTC).timestamp())
    assert expected in sentence
    assert sentence.count(". ") == 0
