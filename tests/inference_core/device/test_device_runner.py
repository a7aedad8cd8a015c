"""The device's runner gives the oracle's tokens: eager, captured, padded, overlapping and drawn on the host."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from tape_graphs import TapeGraphs
from tiny_device import CAPACITY, SLAB, SLABS, RecordingGraphs, TinyModels

from inference_core.device import device_runner
from inference_core.device import sampling as edited_rows
from inference_core.device.batch import Graphs, NoGraphs
from inference_core.device.block_tables import LONGEST_QUERY
from inference_core.device.device_runner import DeviceRunner
from inference_core.engine.core import Core
from inference_core.errors import BadLogitsError
from inference_core.execution.runner import ModelRunner
from inference_core.protocol import AddRequest, Knobs, SamplingParams, TokenLogprob
from inference_core.protocol.kv_blocks import BlockChain
from inference_core.step_plan import PENDING, SampleSpec, ScheduledSequence, StepPlan, StepResult
from inference_core.triton_kernels import ops

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
WARM = SamplingParams(temperature=0.9, top_p=0.9, top_k=20, seed=3, max_tokens=12, ignore_eos=True)
PENALISED = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, presence_penalty=1.5)
REPETITIVE = SamplingParams(
    temperature=0.8,
    seed=5,
    max_tokens=14,
    ignore_eos=True,
    repetition_penalty=1.3,
    frequency_penalty=0.4,
    logit_bias={3: 1.5, 4: -2.0},
    stop_token_ids=(9,),
    min_tokens=14,
)
NAMED = SamplingParams(temperature=0.9, seed=2, max_tokens=12, ignore_eos=True, logprobs=4, frequency_penalty=0.2)
# More tokens are biased than a row of the tables on the device has room for.
OVERFULL = SamplingParams(
    temperature=0,
    max_tokens=8,
    ignore_eos=True,
    logit_bias=dict.fromkeys(range(20), -1.0),
    presence_penalty=1.0,
    logprobs=1,
)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> TinyModels:
    return TinyModels(tmp_path_factory.mktemp("tiny"))


Answers = dict[str, list[tuple[int, TokenLogprob | None]]]


def core_of(runner: ModelRunner, slabs: int = SLABS, **knobs: Any) -> Core:
    given = {"prefill_chunk": 5, "max_num_batched_tokens": 32, "max_num_seqs": 8} | knobs
    return Core({"m": runner}, arena_bytes=slabs * SLAB, slab_bytes=SLAB, knobs=Knobs(**given), seed=0)


def answers(runner: ModelRunner, prompts: list[list[int]], samplings: list[SamplingParams]) -> Answers:
    return answers_of(core_of(runner), prompts, samplings)


def answers_of(core: Core, prompts: list[list[int]], samplings: list[SamplingParams]) -> Answers:
    tokens: Answers = {}
    for number, (prompt, sampling) in enumerate(zip(prompts, samplings, strict=True)):
        tokens[str(number)] = []
        core.add(AddRequest(request_id=str(number), model="m", prompt_token_ids=prompt, sampling=sampling))
    while core.has_work:
        for output in core.step():
            assert output.finish_reason in (None, "length", "stop"), output.error
            if output.request_id not in tokens:
                continue
            logprobs = output.logprobs or [None] * len(output.token_ids)
            tokens[output.request_id] += zip(output.token_ids, logprobs, strict=True)
        core.check_integrity()
    return tokens


def assert_same(given: Answers, expected: Answers) -> None:
    """The same tokens; log-probabilities of the same tokens, as alike as the logits of two implementations are."""
    assert {name: [token for token, _ in said] for name, said in given.items()} == {
        name: [token for token, _ in said] for name, said in expected.items()
    }
    for name, said in given.items():
        for (_, one), (_, other) in zip(said, expected[name], strict=True):
            if one is None or other is None:
                assert one is other
                continue
            assert [i for i, _ in one.top] == [i for i, _ in other.top]
            numbers = [other.logprob, *(x for _, x in other.top)]
            assert [one.logprob, *(x for _, x in one.top)] == pytest.approx(numbers, abs=1e-3)


PROMPTS = [[1, 2, 3], [4] * 20, [7, 8] * 9, [5], [9, 1, 9, 1, 3]]


@pytest.mark.parametrize("weights", [{}, {"bias": True}, {"norms": True}, {"tied": True}], ids=str)
def test_a_core_on_the_device_gives_the_oracles_answers(weights: dict[str, bool], tmp_path: Path) -> None:
    models = TinyModels(tmp_path, **weights)
    samplings = [GREEDY] * len(PROMPTS)
    assert_same(answers(models.device_runner(), PROMPTS, samplings), answers(models.oracle(), PROMPTS, samplings))


def test_the_profile_includes_prompts_in_parts_where_their_plans_are_built(
    models: TinyModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No context is longer than the model's, and none of the parts compiles during a request."""
    runner, steps, built = models.device_runner(), [], []
    monkeypatch.setattr(device_runner, "PROMPT_GRAIN", 8)
    monkeypatch.setattr(ops, "build_prompt_plans", lambda *numbers: built.append(numbers[1:]) is None)
    monkeypatch.setattr(runner, "_run_padding", lambda shape: steps.append(shape.prompts))
    runner.profile_step()
    config, longest, most = runner.config, CAPACITY.tokens, models.info.max_context
    assert built == [(config.num_heads, config.num_kv_heads, config.head_dim, min(longest, most))]
    spans = [(min(longest, most - earlier), earlier) for earlier in (0, 8, 40)]
    assert steps == [(), tuple(n for queries, earlier in spans for n in (0, 0, queries, queries + earlier))]


