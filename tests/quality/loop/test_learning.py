"""What is told of learning: labels, classes, saving and expected quality, by key and in words."""

from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from loop_world import record, store_request
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.decision import Prediction
from gateway.cli import main
from migrations.tables import training_rows
from quality.learning import Learned, in_words, learned_by_key
from quality.record import Record


def routed(request_id: str, tier: int, **changes: Any) -> Record:
    made = record(request_id, tier=tier, **changes)
    prediction = Prediction(
        p_ok=[0.9, 0.95, 0.97, 1.0], kind="prior", novelty=1.0, classifier_version="v1", classes=[0.7, 0.2, 0.1, 0.0]
    )
    inputs = msgspec.structs.replace(made.decision.inputs, prediction=prediction)
    return msgspec.structs.replace(made, decision=msgspec.structs.replace(made.decision, inputs=inputs))


async def label(engine: AsyncEngine, key: str | None, count: int) -> None:
    row = {
        "key_id": key, "source": "probe", "feature_spec": "x", "embedding": b"", "no_worse": [True, True],
        "weights": [1.0, 0.0], "created_at": 5.0,
    }  # fmt: skip
    async with engine.begin() as connection:
        rows = [row | {"request_id": f"{key}-{i}"} for i in range(count)]
        await connection.execute(insert(training_rows), rows)


async def test_keys_are_told_by_their_decisions_and_labels(any_engine: AsyncEngine) -> None:
    for number in range(3):
        await store_request(any_engine, routed(f"a{number}", 1))
    await store_request(any_engine, routed("a3", 4))
    await store_request(any_engine, routed("b0", 2, key_id=None))
    await store_request(any_engine, routed("old", 4, created_at=1.0))
    await label(any_engine, "alice", 37)
    await label(any_engine, "carol", 2)

    alice, nobody, carol = await learned_by_key(any_engine, 500.0)

    assert (alice.key_id, alice.labels, alice.decisions) == ("alice", 37, 4)
    # Three of one dollar and one of four, instead of sixteen.
    assert alice.saving == pytest.approx(1 - 7 / 16, abs=1e-4)
    assert alice.saving_low is not None
    assert alice.saving_high is not None
    assert alice.saving_low < alice.saving < alice.saving_high
    assert alice.classes["SIMPLE"] == pytest.approx(0.7)
    assert alice.p_ok == pytest.approx((3 * 0.9 + 1.0) / 4)
    assert (nobody.key_id, nobody.decisions, nobody.saving, nobody.saving_low) == (None, 1, 0.5, None)
    assert (carol.labels, carol.decisions, carol.saving) == (2, 0, None)


def test_words_say_how_far_a_key_is() -> None:
    few = Learned(
        key_id="k", labels=37, decisions=9, classes={"SIMPLE": 0.6, "EXPERT": 0.4}, saving=0.5, saving_low=0.4,
        saving_high=0.6, p_ok=0.93,
    )  # fmt: skip
    assert in_words(few) == (
        "key k: 37 of 100 labels collected. Its prompts are 60% SIMPLE, 40% EXPERT. Its last 9 decisions save 50% "
        "[40%, 60%] of the strongest tier's cost; 93% of the answers are expected to be as good."
    )
    assert "120 labels: routing follows its own outcomes" in in_words(msgspec.structs.replace(few, labels=120))


def test_the_command_says_when_there_is_nothing_yet(tmp_path: Any) -> None:
    ran = CliRunner().invoke(main, ["report", "learning", "--data-dir", str(tmp_path)])
    assert ran.exit_code == 0, ran.output
    assert "Nothing was asked and nothing labelled yet." in ran.output
