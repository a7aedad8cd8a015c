"""The benchmark of prompts in tiles: what it compares, and what it says where there are none."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.__main__ import main
from benchmarks.core import prompt_speed
from benchmarks.core.prompt_accuracy import exact_kernels, kernels, shared_answers
from inference_core.model_spec import ModelSpec
from inference_core.native import cpu
from tests.inference_core.hash_model import hash_core

pytestmark = pytest.mark.skipif(not cpu.AVAILABLE, reason="the native kernels were not built (no C++ compiler)")


def test_answers_are_compared_whole_by_first_token_and_by_where_they_part() -> None:
    row = shared_answers([[1, 2, 3], [1, 2], [5, 6], [7]], [[1, 2, 3], [1, 2, 9], [5, 7], [8]])
    assert row == {"prompts": 4, "same": 0.25, "same_first_token": 0.75, "median_tokens_before_they_part": 1}


@pytest.mark.skipif(cpu.AVAILABLE and cpu.extension().instruction_sets()[0] == "amx", reason="this machine has AMX")
def test_a_machine_without_amx_is_said_to_have_none_and_speed_is_not_emulated() -> None:
    plain = CliRunner().invoke(main, ["amx"])
    assert plain.exit_code == 0
    assert "This machine has no AMX" in plain.output
    refused = CliRunner().invoke(main, ["amx", "--emulated", "--part", "kernels"])
    assert refused.exit_code == 2


def test_kernels_are_put_back_afterwards() -> None:
    before = cpu.extension().instruction_set()
    with kernels("amx-emulated"):
        assert cpu.extension().instruction_set() == "amx-emulated"
    assert cpu.extension().instruction_set() == before
    assert exact_kernels() != "amx"


def test_streams_ask_one_prompt_after_another_and_every_token_is_counted() -> None:
    core = hash_core("m")
    measured = prompt_speed._run(core, [[[1, 2, 3], [4, 5]], [[6] * 40, [7]], [[8], [9]]], 5, "x")
    assert len(measured["ttft"]) == 6
    assert len(measured["itl"]) == 6 * 4
    assert measured["rate"][0] > 0


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