def test_captured_steps_read_only_device_memory(models: TinyModels) -> None:
    """AT-08: the first work of a batch size is replayed for all later ones, with any sequences and lengths."""
    graphs = RecordingGraphs()
    samplings = [GREEDY, WARM, GREEDY, WARM, GREEDY]
    assert_same(answers(models.device_runner(graphs), PROMPTS, samplings), answers(models.oracle(), PROMPTS, samplings))
    assert graphs.replays > 5


@pytest.mark.parametrize("graphs_of_kind", [RecordingGraphs, TapeGraphs])
def test_steps_of_prompts_are_repeated_too_with_any_lengths_and_decodes_among_them(
    models: TinyModels, graphs_of_kind: type[RecordingGraphs | TapeGraphs]
) -> None:
    """AT-08: otherwise the first token waits for the host, which launches a prompt's kernels one by one."""
    graphs = graphs_of_kind()
    prompts = [[3] * 30, [4] * 19, [7, 8] * 15, [5], [6] * 27, [9, 1, 3]]
    samplings = [GREEDY, WARM, REPETITIVE, GREEDY, WARM, GREEDY]
    core = core_of(models.device_runner(graphs), prefill_chunk=32, max_num_batched_tokens=48)
    expected = core_of(models.oracle(), prefill_chunk=32, max_num_batched_tokens=48)
    assert_same(answers_of(core, prompts, samplings), answers_of(expected, prompts, samplings))
    of_prompts = [shape for shape in graphs.captured if shape.longest_query > LONGEST_QUERY]
    assert of_prompts
    assert all(shape.tokens > shape.sequences for shape in of_prompts)
    assert graphs.replays > len(graphs.captured)


def test_captured_steps_share_the_memory_of_their_logits_and_repeat_nothing_but_operations(models: TinyModels) -> None:
    """Otherwise each of some fifty sizes would keep logits as wide as the vocabulary."""
    graphs = TapeGraphs()
    samplings = [GREEDY, WARM, REPETITIVE, WARM, GREEDY]
    assert_same(answers(models.device_runner(graphs), PROMPTS, samplings), answers(models.oracle(), PROMPTS, samplings))
    results = [result for _, result in graphs.tapes.values()]
    assert len({len(result) for result in results}) > 1
    assert len({result.untyped_storage().data_ptr() for result in results}) == 1


class Launches:
    """Counts the launches of a runner that knew not all of their tokens."""

    def __init__(self, runner: DeviceRunner, monkeypatch: pytest.MonkeyPatch) -> None:
        self.overlapped = 0
        launch = runner.launch

        def counted(plan: StepPlan) -> Callable[[], StepResult]:
            self.overlapped += any(PENDING in s.token_ids for s in plan.sequences)
            return launch(plan)

        monkeypatch.setattr(runner, "launch", counted)


