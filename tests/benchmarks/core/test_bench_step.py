"""The step benchmark's parts add up, on a real small model."""

from pathlib import Path

import pytest

from benchmarks.core.step import bench_step
from inference_core.execution.native_runner import StepTimes
from inference_core.model_spec import ModelSpec


@pytest.fixture
def model(tiny_llama: str) -> ModelSpec:
    return ModelSpec(name="tiny", path=tiny_llama, compute="float32")


def test_the_parts_of_a_step_cover_it(model: ModelSpec, tmp_path: Path) -> None:
    rows = list(bench_step(model, tmp_path / "cache", sequences=(1, 3), context=20, chunk=40, repeats=1))

    assert [(row["step"], row.get("sequences"), row.get("tokens")) for row in rows] == [
        ("decode", 1, None),
        ("decode", 3, None),
        ("prompt chunk", None, 40),
    ]
    for row in rows:
        parts = [f"{part}_ms" for part in (*StepTimes._fields, "rest")]
        assert all(row[part] >= 0 for part in parts)
        # Medians of one repeat: the parts add up to the step but for rounding.
        assert sum(row[part] for part in parts) == pytest.approx(row["total_ms"], abs=0.005)
