"""A model with a quality gate is loaded only with a good report of its exact weights (SPEC QZ-09, QZ-11)."""

import copy
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from inference_core.loaders.fingerprint import file_fingerprint
from inference_core.quantization.quality_report import (
    MeasuredModel,
    QualityReport,
    QuestionMetrics,
    TextMetrics,
    write_report,
)
from tests.inference_core.tiny_gguf import decoder_weights, write_gguf
from tiers.catalog.catalog import Catalog
from tiers.catalog.load import parse_catalog
from tiers.catalog.quality_gate import require_quality
from tiers.errors import CatalogError

TABLE = tomllib.loads(resources.files("tiers.catalogs").joinpath("laptop.toml").read_text())
GOOD = TextMetrics(
    tokens=2000,
    sha256="",
    reference_perplexity=20.0,
    perplexity=20.1,
    perplexity_rise=0.005,
    mean_kl=0.004,
    top1=0.97,
    logit_cosine=0.999,
    hidden_cosine=0.998,
    lowest_hidden_cosine=0.98,
)
QUESTIONS = QuestionMetrics(
    questions=200,
    max_tokens=256,
    reference_right=60,
    right=55,
    only_reference_right=8,
    only_candidate_right=3,
    loss=0.025,
    p_value=0.11,
)


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """Stands for a model: only its content counts here."""
    file = tmp_path / "model.gguf"
    file.write_bytes(b"weights")
    return file


def written(tmp_path: Path, weights: Path, **changed: Any) -> Path:
    measured = MeasuredModel(
        path=str(weights), fingerprint=file_fingerprint(weights), compute="int4-int8", kv_dtype="bfloat16"
    )
    report = replace(QualityReport(reference=measured, candidate=measured, text=GOOD), **changed)
    write_report(report, tmp_path / "report.json")
    return tmp_path / "report.json"


def catalog(weights: Path, report: Path, thinker: bool = False, **gate: Any) -> Catalog:
    """The laptop catalogue with a gate on tier 1's model; `thinker` gives tier 4 that model too."""
    table = copy.deepcopy(TABLE)
    table["core"]["models"][0] |= {"path": str(weights), "quality": {"report": str(report)} | gate}
    if thinker:
        table["tiers"][3]["model"] = table["core"]["models"][0]["name"]
    return parse_catalog(table, "catalogue 'gated'")


def gpu_catalog(weights: Path, report: Path, kind: str, thinker: bool = False, **gate: Any) -> Catalog:
    """The datacenter catalogue with a gate on tier 2's model, or on that of tiers 3 and 4."""
    table = tomllib.loads(resources.files("tiers.catalogs").joinpath("datacenter.toml").read_text())
    model = table["gpu_groups"][1 if thinker else 0]["models"][0]
    model |= {"path": str(weights), "weights": kind, "quality": {"report": str(report)} | gate}
    return parse_catalog(table, "catalogue 'gated'")


def refusal(given: Catalog, tmp_path: Path) -> str:
    with pytest.raises(CatalogError) as error:
        require_quality(given, tmp_path / "cache")
    return str(error.value)


def test_a_good_report_of_the_same_weights_lets_the_model_load(tmp_path: Path, weights: Path) -> None:
    require_quality(catalog(weights, written(tmp_path, weights)), tmp_path / "cache")


def test_models_without_a_gate_need_no_report(tmp_path: Path) -> None:
    require_quality(parse_catalog(copy.deepcopy(TABLE), "catalogue 'laptop'"), tmp_path / "cache")


def test_a_report_that_is_worse_than_the_catalogue_allows_is_refused(tmp_path: Path, weights: Path) -> None:
    report = written(tmp_path, weights, text=replace(GOOD, perplexity_rise=0.02, hidden_cosine=0.97))
    said = refusal(catalog(weights, report), tmp_path)
    assert "core.models 'smollm2-int4'.quality" in said
    assert "perplexity_rise is 0.0200, at most 0.01 is allowed" in said
    assert "hidden_cosine is 0.9700, at least 0.99 is needed" in said
    require_quality(catalog(weights, report, max_perplexity_rise=0.03, min_hidden_cosine=0.95), tmp_path / "cache")


def test_a_report_of_other_weights_is_refused(tmp_path: Path, weights: Path) -> None:
    report = written(tmp_path, weights)
    weights.write_bytes(b"other weights")
    said = refusal(catalog(weights, report), tmp_path)
    assert "is of other weights" in said
    assert "aio quality compare" in said


