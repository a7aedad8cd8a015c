"""Speed, memory and quality of a model, by arithmetic and KV cache, side by side (SPEC FR-04)."""

import msgspec
import pytest
from click.testing import CliRunner

from gateway.cli import main
from gateway.planning.load_test.tradeoffs import CACHES, COMPUTES, Setting, Tradeoff, usual_settings
from inference_core.model_spec import ModelSpec
from tests.gateway.tiny_versions import tiny_catalog
from tests.inference_core.quantization.tiny_model import write_tiny_model

MEASURED = ["float32/float32", "float32/int8", "bfloat16/bfloat16"]


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("tradeoffs")
    write_tiny_model(folder / "tiny")
    (folder / "catalogue.toml").write_text(tiny_catalog(folder / "tiny"))
    load = ["--concurrency", "1", "2", "--prompt-tokens", "8", "--output-tokens", "4", "--text-tokens", "128"]
    chosen = [word for setting in MEASURED for word in ("--setting", setting)]
    folders = ["--catalog", str(folder / "catalogue.toml"), "--cache-dir", str(folder / "cache")]
    return ["bench", "tradeoffs", *folders, *load, *chosen]


def test_each_setting_has_its_speed_memory_and_loss(command: list[str]) -> None:
    done = CliRunner().invoke(main, [*command, "--json"])
    assert done.exit_code == 0, done.output
    exact, small_cache, half = msgspec.json.decode(done.stdout, type=list[Tradeoff])
    assert (exact.compute, exact.kv_dtype) == ("float32", "float32")
    assert exact.perplexity_rise == pytest.approx(0, abs=1e-9)
    assert exact.top1 == exact.same_first_token == 1
    assert exact.weights_mb > 0
    assert exact.kv_bytes_per_token > half.kv_bytes_per_token > small_cache.kv_bytes_per_token
    for row in (exact, small_cache, half):
        assert set(row.tokens_per_second) == set(row.ttft_p50_ms) == {1, 2}
        assert min(row.tokens_per_second.values()) > 0
    assert small_cache.perplexity_rise != 0
    assert half.perplexity_rise != 0


def test_the_table_has_a_row_for_each_setting(command: list[str]) -> None:
    shown = CliRunner().invoke(main, command)
    assert shown.exit_code == 0, shown.output
    head, *rows = shown.stdout.strip().splitlines()
    assert "tokens/s, 1" in head
    assert "perplexity" in head
    assert [tuple(row.split()[:2]) for row in rows] == [tuple(setting.split("/")) for setting in MEASURED]


def test_each_arithmetic_and_each_cache_is_measured_unasked() -> None:
    settings = usual_settings(ModelSpec(name="m", path="m", compute="int4"))
    assert {setting.compute for setting in settings} == set(COMPUTES)
    assert {setting.kv_dtype for setting in settings if setting.compute == "int4"} == set(CACHES)
    assert len(settings) == len(set(settings))


@pytest.mark.parametrize("text", ["int4", "int3/bfloat16", "int4/fp8", "int4/bfloat16/x"])
def test_what_is_no_setting_is_refused_with_those_that_are(text: str, command: list[str]) -> None:
    done = CliRunner().invoke(main, [*command, "--setting", text])
    assert done.exit_code == 2
    assert "expected COMPUTE/CACHE with COMPUTE of float32, bfloat16, int4, int4-int8" in done.output


def test_a_setting_is_an_arithmetic_and_a_cache() -> None:
    assert Setting("int4-int8", "bfloat16") in usual_settings(ModelSpec(name="m", path="m", compute="float32"))
