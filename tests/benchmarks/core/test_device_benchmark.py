"""The stages for a CUDA device run end to end on a CPU with a tiny shape, and their figures add up."""

import pytest
import torch

from benchmarks.core.device import STAGES, most_streams, run_stage, tiny
from benchmarks.core.device_load import DeviceLoad, _Timing, figures
from inference_core.engine.core import Core
from inference_core.protocol import AddRequest


@pytest.mark.parametrize("name", STAGES)
def test_every_stage_runs_end_to_end(name: str) -> None:
    stage = tiny(STAGES[name])
    rows = list(run_stage(name, stage, torch.device("cpu")))
    assert [row["output_tokens"] for row in rows] == [3] * len(stage.loads)
    assert all(row["out_tok_s"] > 0 and row["ttft_p50_ms"] > 0 and row["itl_p50_ms"] > 0 for row in rows)


def test_no_prompt_of_a_stage_begins_as_another_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prefix in the cache would be time to the first token that is not measured."""
    begun: list[tuple[int, ...]] = []
    added = Core.add

    def add(core: Core, request: AddRequest) -> None:
        begun.append(tuple(request.prompt_token_ids[:4]))
        added(core, request)

    monkeypatch.setattr(Core, "add", add)
    list(run_stage("8b-bf16-contexts", tiny(STAGES["8b-bf16-contexts"]), torch.device("cpu")))
    assert len(begun) == 2 * (1 + 2)
    assert len(set(begun)) == len(begun)


def test_figures_are_of_requests_and_of_gaps_between_tokens() -> None:
    load = DeviceLoad(requests=2, concurrency=2, prompt_tokens=10, output_tokens=3)
    row = figures([_Timing(1.0, [1.1, 1.2, 1.4]), _Timing(1.0, [1.3, 1.4, 1.5])], load, seconds=2.0)
    assert (row["out_tok_s"], row["total_tok_s"]) == (3.0, 13.0)
    assert (row["ttft_p50_ms"], row["ttft_p99_ms"]) == (pytest.approx(300), pytest.approx(300))
    assert row["itl_mean_ms"] == pytest.approx(125)
    assert row["slowest_stream_tok_s"] == pytest.approx(2 / 0.3, abs=0.01)


def test_the_most_streams_of_a_ladder_are_those_of_the_last_level_before_one_is_too_slow() -> None:
    speeds = {1: 120.0, 2: 80.0, 4: 31.0, 8: 29.0, 16: 35.0}
    rows = [{"concurrency": level, "slowest_stream_tok_s": speed} for level, speed in speeds.items()]
    assert most_streams(rows) == 4
    assert most_streams(rows[3:]) == 0
