"""Reports of learning: labels, classes, saving, expected quality and the curve, by key and in words."""

from typing import Any

import msgspec
import pytest
from sqlalchemy import delete, insert
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.complexity.classes import adequacies, like_of
from classifier.decision import Prediction
from classifier.model.outcome_model import OutcomeModel
from classifier.registry.artefact import default_artefact, load_artefact
from migrations.tables.quality import training_rows
from migrations.tables.tenancy import api_keys
from quality.estimates.traffic import NEWEST, expected_in_words, newest_requests, traffic
from quality.estimates.traffic import in_words as traffic_in_words
from quality.estimates.verified_sample import Tally, kind_share
from quality.learning.learning import LabelSource, Learning, LearningRecord, in_words
from quality.records.record import Record
from quality.verification.training_rows import encode_prompt
from tests.quality.loop_world import record, store_request

NOW = 100_000.0


@pytest.fixture(scope="module")
def model() -> OutcomeModel:
    return load_artefact(default_artefact())


def source(model: OutcomeModel) -> LabelSource:
    return LabelSource(model=model, tiers=(), prior=adequacies(like_of(4))[:, :-1], exchange=0.3)


def routed(request_id: str, tier: int, *, classes: list[float] | None = None, **changes: Any) -> Record:
    """Of tier k a request costs k dollars, of the strongest four."""
    given = {"cost_usd": float(tier), "baseline_cost_usd": 4.0} | changes
    made = record(request_id, tier=tier, **given)
    prediction = Prediction(
        p_ok=[0.9, 0.95, 0.97, 1.0], kind="prior", novelty=1.0, classifier_version="v1",
        classes=classes or [0.7, 0.2, 0.1, 0.0],
    )  # fmt: skip
    inputs = msgspec.structs.replace(made.decision.inputs, prediction=prediction)
    return msgspec.structs.replace(made, decision=msgspec.structs.replace(made.decision, inputs=inputs))


async def label(engine: AsyncEngine, model: OutcomeModel, key: str | None, count: int, *, good: bool = False) -> None:
    rows = []
    for i in range(count):
        encoded = encode_prompt(model, [{"role": "user", "content": f"Name word {i}, please."}])
        rows.append(
            {"request_id": f"{key}-{i}", "key_id": key, "source": "probe", "feature_spec": encoded.feature_spec,
             "embedding": encoded.embedding, "features": encoded.features, "no_worse": [good, True, True, True],
             "weights": [1.0] * 4, "classes": [0.97, 0.01, 0.01, 0.01], "created_at": 1000.0 + i}
        )  # fmt: skip
    async with engine.begin() as connection:
        await connection.execute(insert(training_rows), rows)


async def learned(engine: AsyncEngine, model: OutcomeModel, since: float = 500.0) -> Learning:
    return await LearningRecord(engine).of(source(model), since)


async def test_keys_are_listed_by_their_requests_and_labels(any_engine: AsyncEngine, model: OutcomeModel) -> None:
    for number in range(3):
        await store_request(any_engine, routed(f"a{number}", 1))
    await store_request(any_engine, routed("a3", 4, classes=[0.0, 0.1, 0.2, 0.7]))
    await store_request(any_engine, routed("b0", 2, key_id=None))
    await store_request(any_engine, routed("old", 4, created_at=1.0))
    await store_request(any_engine, routed("failed", 4, status="error"))
    await label(any_engine, model, "alice", 37)
    await label(any_engine, model, "carol", 2)

    found = await learned(any_engine, model)
    alice, keyless, carol = found.keys

    assert (alice.key_id, alice.labels, alice.labels_at[0], alice.labels_at[-1]) == ("alice", 37, 1, 37)
    assert alice.traffic is not None
    assert (alice.traffic.requests, alice.traffic.tiers) == (4, [3, 0, 0, 1])
    # Three of one dollar and one of four, instead of sixteen.
    assert (alice.traffic.paid_usd, alice.traffic.strongest_usd) == (7.0, 16.0)
    assert alice.traffic.saving == pytest.approx(1 - 7 / 16, abs=1e-4)
    assert alice.traffic.saving_low is not None
    assert alice.traffic.saving_low < alice.traffic.saving
    assert [(one.name, one.requests, one.tiers) for one in alice.traffic.classes] == [
        ("SIMPLE", 3, [3, 0, 0, 0]), ("MEDIUM", 0, [0] * 4), ("COMPLEX", 0, [0] * 4), ("EXPERT", 1, [0, 0, 0, 1]),
    ]  # fmt: skip
    assert alice.traffic.p_ok == pytest.approx((3 * 0.9 + 1.0) / 4)
    assert keyless.traffic is not None
    assert (keyless.key_id, keyless.traffic.requests, keyless.traffic.saving, keyless.curve) == (None, 1, 0.5, None)
    assert (carol.labels, carol.traffic, carol.curve) == (2, None, None)
    assert (found.together.labels, found.together.labels_at[-1]) == (39, 39)
    assert found.together.traffic is not None
    assert found.together.traffic.requests == 5
    assert alice.curve is not None
    assert [point.labels for point in alice.curve.points] == [0, 25]
    assert alice.curve.points[1].error.value < alice.curve.points[0].error.value


