"""The naive loop answers as the core does, so that their costs are of the same work."""

from pathlib import Path

import pytest
import torch

from benchmarks.claims.naive import (
    NAIVE,
    WAYS,
    NaiveOptions,
    answers_of,
    generate,
    measure_naive,
    naive_model,
    opened_core,
)
from benchmarks.report.measurement import Measurement
from inference_core.loaders.open_checkpoint import open_checkpoint
from tests.inference_core.quantization.tiny_model import write_tiny_model

PROMPTS = [list(range(number, number + 40)) for number in range(5)]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("source"))


@pytest.mark.parametrize("in_flight", [1, 4])
def test_the_loop_of_generate_and_the_core_give_the_same_answers(source: Path, tmp_path: Path, in_flight: int) -> None:
    model = naive_model(open_checkpoint(source), torch.float32)
    with opened_core(str(source), tmp_path, "float32", 1000) as core:
        ours = answers_of(core, PROMPTS, 12, in_flight)
    assert ours == generate(model, PROMPTS, 12)
    assert {len(answer) for answer in ours} == {12}


def test_each_way_is_measured_in_every_round_and_gains_are_over_the_naive_loop(source: Path, tmp_path: Path) -> None:
    options = NaiveOptions(rounds=2, requests=2, prompt_tokens=16, output_tokens=4)
    measurement = Measurement.begin("naive", {"options": options}, tmp_path / "naive.jsonl")
    found = measure_naive(str(source), tmp_path, options, measurement, lambda _: None)
    assert [(row["round"], row["way"]) for row in measurement.rows] == [(turn, way) for turn in (0, 1) for way in WAYS]
    assert [row["output_tokens"] for row in measurement.rows] == 2 * [8, 8, 64]
    assert [one.way for one in found.ways] == list(WAYS)
    assert found.ways[0].way == NAIVE
    assert found.ways[0].gain.median == 1
    first = [row["cpu_seconds"] / row["output_tokens"] for row in measurement.rows if row["way"] == WAYS[2]]
    naive = [row["cpu_seconds"] / row["output_tokens"] for row in measurement.rows if row["way"] == NAIVE]
    product = naive[0] / first[0] * naive[1] / first[1]
    assert found.ways[2].gain.median == pytest.approx(product**0.5)
    assert measurement.finished
