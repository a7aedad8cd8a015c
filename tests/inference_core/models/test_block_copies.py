"""A runner makes a plan's block copies before it computes, so that moved sequences go on as if nothing had happened."""

from pathlib import Path

import pytest
from test_decoder_against_transformers import checkpoint_folder, runner_for

from inference_core.native import cpu
from inference_core.protocol import SamplingParams
from inference_core.step_plan import SampledToken, SampleSpec, ScheduledSequence, StepPlan

TOKENS = [(7 * i + 3) % 128 for i in range(41)]
OTHERS = [(11 * i + 5) % 128 for i in range(48)]
SPEC = SampleSpec(SamplingParams(temperature=0, logprobs=3), [], [], 0, 0, ())


def share(start: int, end: int, table: list[int]) -> ScheduledSequence:
    return ScheduledSequence("s", TOKENS[start:end], start, table, SPEC)


@pytest.mark.parametrize("kind", ["native", "operators", "torch"] if cpu.AVAILABLE else ["torch"])
def test_a_sequence_whose_blocks_were_moved_goes_on_with_the_same_token(kind: str, tmp_path: Path) -> None:
    """Two full blocks and a partly filled one move; blocks of the old table are of no account any more."""
    checkpoint_folder("llama", tmp_path / "model")

    def last_token(table: list[int], copies: list[tuple[int, int]]) -> SampledToken:
        runner = runner_for(tmp_path / "model", tmp_path / "cache", kind)
        # The arena is not cleared: what the new blocks hold before the copies must be wrong for certain.
        runner.run(StepPlan(0, "m", [ScheduledSequence("other", OTHERS, 0, [9, 8, 4], SPEC)]))
        runner.run(StepPlan(0, "m", [share(0, 40, [0, 1, 2])]))
        return runner.run(StepPlan(1, "m", [share(40, 41, table)], copies)).sampled[0][0]

    stayed = last_token([0, 1, 2], [])
    assert last_token([9, 1, 4], [(0, 9), (2, 4)]) == stayed
    assert last_token([9, 1, 4], [(0, 9)]) != stayed
