"""The device's runner gives the oracle's tokens: eager, captured, padded, overlapping and drawn on the host."""

from pathlib import Path

import pytest
import torch
from tiny_device import SLAB, SLABS, RecordingGraphs, TinyModels

from inference_core.core import Core
from inference_core.errors import BadLogitsError
from inference_core.protocol import AddRequest, Knobs, SamplingParams
from inference_core.runner import ModelRunner
from inference_core.step_plan import PENDING, SampleSpec, ScheduledSequence, StepPlan

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
WARM = SamplingParams(temperature=0.9, top_p=0.9, top_k=20, seed=3, max_tokens=12, ignore_eos=True)
PENALISED = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, presence_penalty=1.5)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> TinyModels:
    return TinyModels(tmp_path_factory.mktemp("tiny"))


def answers(runner: ModelRunner, prompts: list[list[int]], samplings: list[SamplingParams]) -> dict[str, list[int]]:
    core = Core(
        {"m": runner},
        arena_bytes=SLABS * SLAB,
        slab_bytes=SLAB,
        knobs=Knobs(prefill_chunk=5, max_num_batched_tokens=32, max_num_seqs=8),
        seed=0,
    )
    tokens: dict[str, list[int]] = {}
    for number, (prompt, sampling) in enumerate(zip(prompts, samplings, strict=True)):
        tokens[str(number)] = []
        core.add(AddRequest(request_id=str(number), model="m", prompt_token_ids=prompt, sampling=sampling))
    while core.has_work:
        for output in core.step():
            assert output.finish_reason in (None, "length")
            tokens[output.request_id] += output.token_ids
        core.check_integrity()
    return tokens


PROMPTS = [[1, 2, 3], [4] * 20, [7, 8] * 9, [5], [9, 1, 9, 1, 3]]


@pytest.mark.parametrize("weights", [{}, {"bias": True}, {"norms": True}, {"tied": True}], ids=str)
def test_a_core_on_the_device_says_what_the_oracle_says(weights: dict[str, bool], tmp_path: Path) -> None:
    models = TinyModels(tmp_path, **weights)
    samplings = [GREEDY] * len(PROMPTS)
    assert answers(models.device_runner(), PROMPTS, samplings) == answers(models.oracle(), PROMPTS, samplings)


def test_captured_steps_hear_nothing_but_what_is_on_the_device(models: TinyModels) -> None:
    """AT-08: the first work of a batch size is repeated for all later ones, whoever is in them and how far."""
    graphs = RecordingGraphs()
    samplings = [GREEDY, WARM, GREEDY, WARM, GREEDY]
    assert answers(models.device_runner(graphs), PROMPTS, samplings) == answers(models.oracle(), PROMPTS, samplings)
    assert graphs.replays > 5


def test_what_the_device_cannot_draw_the_host_draws_beside_it(models: TinyModels) -> None:
    samplings = [GREEDY, PENALISED, WARM, PENALISED, WARM]
    assert answers(models.device_runner(), PROMPTS, samplings) == answers(models.oracle(), PROMPTS, samplings)


def decode(name: str, token: int, start: int, table: list[int]) -> ScheduledSequence:
    return ScheduledSequence(name, [token], start, table, SampleSpec(GREEDY, [], [], 0, 0, ()))


def test_padding_leaves_the_cache_as_it_was(models: TinyModels) -> None:
    runner = models.device_runner(RecordingGraphs())
    models.arena.random_(0, 200)
    before = models.arena.clone()
    runner.run(StepPlan(0, "m", [decode(str(i), 3, 0, [10 + i]) for i in range(3)]))
    size = models.layout.block_bytes
    per_slab = models.layout.blocks_per_slab(SLAB)
    for block in (10, 11, 12):
        at = block // per_slab * SLAB + block % per_slab * size
        before[at : at + size] = models.arena[at : at + size]
    assert torch.equal(models.arena, before)


def test_a_pending_token_is_taken_from_the_draws_of_the_step_before(models: TinyModels) -> None:
    known, pending = models.device_runner(), models.device_runner()
    first = StepPlan(0, "m", [decode("a", 3, 0, [1]), decode("b", 4, 0, [2])])
    (a,), (b,) = known.run(first).sampled
    expected = known.run(StepPlan(1, "m", [decode("b", b.token_id, 1, [2]), decode("a", a.token_id, 1, [1])]))

    launched = pending.launch(first)
    following = pending.launch(StepPlan(1, "m", [decode("b", PENDING, 1, [2]), decode("a", PENDING, 1, [1])]))

    assert launched().sampled == [[a], [b]]
    assert following().sampled == expected.sampled


def test_rows_that_nothing_can_be_drawn_from_are_named(models: TinyModels) -> None:
    runner = models.device_runner()
    runner._decoder.embedding[4] = torch.nan
    landing = runner.launch(StepPlan(0, "m", [decode("a", 3, 0, [1]), decode("b", 4, 0, [2])]))
    with pytest.raises(BadLogitsError) as caught:
        landing()
    assert caught.value.rows == [1]


def test_blocks_move_before_anything_is_computed(models: TinyModels) -> None:
    moved, still = models.device_runner(), models.device_runner()
    results = []
    for runner, target in ((moved, 20), (still, 1)):
        runner.run(StepPlan(0, "m", [ScheduledSequence("a", [5] * 16, 0, [1], None)]))
        copies = [(1, target)] if target != 1 else []
        results.append(runner.run(StepPlan(1, "m", [decode("a", 6, 16, [target, 3])], copies)).sampled)
    assert results[0] == results[1]
