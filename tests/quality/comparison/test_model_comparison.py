"""A model compared with itself loses nothing; a broken one is refused, and every verdict says why (SPEC QZ-09)."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file, save_file

from inference_core.errors import ModelFileError
from inference_core.quantization.calibration import CalibrationText
from inference_core.quantization.eight_bit import SmoothQuant
from inference_core.quantization.quality_report import (
    DEFAULT_LIMITS,
    FirstTokenMetrics,
    QualityReport,
    read_report,
    shortfalls,
    write_report,
)
from inference_core.quantization.quantize_model import quantize_model
from quality.evaluation.effort import Effort
from quality.evaluation.model_outputs import Side, Variant
from quality.evaluation.quantised_model import (
    ComparisonError,
    Question,
    compare_models,
    read_questions,
    short_questions,
)
from tests.inference_core.quantization.tiny_model import TEXT, write_tiny_model

EFFORT = Effort(text_tokens=192, window=96, first_tokens=8, generations=2, generation_tokens=6, answer_tokens=6)
FLOAT = Variant("float32", "float32")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def compared(model: Path, candidate: Path, cache: Path, questions: list[Question] | None = None) -> QualityReport:
    return compare_models(
        Side(str(model), FLOAT),
        Side(str(candidate), FLOAT),
        cache,
        limits=DEFAULT_LIMITS,
        text=TEXT,
        questions=questions or [],
        effort=EFFORT,
    )


def verdicts(report: QualityReport) -> dict[str, bool]:
    return {verdict.use: verdict.passes for verdict in report.verdicts}


def test_a_model_compared_with_itself_has_lost_nothing(model: Path, cache: Path) -> None:
    report = compared(model, model, cache)
    assert report.text.perplexity_rise == pytest.approx(0, abs=1e-9)
    assert report.text.mean_kl == pytest.approx(0, abs=1e-9)
    assert report.text.hidden_cosine == pytest.approx(1)
    assert report.text.top1 == 1
    assert report.first_tokens == FirstTokenMetrics(short_questions=8, same_first_token=8)
    assert report.generations is not None
    assert (report.generations.rouge_l, report.generations.same) == (1, 1)
    assert report.candidate.fingerprint == report.reference.fingerprint


def test_reasoning_is_not_passed_without_a_score_of_final_answers(model: Path, cache: Path) -> None:
    report = compared(model, model, cache)
    assert verdicts(report) == {"chat": True, "extraction": True, "reasoning": False}
    assert "no questions were asked" in report.verdicts[-1].reasons[0]


def test_reasoning_is_not_passed_where_the_reference_is_never_right(model: Path, cache: Path) -> None:
    report = compared(model, model, cache, [Question("What is 2 + 2?", "4")] * 3)
    assert report.questions is not None
    assert report.questions.questions == 3
    assert not verdicts(report)["reasoning"]
    assert "are needed to see a loss" in report.verdicts[-1].reasons[0]


def test_a_deliberately_broken_quantiser_is_refused_for_every_use(model: Path, cache: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(model, broken)
    tensors = load_file(broken / "model.safetensors")
    name = "model.layers.1.mlp.down_proj.weight"
    tensors[name] = torch.roll(tensors[name], 1, dims=0)
    save_file(tensors, broken / "model.safetensors")
    report = compared(model, broken, cache)
    assert not any(verdicts(report).values())
    assert any("hidden_cosine" in reason for reason in report.verdicts[0].reasons)
    assert report.first_tokens is not None
    assert report.first_tokens.same_first_token < 8


def test_overlap_below_a_bound_of_the_gate_is_a_reason_to_refuse(model: Path, cache: Path) -> None:
    """QZ-10: BLEU and ROUGE-L decide where bounds are set, and what was not measured does not pass."""
    report = compared(model, model, cache)
    assert report.generations is not None
    limits = replace(DEFAULT_LIMITS["chat"], min_rouge_l=0.98, min_bleu=0.99)
    enough = replace(report, generations=replace(report.generations, rouge_l=0.98, bleu=0.99))
    assert shortfalls(enough, limits) == []
    worse = replace(report, generations=replace(report.generations, rouge_l=0.97, bleu=0.985))
    assert shortfalls(worse, limits) == [
        "rouge_l is 0.9700, at least 0.98 is needed",
        "bleu is 0.9850, at least 0.99 is needed",
    ]
    assert shortfalls(replace(report, generations=None), limits) == [
        "rouge_l was not measured, at least 0.98 is needed",
        "bleu was not measured, at least 0.99 is needed",
    ]


def test_sixty_different_short_questions_are_asked() -> None:
    questions = short_questions()
    assert len(set(questions)) == len(questions) == 60
    assert all(question.strip() and len(question.split()) <= 14 for question in questions)


def test_a_text_that_the_candidate_was_calibrated_on_is_refused(model: Path, cache: Path, tmp_path: Path) -> None:
    made = tmp_path / "made"
    quantize_model(model, made, SmoothQuant(), CalibrationText(TEXT, "a novel"), samples=2, window=64)
    with pytest.raises(ComparisonError, match=r"calibrated on this very text \(a novel\)"):
        compared(model, made, cache)


def test_models_of_different_vocabularies_are_refused(model: Path, cache: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(model, other)
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    ids = tokenizer["model"]["vocab"]
    ids["a"], ids["b"] = ids["b"], ids["a"]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(ModelFileError, match="different vocabularies"):
        compared(model, other, cache)


def test_a_report_reads_back_as_it_was_written(model: Path, cache: Path, tmp_path: Path) -> None:
    report = compared(model, model, cache)
    write_report(report, tmp_path / "report.json")
    assert read_report(tmp_path / "report.json") == report


def test_a_figure_that_is_not_a_number_keeps_no_bound(model: Path, cache: Path) -> None:
    report = compared(model, model, cache)
    lost = replace(report, text=replace(report.text, perplexity_rise=float("nan"), hidden_cosine=float("nan")))
    assert len(shortfalls(lost, DEFAULT_LIMITS["chat"])) == 2


def test_questions_whose_answers_are_no_numbers_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "questions.jsonl"
    file.write_text('{"prompt": "Where?", "answer": "here"}\n')
    with pytest.raises(ComparisonError, match="'here' is no number"):
        read_questions(file)
    file.write_text('{"prompt": "How many?", "answer": "3"}\n\n{"prompt": 5}\n')
    assert read_questions(file, limit=1) == [Question("How many?", "3")]
    with pytest.raises(ComparisonError, match="line 3"):
        read_questions(file)