async def test_curves_are_drawn_again_only_after_labels_came_or_went(
    sqlite_engine: AsyncEngine, model: OutcomeModel
) -> None:
    kept = LearningRecord(sqlite_engine, redraw_seconds=0.0)
    assert (await kept.of(source(model))).keys == []
    await label(sqlite_engine, model, "alice", 20)
    first = (await kept.of(source(model))).keys[0].curve
    assert first is not None
    assert (await kept.of(source(model))).keys[0].curve is first
    async with sqlite_engine.begin() as connection:
        await connection.execute(delete(training_rows).where(training_rows.c.request_id == "alice-3"))
    again = (await kept.of(source(model))).keys[0]
    assert again.labels == 19
    assert again.curve is not first


async def test_a_look_that_takes_long_is_answered_with_what_was_known_and_goes_on(
    sqlite_engine: AsyncEngine, model: OutcomeModel
) -> None:
    kept = LearningRecord(sqlite_engine, redraw_seconds=0.0)
    assert await kept.at_hand(source(model), 0.0) is None
    assert kept._running is not None
    assert (await kept._running).keys == []
    await label(sqlite_engine, model, "alice", 2)
    assert await kept.at_hand(source(model), 60.0) == await kept._running
    await kept.at_hand(source(model), 0.0)
    await kept.close()


async def test_keys_are_named_as_their_owners_named_them(sqlite_engine: AsyncEngine, model: OutcomeModel) -> None:
    row = {
        "key_id": "k-1", "name": "support desk", "prefix": "p", "digest": "d", "scopes": [], "consent": True,
        "priority_ceiling": 1, "created_at": 1.0,
    }  # fmt: skip
    async with sqlite_engine.begin() as connection:
        await connection.execute(insert(api_keys).values(row))
    await label(sqlite_engine, model, "k-1", 3)
    assert in_words((await learned(sqlite_engine, model)).keys[0]) == (
        "support desk: 3 of 100 labels; from about 100 on, the key has its own model."
    )


async def test_only_the_newest_requests_with_a_choice_count(sqlite_engine: AsyncEngine) -> None:
    pinned = routed("pinned", 4)
    inputs = msgspec.structs.replace(pinned.decision.inputs, pinned_tier=4)
    pinned = msgspec.structs.replace(pinned, decision=msgspec.structs.replace(pinned.decision, inputs=inputs))
    await store_request(sqlite_engine, pinned)
    for number in range(3):
        await store_request(sqlite_engine, routed(f"a{number}", 1, created_at=2000.0 + number))
    assert NEWEST >= 1000
    assert len(await newest_requests(sqlite_engine)) == 3
    assert [one.tier for one in await newest_requests(sqlite_engine, newest=2)] == [1, 1]


async def test_words_say_what_was_asked_what_it_cost_and_what_is_a_prior(sqlite_engine: AsyncEngine) -> None:
    for number in range(9):
        await store_request(sqlite_engine, routed(f"a{number}", 1))
    await store_request(sqlite_engine, routed("z", 4, classes=[0.0, 0.0, 0.0, 1.0]))
    seen = traffic(await newest_requests(sqlite_engine))

    cost, mix = traffic_in_words(seen)

    assert cost.startswith(
        "Of the last 10 requests, 90% were answered by tier 1. That cost $13.00; always tier 4 would have cost $40.00: "
        "68% less ["
    )
    assert mix == "By difficulty they are 90% SIMPLE and 10% EXPERT."
    assert expected_in_words(seen, 0) == (
        "91% of the answers are expected to be as good as tier 4's. That is not measured yet (0 verified answers): it "
        "is the general estimate that AIO ships with."
    )
    half = msgspec.structs.replace(seen, with_labels=5)
    assert expected_in_words(half, 37, kind_share(Tally(10, 10.0, 10.0, 9.0), None)) == (
        "91% of the answers are expected to be as good as tier 4's. For 50% of the requests this rests on labels; "
        "there are 37. Verified on a sample of 10 answers: 90% [60%, 98%] were as good."
    )


async def test_while_routing_is_only_watched_words_say_what_it_would_do(sqlite_engine: AsyncEngine) -> None:
    for number in range(2):
        made = routed(f"w{number}", 4)
        watched = msgspec.structs.replace(made.decision, would_be=1)
        await store_request(sqlite_engine, msgspec.structs.replace(made, decision=watched))
    [text, _] = traffic_in_words(traffic(await newest_requests(sqlite_engine)))
    assert text.startswith(
        "Routing is only watched. Of the last 2 requests it would send 100% to tier 1. That would cost $2.00; tier 4 "
        "for all would cost $8.00: 75% less"
    )


async def test_a_key_with_a_curve_says_what_its_labels_changed(sqlite_engine: AsyncEngine, model: OutcomeModel) -> None:
    await label(sqlite_engine, model, "alice", 60)
    said = in_words((await learned(sqlite_engine, model)).keys[0])
    assert "alice: 60 of 100 labels; from about 100 on, the key has its own model." in said
    assert "On its 20 newest labels, the prediction error fell from" in said
    assert "Against the 20 labels of all tiers among them, the default setting saves" in said
    assert "of what the best possible choice gains." in said
