"""The scheduling benchmark measures what it says: decode steps, cold and cached prompts."""

from benchmarks.core.scheduling import ConstantRunner, bench_scheduling
from inference_core.step_plan import StepPlan, StepResult


def test_a_row_per_number_of_sequences_and_per_prompt_length() -> None:
    rows = list(bench_scheduling(sequences=(1, 3), prompts=(20, 64), repeats=2))
    assert [row.get("sequences") for row in rows] == [1, 3, None, None]
    assert [row.get("prefix_cache_tokens") for row in rows] == [None, None, 20, 64]
    assert all(row["us_per_step"] > 0 for row in rows[:2])
    assert all(row["hit_us_per_request"] > 0 for row in rows[2:])


def test_decode_steps_are_full_batches_of_single_tokens(monkeypatch) -> None:
    shapes: list[tuple[int, int]] = []
    run = ConstantRunner.run

    def recorded(runner: ConstantRunner, plan: StepPlan) -> StepResult:
        shapes.append((len(plan.sequences), plan.num_tokens))
        return run(runner, plan)

    monkeypatch.setattr(ConstantRunner, "run", recorded)
    list(bench_scheduling(sequences=(3,), prompts=(), repeats=2))
    assert shapes[-32:] == [(3, 3)] * 32
