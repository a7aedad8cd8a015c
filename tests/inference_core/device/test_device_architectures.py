"""Every architecture on a device equals transformers: in chunks, from the prefix cache, after preemption, captured."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tiny_device import SLAB, SLABS, RecordingGraphs, TinyModels

from inference_core.device.batch import Graphs, NoGraphs
from inference_core.device.load_device_core import load_device_core
from inference_core.engine.core import Core
from inference_core.errors import ModelFileError
from inference_core.loaders.open_checkpoint import open_checkpoint
from inference_core.model_spec import DeviceCoreSpec, DeviceModelSpec
from inference_core.protocol import AddRequest, Knobs, SamplingParams, TokenLogprob
from tests.inference_core.models.test_decoder_against_transformers import ARCHITECTURES, checkpoint_folder

pytestmark = pytest.mark.models
# What docs/results/exactness.md promises of log-probabilities in float32.
BOUND = 1e-3
ANSWER = 24
GREEDY = SamplingParams(temperature=0, max_tokens=ANSWER, ignore_eos=True, logprobs=5)
# Two prompts share their first 48 tokens; windows hold 20.
SHARED = torch.randint(0, 128, (48,), generator=torch.Generator().manual_seed(3)).tolist()
PROMPTS = [[*SHARED, 5, 6, 7], [9] * 3, [*SHARED, 8, 8], [1, 2] * 12]
Answers = dict[str, list[TokenLogprob]]


def core_of(models: TinyModels, graphs: Graphs, slabs: int = SLABS, **knobs: Any) -> Core:
    given = Knobs(**{"prefill_chunk": 16, "max_num_batched_tokens": 32, "max_num_seqs": 4} | knobs)
    runner = models.device_runner(graphs)
    return Core({"m": runner}, arena_bytes=slabs * SLAB, slab_bytes=SLAB, knobs=given, seed=0)


def run(core: Core, prompts: list[list[int]], urgent: int = -1) -> Answers:
    """Answer `prompts`; the one numbered `urgent` arrives during the first answer and precedes the others."""
    answers: Answers = {str(number): [] for number in range(len(prompts))}

    def add(number: int) -> None:
        priority = 0 if number == urgent else 2
        core.add(
            AddRequest(
                request_id=str(number), model="m", prompt_token_ids=prompts[number], sampling=GREEDY, priority=priority
            )
        )

    waiting = [urgent] if urgent >= 0 else []
    for number in range(len(prompts)):
        if number != urgent:
            add(number)
    while core.has_work:
        for output in core.step():
            assert output.error is None
            answers[output.request_id] += output.logprobs or []
        core.check_integrity()
        if waiting and len(answers["0"]) > 5:
            add(waiting.pop())
    return answers


def assert_equal(answers: Answers, prompts: list[list[int]], model: transformers.PreTrainedModel) -> None:
    """The tokens are transformers' likeliest, and the log-probabilities of the five likeliest are its own."""
    for number, prompt in enumerate(prompts):
        drawn = answers[str(number)]
        tokens = [one.token_id for one in drawn]
        assert len(tokens) == ANSWER
        with torch.no_grad():
            logits = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
        want = logits.log_softmax(-1)
        assert tokens == want.argmax(-1).tolist()
        for row, one in zip(want, drawn, strict=True):
            ids, got = zip(*one.top, strict=True)
            torch.testing.assert_close(torch.tensor(got), row[list(ids)], atol=BOUND, rtol=0)


@pytest.fixture(params=ARCHITECTURES)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[TinyModels, transformers.PreTrainedModel]:
    model = checkpoint_folder(request.param, tmp_path / "model")
    models = TinyModels(tmp_path, model=tmp_path / "model")
    if refused := models.checkpoint.config.not_computed_by("a GPU"):
        pytest.skip(f"a GPU refuses {', '.join(refused)}")
    return models, model


def test_a_device_gives_transformers_answers_in_chunks_and_from_the_prefix_cache(
    pair: tuple[TinyModels, transformers.PreTrainedModel],
) -> None:
    models, model = pair
    graphs = RecordingGraphs()
    core = core_of(models, graphs)
    assert_equal(run(core, PROMPTS), PROMPTS, model)
    assert_equal(run(core, PROMPTS[2:3]), PROMPTS[2:3], model)
    assert core.stats().models[0].prefix_hit_tokens >= 48
    assert graphs.replays > 5


def test_preempted_sequences_give_transformers_answers(pair: tuple[TinyModels, transformers.PreTrainedModel]) -> None:
    """Ten blocks: the urgent request preempts another, which is then recomputed with its first tokens."""
    models, model = pair
    core = core_of(models, NoGraphs(), slabs=2, host_cache_blocks=0, max_num_seqs=2)
    prompts = [[number, 3 * number + 1] * 20 for number in range(3)]
    assert_equal(run(core, prompts, urgent=2), prompts, model)
    assert core.stats().models[0].preemptions > 0


def test_experts_of_a_kind_that_no_kernel_multiplies_are_refused_with_the_choice(tmp_path: Path) -> None:
    checkpoint_folder("mixtral", tmp_path / "model")
    spec = DeviceCoreSpec(models=[DeviceModelSpec(name="m", path=str(tmp_path / "model"), compute="fp8")])
    with pytest.raises(ModelFileError, match=r'experts have no fp8 kernel on a GPU; choose compute = "dense" or'):
        load_device_core(spec, {"m": open_checkpoint(tmp_path / "model")}, torch.device("cpu"), tmp_path)


def test_capped_logits_stay_float32_where_steps_are_captured(tmp_path: Path) -> None:
    checkpoint_folder("gemma2", tmp_path / "model")
    models = TinyModels(tmp_path, model=tmp_path / "model")

    def answers(graphs: Graphs) -> Answers:
        runner = models.device_runner(graphs, dtype=torch.bfloat16)
        knobs = Knobs(prefill_chunk=16, max_num_batched_tokens=32, max_num_seqs=4)
        return run(Core({"m": runner}, arena_bytes=SLABS * SLAB, slab_bytes=SLAB, knobs=knobs, seed=0), PROMPTS[:1])

    (captured,), (eager,) = answers(RecordingGraphs()).values(), answers(NoGraphs()).values()
    assert [one.top for one in captured[1:]] == [one.top for one in eager[1:]]


def test_features_that_no_device_computes_are_refused_by_name(tmp_path: Path) -> None:
    checkpoint_folder("gpt-oss", tmp_path / "model")
    spec = DeviceCoreSpec(models=[DeviceModelSpec(name="m", path=str(tmp_path / "model"), compute="dense")])
    with pytest.raises(ModelFileError, match=r"a GPU does not compute .*attention sinks, a bias of .*engine ="):
        load_device_core(spec, {"m": open_checkpoint(tmp_path / "model")}, torch.device("cpu"), tmp_path)
