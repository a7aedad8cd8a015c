"""`aio quantize` makes a folder, and `aio quality compare` says what it may be used for."""

import json
import os
from importlib import resources
from pathlib import Path

import pytest

from tests.gateway.in_process_cli import aio
from tests.inference_core.quantization.tiny_model import TEXT, write_tiny_model
from tests.process_tree import children, command


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"))


def test_a_model_is_quantised_compared_and_judged(model: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    cache = ("--cache-dir", str(tmp_path / "cache"))
    made = aio("quantize", str(model), str(tmp_path / "int8"), "--method", "int8", "--samples", "3", *cache)
    assert made.exit_code == 0, made.output
    assert "times smaller than 16-bit ones" in made.output
    shown = aio(
        "quality", "compare", str(model), str(tmp_path / "int8"), "--text", str(text), "--tokens", "128",
        "--generations", "1", "--generation-tokens", "4", "--report", str(tmp_path / "report.json"), *cache,
    )  # fmt: skip
    assert shown.exit_code == 0, shown.output
    assert "hidden_cosine" in shown.output
    assert "no questions were asked" in shown.output
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["text"]["hidden_cosine"] > 0.99
    assert [verdict["use"] for verdict in report["verdicts"]] == ["chat", "extraction", "reasoning"]


def test_bounds_can_be_changed_and_a_model_that_keeps_none_ends_with_an_error(model: Path, tmp_path: Path) -> None:
    compare = ("quality", "compare", str(model), str(model), "--compute", "float32", "--tokens", "64")
    compare += ("--generations", "0", "--cache-dir", str(tmp_path))
    bounds = [f"--limit={use}.max_perplexity_rise=0.5" for use in ("chat", "extraction")]
    assert aio(*compare, *bounds).exit_code == 0
    impossible = [f"--limit={use}.min_rouge_l=1" for use in ("chat", "extraction", "reasoning")]
    refused = aio(*compare, *impossible)
    assert refused.exit_code == 1
    assert "rouge_l was not measured" in refused.output


def test_options_of_another_method_and_unknown_bounds_are_refused(model: Path, tmp_path: Path) -> None:
    foreign = aio("quantize", str(model), str(tmp_path / "made"), "--method", "fp8", "--group-size", "64")
    assert foreign.exit_code == 2
    assert "--group-size: not for fp8, which accepts --scales" in foreign.output
    bits = aio("quantize", str(model), str(tmp_path / "made"), "--method", "awq", "--bits", "8")
    assert "--bits is gone: the method decides" in bits.output
    bound = aio("quality", "compare", str(model), str(model), "--limit", "chat.speed=1")
    assert "expected USE.NAME=VALUE" in bound.output
    exists = aio("quantize", str(model), str(tmp_path), "--method", "fp8")
    assert exists.exit_code == 1
    assert "exists; give the name of a folder that does not" in exists.output


def test_a_core_refuses_to_start_with_a_model_whose_report_is_missing(model: Path, tmp_path: Path) -> None:
    laptop = resources.files("tiers.catalogs").joinpath("laptop.toml").read_text()
    gate = '\n[core.models.quality]\nreport = "nowhere.json"\n\n[[core.models]]\nname = "smollm2-bf16"'
    gated = laptop.replace('\n[[core.models]]\nname = "smollm2-bf16"', gate)
    assert gated != laptop
    (tmp_path / "gated.toml").write_text(gated)
    for role in ("core", "all"):
        refused = aio("serve", "--role", role, "--catalog", str(tmp_path / "gated.toml"), "--data-dir", str(tmp_path))
        assert refused.exit_code == 1
        assert "core.models 'smollm2-int4'.quality: quality report nowhere.json cannot be read" in refused.output
        # It loads while this process checks whether it may.
        assert [line for line in map(command, children(os.getpid())) if "--channel" in line] == []