@pytest.mark.parametrize("graphs", [NoGraphs, RecordingGraphs])
@pytest.mark.parametrize(
    "samplings",
    [
        [GREEDY, PENALISED, WARM, PENALISED, WARM],
        [REPETITIVE, WARM, REPETITIVE, GREEDY, PENALISED],
        [NAMED, REPETITIVE, GREEDY, NAMED, WARM],
    ],
    ids=["presence", "all edits", "log-probabilities"],
)
def test_edited_logits_and_log_probabilities_are_the_oracles_while_steps_overlap(
    models: TinyModels, samplings: list[SamplingParams], graphs: type[Graphs], monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = models.device_runner(graphs())
    launches = Launches(runner, monkeypatch)
    assert_same(answers(runner, PROMPTS, samplings), answers(models.oracle(), PROMPTS, samplings))
    assert launches.overlapped > 10


def test_steps_without_edits_run_a_graph_without_them(models: TinyModels) -> None:
    graphs = RecordingGraphs()
    answers(models.device_runner(graphs), PROMPTS, [GREEDY] * len(PROMPTS))
    assert {shape.edited for shape in graphs.works} == {False}
    answers(models.device_runner(graphs), PROMPTS[:1], [PENALISED])
    assert {shape.edited for shape in graphs.works} == {False, True}


def test_the_host_draws_rows_that_exceed_the_tables(models: TinyModels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edited_rows, "MOST_BIASED", 8)
    samplings = [GREEDY, OVERFULL, WARM, NAMED, REPETITIVE]
    assert_same(answers(models.device_runner(), PROMPTS, samplings), answers(models.oracle(), PROMPTS, samplings))


def test_counts_are_rebuilt_after_a_failed_step(models: TinyModels, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = models.device_runner()
    count, calls = runner._edits.count, iter(range(1000))

    def failing(*arguments: Any) -> None:
        count(*arguments)
        if next(calls) in (3, 40):
            raise RuntimeError("lost")

    monkeypatch.setattr(runner._edits, "count", failing)
    samplings = [REPETITIVE, PENALISED, NAMED, GREEDY, WARM]
    assert_same(answers(runner, PROMPTS, samplings), answers(models.oracle(), PROMPTS, samplings))


def test_sequences_that_take_turns_on_few_rows_of_the_tables_are_counted_right(models: TinyModels) -> None:
    """Nine answers, of which eight run at a time, over the eight rows that the capacity sets aside."""
    prompts = [[token, token + 1] for token in range(1, 19, 2)]
    samplings = [msgspec.structs.replace(REPETITIVE, seed=i, max_tokens=3 + 2 * i, min_tokens=1) for i in range(9)]
    assert_same(answers(models.device_runner(), prompts, samplings), answers(models.oracle(), prompts, samplings))


def test_preempted_sequences_are_copied_out_and_back(models: TinyModels) -> None:
    """KV-09: eight blocks for five answers of up to four blocks, against the oracle with room for all."""
    samplings = [msgspec.structs.replace(s, max_tokens=40) for s in (GREEDY, WARM, REPETITIVE, NAMED, GREEDY)]
    cramped = core_of(models.device_runner(), slabs=1, host_cache_blocks=64)
    assert_same(answers_of(cramped, PROMPTS, samplings), answers(models.oracle(), PROMPTS, samplings))
    assert cramped.stats().models[0].swap.back_blocks > 0


def test_blocks_are_handed_from_device_to_device(models: TinyModels) -> None:
    """BS-08: what one device has computed while another prompt decodes gives the other one's answers."""
    prompt = list(range(1, 24)) * 2
    source, target = core_of(models.device_runner()), core_of(models.device_runner())
    source.add(AddRequest(request_id="p", model="m", prompt_token_ids=prompt, sampling=GREEDY, prefill=True))
    answers_of(source, PROMPTS[:2], [GREEDY, WARM])
    chain = BlockChain(model="m", token_ids=prompt)
    assert target.import_blocks(chain, source.export_blocks(chain, 0, 1 << 30)) == 2
    given = answers_of(target, [prompt], [NAMED])
    assert target.stats().models[0].prefix_hit_tokens == 32
    assert_same(given, answers_of(core_of(models.device_runner()), [prompt], [NAMED]))


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


def test_prompts_are_scored_as_the_oracle_scores_them(models: TinyModels) -> None:
    scored = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True, prompt_logprobs=2)
    samplings = [GREEDY, scored, WARM, scored, scored]
    device, oracle = (scores(runner, PROMPTS, samplings) for runner in (models.device_runner(), models.oracle()))
    assert [len(device[str(i)]) for i in range(5)] == [0, 19, 0, 0, 4]
    for number, expected in oracle.items():
        assert [one.token_id for one in device[number]] == [one.token_id for one in expected]
        assert [one.logprob for one in device[number]] == pytest.approx([one.logprob for one in expected], abs=1e-4)
        assert [[i for i, _ in one.top] for one in device[number]] == [[i for i, _ in one.top] for one in expected]


def scores(
    runner: ModelRunner, prompts: list[list[int]], samplings: list[SamplingParams]
) -> dict[str, list[TokenLogprob]]:
    knobs = Knobs(prefill_chunk=5, max_num_batched_tokens=32, max_num_seqs=8)
    core = Core({"m": runner}, arena_bytes=SLABS * SLAB, slab_bytes=SLAB, knobs=knobs, seed=0)
    said: dict[str, list[TokenLogprob]] = {}
    for number, (prompt, sampling) in enumerate(zip(prompts, samplings, strict=True)):
        said[str(number)] = []
        core.add(AddRequest(request_id=str(number), model="m", prompt_token_ids=prompt, sampling=sampling))
    while core.has_work:
        for output in core.step():
            said[output.request_id] += output.prompt_logprobs or []
        core.check_integrity()
    return said
