"""Decisions without any outcomes: the examples of the specification go to the expected tiers, and better than by length
alone."""

from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from classifier.complexity.model import shipped_complexity
from classifier.errors import TrainingDataError
from classifier.features.routing_input import routing_input_of_text
from classifier.prompt_predictions import PromptRow, predict_lines
from classifier.registry.artefact import default_artefact
from classifier.training.fitting.complexity import LabelledPrompt, fit_complexity, predicted
from classifier.training.metrics.complexity_report import measured, read_labelled
from tests.classifier.complexity.test_complexity_model import MODEL
from tests.shared_data import rows as shared_rows

HARD = "Prove, step by step, that every bounded monotone sequence converges, and say where completeness is used."


def tiers_of(*prompts: str, quality: float | None = None) -> list[int]:
    rows = [PromptRow(place, prompt) for place, prompt in enumerate(prompts)]
    lines = b"".join(found for _, found in predict_lines(default_artefact(), rows, quality_target=quality, processes=1))
    return [msgspec.json.decode(line)["tier"] for line in lines.splitlines()]


@pytest.mark.parametrize(
    "prompt",
    ["What is the capital of France?", "Hi!", "Thanks!", "Translate 'good morning' to Spanish", "¿Cómo te llamas?"],
)
def test_a_question_for_a_small_model_goes_to_tier_1(prompt: str) -> None:
    """RT-01."""
    assert tiers_of(prompt) == [1]


@pytest.mark.parametrize(
    "prompt",
    [
        HARD,
        "Analyze the trade-offs between consistency and availability for a payment ledger over three regions, and "
        "recommend a replication design with its failure modes.",
    ],
)
def test_reasoning_in_several_steps_goes_to_tier_3_or_4(prompt: str) -> None:
    """RT-01."""
    assert tiers_of(prompt)[0] >= 3


def test_a_higher_target_never_lowers_a_tier() -> None:
    """RT-05."""
    prompts = ["Hi!", "Summarise this memo in three sentences: sales are up, costs too.", HARD]
    by_target = [tiers_of(*prompts, quality=target / 10) for target in range(11)]
    for lower, higher in pairwise(by_target):
        assert all(a <= b for a, b in zip(lower, higher, strict=True))


def test_the_shipped_model_beats_the_length_alone() -> None:
    """RT-03."""
    rows = [
        LabelledPrompt(row["prompt"], [row["tier"]], (row["lo"], row["hi"]))
        for row in shared_rows("complexity_examples.jsonl")
    ]
    prompts = [routing_input_of_text(row.prompt) for row in rows]
    report = measured(rows, predicted(shipped_complexity(), prompts, MODEL))
    assert report.model.macro_f1 > report.length.macro_f1 + 0.1
    assert report.model.within > 0.8
    assert report.model.simple_at_1_2 > 0.9
    assert report.model.expert_at_3_4 > 0.85


def test_a_model_learns_the_classes_that_its_rows_show() -> None:
    easy, hard = ("hello {}", "what time is it in {}"), ("prove lemma {} rigorously", "derive bound {} with proof")
    rows = [LabelledPrompt(form.format(i), [1]) for i in range(12) for form in easy]
    rows += [LabelledPrompt(form.format(i), [4, 4]) for i in range(12) for form in hard]
    asked = [routing_input_of_text(text) for text in ("hello you", "prove it rigorously")]
    found = predicted(fit_complexity(rows, MODEL), asked, MODEL)
    assert found[0, 0] > 0.5 > found[1, 0]


@pytest.mark.parametrize("rest", ["", ', "classes": []', ', "classes": [5]'])
def test_rows_without_a_class_are_refused_with_their_line(tmp_path: Path, rest: str) -> None:
    (tmp_path / "rows").write_text(f'{{"prompt": "y", "classes": [1]}}\n{{"prompt": "x"{rest}}}\n')
    with pytest.raises(TrainingDataError, match="line 2"):
        read_labelled(tmp_path / "rows")


@pytest.mark.parametrize(
    "words",
    ["theorem " * 10, "quantum " * 10, "tensor proof manifold lemma topology gradient integral theorem lattice "],
)
def test_hard_words_around_an_easy_question_do_not_make_it_hard(words: str) -> None:
    assert tiers_of(f"{words}2+2")[0] <= 2


@pytest.mark.parametrize(
    "prompt",
    [
        "Démontre le théorème d'Arzelà-Ascoli.",
        "Докажи теорему Стоуна-Вейерштрасса.",
        "证明黎曼映射定理",
        "リーマン写像定理を証明せよ",
        "Napisz kompilator języka Lisp",
        "Thibitisha nadharia ya Bezout",
        "Bana bir işletim sistemi zamanlayıcısı tasarla ve doğruluğunu kanıtla",
    ],
)
def test_a_short_hard_request_of_another_language_goes_to_tier_3_or_4(prompt: str) -> None:
    assert tiers_of(prompt)[0] >= 3


def test_instructions_on_the_form_of_the_answer_seldom_move_a_prompt() -> None:
    said = " Answer in a table with two columns."
    prompts = [row["prompt"] for row in shared_rows("complexity_examples.jsonl") if len(row["prompt"]) < 300]
    plain, wrapped = tiers_of(*prompts), tiers_of(*(prompt + said for prompt in prompts))
    assert len(set(plain)) == 4
    assert sum(one == other for one, other in zip(plain, wrapped, strict=True)) >= 0.65 * len(prompts)
