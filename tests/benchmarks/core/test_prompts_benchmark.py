"""The benchmark of prompts: what it compares, and what it says where there is one arithmetic."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.__main__ import main
from benchmarks.core import prompt_accuracy, prompt_speed
from benchmarks.core.prompt_accuracy import compare_on_text, kernels, shared_answers
from inference_core.model_spec import ModelSpec
from inference_core.native import cpu
from tests.inference_core.hash_model import hash_core

pytestmark = pytest.mark.skipif(not cpu.AVAILABLE, reason="the native kernels were not built (no C++ compiler)")


def test_answers_are_compared_whole_by_first_token_and_by_where_they_part() -> None:
    row = shared_answers([[1, 2, 3], [1, 2], [5, 6], [7]], [[1, 2, 3], [1, 2, 9], [5, 7], [8]])
    assert row == {"prompts": 4, "same": 0.25, "same_first_token": 0.75, "median_tokens_before_they_part": 1}


def test_a_machine_with_one_arithmetic_says_so_and_speed_is_not_emulated() -> None:
    with kernels("portable"):
        plain = CliRunner().invoke(main, ["prompts"])
    assert plain.exit_code == 0
    assert "kernels are portable: prompts are computed as generated tokens are" in plain.output
    refused = CliRunner().invoke(main, ["prompts", "--emulated", "--part", "kernels"])
    assert refused.exit_code == 2


def test_kernels_are_put_back_afterwards() -> None:
    before = cpu.extension().instruction_set()
    with kernels("amx-emulated"):
        assert cpu.extension().instruction_set() == "amx-emulated"
    assert cpu.extension().instruction_set() == before


def test_streams_ask_one_prompt_after_another_and_every_token_is_counted() -> None:
    core = hash_core("m")
    measured = prompt_speed._run(core, [[[1, 2, 3], [4, 5]], [[6] * 40, [7]], [[8], [9]]], 5, "x")
    assert len(measured["ttft"]) == 6
    assert len(measured["itl"]) == 6 * 4
    assert measured["rate"][0] > 0


@pytest.mark.skipif(cpu.AVAILABLE and cpu.extension().prompt_format() is None, reason="one arithmetic here")
def test_both_arithmetics_are_compared_with_float32_and_with_each_other(
    tiny_llama: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Bytes:
        def encode(self, text: str) -> list[int]:
            return [ord(letter) % 64 for letter in text]

    monkeypatch.setattr(prompt_accuracy, "load_tokenizer", lambda path: Bytes())
    model = ModelSpec(name="tiny", path=tiny_llama, compute="int4-int8")
    best = cpu.extension().instruction_set()

    text = list(compare_on_text(model, tmp_path, best, tokens=40, window=20))

    assert [(row["prefill_arithmetic"], row["against"]) for row in text] == [
        ("exact", "float32"), ("fast", "float32"), ("fast", "exact"),
    ]  # fmt: skip
    assert all(row["perplexity"] > 1 for row in text)


@pytest.fixture
def model(tiny_llama: str) -> ModelSpec:
    return ModelSpec(name="tiny", path=tiny_llama, compute="bfloat16")


def test_every_part_of_the_table_is_measured(model: ModelSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_speed, "STREAM_PROMPT", 6)
    monkeypatch.setattr(prompt_speed, "STREAM_ANSWER", 3)
    with kernels("amx-emulated"):
        products = list(prompt_speed.kernel_rows(model, tmp_path, (2,), 1 << 20))
        (prompt,) = prompt_speed.prompt_rows(model, tmp_path, tokens=20, rounds=1)
        streams = list(prompt_speed.stream_rows(model, tmp_path, streams=(2,), rounds=1))
    assert {(row["scheme"], row["projection"]) for row in products} == {
        (scheme, name) for scheme in prompt_speed.SCHEMES for name in ("qkv", "output", "gate_up", "down")
    }
    assert all(row["exact_gmac_s"] > 0 and row["fast_gmac_s"] > 0 for row in products)
    assert prompt["exact_ms"] > 0
    assert prompt["fast_ms"] > 0
    assert [row["prefill_arithmetic"] for row in streams] == ["exact", "fast"]
