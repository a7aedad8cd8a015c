"""Meshes compute what decoders have beyond Llama's features: heads, inner columns of experts and vocabulary are cut."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import torch

from inference_core.errors import ModelFileError
from inference_core.loaders.open_checkpoint import open_checkpoint
from inference_core.loading.load_core import use_threads
from inference_core.model_spec import DeviceModelSpec
from inference_core.parallel.leader import LocalMesh
from inference_core.parallel.mesh import Mesh
from inference_core.parallel.shards import divide_model
from tests.inference_core.models.test_decoder_against_transformers import checkpoint_folder
from tests.inference_core.parallel.device_meshes import SLAB, OneRank, device_core, device_mesh_spec, ragged_steps

pytestmark = pytest.mark.processes

NAMES = ["phi4-mini", "granite", "smollm3", "mixtral", "qwen3-moe", "gemma2", "gemma3"]
# Sums over ranks are added in another order than within one; logits reach 30.
BOUND = 5e-4
# Longer than a window of 20, in the second step.
PROMPTS = list(range(3, 33)), list(range(90, 62, -1))
RUNS = [
    pytest.param(Mesh(tensor=2), id="tp2"),
    pytest.param(Mesh(tensor=2, pipeline=2), id="tp2-pp2", marks=pytest.mark.mesh),
    pytest.param(Mesh(pipeline=3), id="pp3", marks=pytest.mark.mesh),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("models")
    for name in NAMES:
        checkpoint_folder(name, made / name)
    return made


def model_of(name: str, folder: Path) -> DeviceModelSpec:
    types = {"activations": "float32", "kv_dtype": "float32"}
    return DeviceModelSpec(name=name, path=str(folder), compute="dense", max_context=64, **types)


@pytest.fixture(scope="module")
def pair(request: pytest.FixtureRequest, folder: Path) -> Iterator[tuple[LocalMesh, OneRank]]:
    small = device_core(*(model_of(name, folder / name) for name in NAMES))
    core = msgspec.structs.replace(small, max_num_batched_tokens=64)
    with LocalMesh(device_mesh_spec(core, request.param), folder / "cache") as running:
        yield running, OneRank(core, folder / "cache")
    use_threads(None)  # the leader computed with its part of the CPUs


@pytest.mark.parametrize("pair", RUNS, indirect=True, scope="module")
@pytest.mark.parametrize("name", NAMES)
def test_a_meshs_logits_equal_those_of_one_process(name: str, pair: tuple[LocalMesh, OneRank]) -> None:
    mesh, alone = pair
    for step, rows in ragged_steps(*PROMPTS):
        wanted = alone.logits(name, step, rows)
        given = mesh.mesh.runners[name].logits(step, rows)
        torch.testing.assert_close(given, wanted, atol=BOUND, rtol=0)
        assert wanted.std() > 0.05


def test_a_norm_over_all_heads_is_refused_by_name(tmp_path: Path) -> None:
    checkpoint_folder("olmo2", tmp_path / "model")
    checkpoint = open_checkpoint(tmp_path / "model")
    with pytest.raises(ModelFileError, match=r"a mesh does not compute q and k normalised over all heads .*engine ="):
        divide_model(model_of("m", tmp_path / "model"), checkpoint, Mesh(tensor=2), uneven=False, slab_bytes=SLAB)