def test_a_report_of_another_arithmetic_is_refused(tmp_path: Path, weights: Path) -> None:
    measured = MeasuredModel(path="", fingerprint=file_fingerprint(weights), compute="bfloat16", kv_dtype="bfloat16")
    report = written(tmp_path, weights, candidate=measured)
    assert "compute = bfloat16, not int4-int8" in refusal(catalog(weights, report), tmp_path)


def test_a_missing_report_is_refused(tmp_path: Path, weights: Path) -> None:
    assert "cannot be read" in refusal(catalog(weights, tmp_path / "nothing.json"), tmp_path)


def test_a_tier_that_reasons_needs_a_score_of_final_answers(tmp_path: Path, weights: Path) -> None:
    report = written(tmp_path, weights)
    assert "tier-4 reasons with this model" in refusal(catalog(weights, report, thinker=True), tmp_path)
    report = written(tmp_path, weights, questions=QUESTIONS)
    require_quality(catalog(weights, report, thinker=True), tmp_path / "cache")
    said = refusal(catalog(weights, report, thinker=True, max_exact_match_loss=0.01), tmp_path)
    assert "exact match falls by 0.0250 (60 to 55 of 200 right" in said


def measured(weights: Path, compute: str) -> MeasuredModel:
    return MeasuredModel(path=str(weights), fingerprint=file_fingerprint(weights), compute=compute, kv_dtype="bfloat16")


@pytest.mark.parametrize(("kind", "compute"), [("gptq-int4", "int4"), ("bfloat16", "bfloat16")])
def test_models_of_gpu_groups_are_asked_for_reports_of_the_same_numbers(
    tmp_path: Path, weights: Path, kind: str, compute: str
) -> None:
    report = written(tmp_path, weights, candidate=measured(weights, compute))
    require_quality(gpu_catalog(weights, report, kind), tmp_path / "cache")
    said = refusal(gpu_catalog(weights, report, kind, max_perplexity_rise=0.001), tmp_path)
    assert "gpu_groups 'gpu-8b'.models 'llama-3.1-8b-int4'.quality" in said
    assert "perplexity_rise is 0.0050, at most 0.001 is allowed" in said
    other = written(tmp_path, weights, candidate=measured(weights, "float32"))
    assert f"not {compute}" in refusal(gpu_catalog(weights, other, kind), tmp_path)


def test_a_gpu_model_that_reasons_needs_a_score_of_final_answers(tmp_path: Path, weights: Path) -> None:
    report = written(tmp_path, weights, candidate=measured(weights, "int4"))
    assert "tier-4 reasons with this model" in refusal(gpu_catalog(weights, report, "awq-int4", thinker=True), tmp_path)


def test_what_no_report_can_show_is_refused_with_a_gate(tmp_path: Path, weights: Path) -> None:
    report = written(tmp_path, weights)
    said = refusal(gpu_catalog(weights, report, "fp8"), tmp_path)
    assert "comparisons cannot compute as cards do with compute fp8" in said


def test_a_file_that_is_rounded_to_int8_at_load_is_refused_with_a_gate(tmp_path: Path) -> None:
    plain = tmp_path / "plain.gguf"
    write_gguf(plain, decoder_weights())
    report = written(tmp_path, plain, candidate=measured(plain, "int4-int8"))
    assert "is rounded to INT8 when it is loaded" in refusal(gpu_catalog(plain, report, "int8"), tmp_path)


def test_only_the_cores_that_are_served_here_are_asked(tmp_path: Path, weights: Path) -> None:
    missing = gpu_catalog(weights, tmp_path / "nothing.json", "gptq-int4")
    require_quality(missing, tmp_path / "cache", ["cpu", "gpu-70b"])
    with pytest.raises(CatalogError, match="cannot be read"):
        require_quality(missing, tmp_path / "cache", ["gpu-8b"])


def test_bounds_that_make_no_sense_are_named(tmp_path: Path, weights: Path) -> None:
    with pytest.raises(CatalogError, match=r"core\.models\[0\]\.quality\.min_hidden_cosine"):
        catalog(weights, tmp_path / "report.json", min_hidden_cosine=1.5)
    with pytest.raises(CatalogError, match=r"quality\.least = 1: unknown"):
        catalog(weights, tmp_path / "report.json", least=1)
