"""The benchmark of prompts: what it compares, and what it says where there is one arithmetic."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.__main__ import main
from benchmarks.core import prompt_accuracy
from benchmarks.core.prompt_accuracy import compare_on_text, kernels, shared_answers
from inference_core.model_spec import ModelSpec
from inference_core.native import cpu

pytestmark = pytest.mark.skipif(not cpu.AVAILABLE, reason="the native kernels were not built (no C++ compiler)")


def test_answers_are_compared_whole_by_first_token_and_by_where_they_part() -> None:
    row = shared_answers([[1, 2, 3], [1, 2], [5, 6], [7]], [[1, 2, 3], [1, 2, 9], [5, 7], [8]])
    assert row == {"prompts": 4, "same": 0.25, "same_first_token": 0.75, "median_tokens_before_they_part": 1}


def test_a_machine_with_one_arithmetic_says_so() -> None:
    with kernels("portable"):
        plain = CliRunner().invoke(main, ["prompts"])
    assert plain.exit_code == 0
    assert "kernels are portable: prompts are computed as generated tokens are" in plain.output


def test_kernels_are_put_back_afterwards() -> None:
    before = cpu.extension().instruction_set()
    with kernels("amx-emulated"):
        assert cpu.extension().instruction_set() == "amx-emulated"
    assert cpu.extension().instruction_set() == before


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
