"""Names of kinds of prompts: words that distinguish them and reveal no single prompt."""

import msgspec
import numpy as np
import pytest
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.complexity.classes import Complexity
from classifier.features.surface_features import FEATURE_NAMES
from migrations.tables.quality import training_rows
from quality.estimates.verified_sample import ALL, Kind
from quality.learning.kind_names import LEAST_PROMPTS, KindNames, kind_names, look_of, plain_name, words_of
from tests.classifier.features.named_features import named_features
from tests.quality.loop_world import record, store_request

SIMPLE, EXPERT = (Kind(by="class", complexity=one) for one in (Complexity.SIMPLE, Complexity.EXPERT))
ALICE = Kind(by="application", key_id="alice")


async def asked(engine: AsyncEngine, name: str, prompt: str, complexity: Complexity, key: str | None = "alice") -> None:
    made = record(name, prompt=prompt, key_id=key)
    classes = [0.97 if one == complexity else 0.01 for one in Complexity]
    prediction = msgspec.structs.replace(made.decision.inputs.prediction, classes=classes)
    inputs = msgspec.structs.replace(made.decision.inputs, prediction=prediction)
    decision = msgspec.structs.replace(made.decision, inputs=inputs)
    await store_request(engine, msgspec.structs.replace(made, decision=decision))


async def test_a_class_is_named_by_words_that_other_classes_lack(any_engine: AsyncEngine) -> None:
    for n, word in enumerate(("red", "green", "blue", "white", "black", "brown")):
        await asked(any_engine, f"s{n}", f"Please name a {word} flower, dear helper", Complexity.SIMPLE)
        await asked(any_engine, f"e{n}", f"Prove the theorem on {word} graphs, dear helper", Complexity.EXPERT)
    names = await kind_names(any_engine)
    assert names[SIMPLE] == "SIMPLE prompts: flower, name"
    assert names[EXPERT] == "EXPERT prompts: graphs, prove, theorem"
    assert names[ALICE] == "alice, no system prompt: dear, helper, flower, graphs"


async def test_a_word_of_few_prompts_or_of_one_key_among_several_is_not_shown(sqlite_engine: AsyncEngine) -> None:
    for n in range(LEAST_PROMPTS + 1):
        rare = "salary" if n < LEAST_PROMPTS - 1 else "bonus"
        await asked(sqlite_engine, f"s{n}", f"Compare project number {chr(97 + n) * 3} {rare}", Complexity.SIMPLE)
        # The same prompt again is one prompt.
        await asked(sqlite_engine, f"d{n}", "The secret merger", Complexity.SIMPLE)
    assert (await kind_names(sqlite_engine))[SIMPLE] == "SIMPLE prompts: compare, number, project"
    for n in range(LEAST_PROMPTS):
        await asked(sqlite_engine, f"b{n}", f"Compare number {chr(97 + n) * 4}", Complexity.SIMPLE, key="bob")
    assert (await kind_names(sqlite_engine))[SIMPLE] == "SIMPLE prompts: compare, number"


async def test_without_texts_a_kind_is_named_by_what_its_labelled_prompts_look_like(sqlite_engine: AsyncEngine) -> None:
    features = np.array(list(named_features("What is the area of a circle?").values()), "<f4")
    row = {
        "source": "probe", "feature_spec": "s", "embedding": b"", "features": features.tobytes(), "weights": [],
        "no_worse": [], "classes": [0.97, 0.01, 0.01, 0.01], "key_id": "alice", "app": "f00d", "created_at": 5.0,
    }  # fmt: skip
    async with sqlite_engine.begin() as connection:
        rows = [row | {"request_id": f"r{n}"} for n in range(LEAST_PROMPTS)]
        await connection.execute(insert(training_rows), rows)
    names = await kind_names(sqlite_engine)
    assert names == {
        SIMPLE: "SIMPLE prompts: short questions, often on mathematics",
        Kind(by="application", key_id="alice", app="f00d"): (
            "alice, with a system prompt: short questions, often on mathematics"
        ),
    }


async def test_names_are_kept_for_a_while(sqlite_engine: AsyncEngine) -> None:
    names = KindNames(sqlite_engine)
    await asked(sqlite_engine, "a", "One prompt", Complexity.SIMPLE)
    first = await names.now()
    assert SIMPLE in first
    await asked(sqlite_engine, "b", "Another prompt", Complexity.EXPERT)
    assert await names.now() is first


def test_words_of_a_name_are_letters_and_no_stop_words() -> None:
    assert words_of("What is the IBAN DE4450010 of Röntgen's clinic, room 12b?") == {
        "iban",
        "röntgens",
        "clinic",
        "room",
    }


@pytest.mark.parametrize(
    ("text", "look"),
    [
        ("def f(x):\n    return x\nassert f(1) == 1", "short prompts with code"),
        ("Tidy the following up.", "short instructions"),
        ("Where does the cat sleep? " + "It goes on and on. " * 60, "long questions"),
    ],
)
def test_a_look_says_how_long_prompts_are_and_what_they_ask(text: str, look: str) -> None:
    features = np.array([list(named_features(text).values())], np.float32)
    assert features.shape[1] == len(FEATURE_NAMES)
    assert look_of(features).partition(",")[0] == look


def test_a_kind_without_prompts_has_a_plain_name() -> None:
    assert plain_name(ALL) == "all prompts"
    assert plain_name(SIMPLE) == "SIMPLE prompts"
    assert plain_name(ALICE, {"alice": "support"}) == "support, no system prompt"
    assert plain_name(Kind(by="application", app="f00d")) == "requests without a key, with a system prompt"
