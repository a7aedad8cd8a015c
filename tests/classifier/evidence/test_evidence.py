"""Evidence of answers: the meaning of each number, and finite numbers for any text in little time."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from classifier.evidence import EVIDENCE_NAMES, evidence_features, with_agreement
from tests.examples import examples


def features(text: str, **known: object) -> dict[str, float]:
    return dict(zip(EVIDENCE_NAMES, evidence_features(text, **known).tolist(), strict=True))  # type: ignore[arg-type]


@settings(max_examples=examples(200), deadline=None)
@given(
    text=st.text(st.characters(), max_size=400) | st.text('{["`,. a1\n', max_size=60),
    finish=st.sampled_from([None, "stop", "length", "odd"]),
    uncertainty=st.lists(st.floats(), max_size=20),
    agreement=st.none() | st.floats(0, 1),
)
def test_any_text_gives_finite_numbers(
    text: str, finish: str | None, uncertainty: list[float], agreement: float | None
) -> None:
    found = evidence_features(text, finish, uncertainty, agreement)
    assert found.shape == (len(EVIDENCE_NAMES),)
    assert found.dtype == np.float32
    assert np.isfinite(found).all()


def test_uncertainty_is_summarised_by_quantiles_over_the_whole_answer() -> None:
    found = features("x", uncertainty=[0.0] * 8 + [math.e - 1] * 2)
    assert (found["uncertainty_known"], found["uncertainty_p50"], found["uncertainty_p10"]) == (1, 0, 0)
    assert found["uncertainty_worst"] == pytest.approx(1.0)
    assert 0 < found["uncertainty_p90"] <= 1.0
    unknown = features("x")
    assert not any(value for name, value in unknown.items() if name.startswith("uncertainty"))


@pytest.mark.parametrize(
    ("name", "yes", "no"),
    [
        ("hedges", "I think it might be 4, but I'm not sure.", "It is 4."),
        ("hedges", "Vielleicht sind es vier.", "Es sind vier."),
        ("refusal", "I'm sorry, but as an AI I cannot help with that.", "Here is how: turn the key."),
        ("refusal", "抱歉，我无法回答。", "答案是四。"),
        (
            "ends_mid_sentence",
            "The quick brown fox jumps over the lazy dog and then the",
            "The fox jumps over the dog.",
        ),
        ("repetition", "to be or not to be " * 5, "to be or not to be, that is the question"),
        ("code_unclosed", "```python\nx = 1\n", "```python\nx = 1\n```"),
        ("json_invalid", '{"a": [1, 2}', '{"a": [1, 2]}'),
        ("has_number", "Thus it is\n42.", "Thus 42 it is,\nas you said."),
        ("is_empty", " \n", "yes"),
    ],
)
def test_the_form_of_a_text_is_part_of_the_evidence(name: str, yes: str, no: str) -> None:
    assert features(yes)[name] > 0
    assert features(no)[name] == 0


def test_length_end_and_agreement_are_part_of_the_evidence() -> None:
    assert features("word " * 80, finish_reason="length")["cut_off"] == 1
    assert features("word " * 80)["log_length"] == pytest.approx(math.log1p(100))
    assert (features("4")["agreement_known"], features("4", agreement=1.0)["agreement"]) == (0, 1)
    assert with_agreement(evidence_features("4"), 1.0).tolist() == evidence_features("4", agreement=1.0).tolist()


def test_brackets_without_end_are_broken_json_and_take_no_deep_recursion() -> None:
    assert features("[[" * 60_000 + '"')["json_invalid"] in (0, 1)
    assert features('{"a":' * 60_000)["json_invalid"] == 1


def test_only_the_ends_of_a_long_text_are_read() -> None:
    filler = "".join(f"w{number} " for number in range(50_000))
    assert features("I think so. " + filler + " Probably.")["hedges"] == 2
    assert features(filler + " I think so. " + filler)["hedges"] == 0
