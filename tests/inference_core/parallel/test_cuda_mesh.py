"""On two CUDA devices or more: ranks joined by NCCL give the results of one device. `make test-gpu` runs it."""

from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

from inference_core.model_spec import DeviceModelSpec
from inference_core.parallel.leader import LocalMesh
from inference_core.parallel.mesh import Mesh
from tests.inference_core.loaders.int4_checkpoints import random_model, write_packed
from tests.inference_core.parallel.device_meshes import OneRank, device_core, device_mesh_spec, ragged_steps
from tests.inference_core.parallel.meshes import greedy_answers

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices"),
]
PROMPTS = ([5, 40, 3, 41, 7, 2, 19, 8, 22, 1, 36], [18, 33, 9, 47, 11, 30])
# Partial sums are rounded to float16 before they are added up; the logits reach about 3.
LOGITS_BOUND = 5e-2
MESHES = [
    Mesh(tensor=2),
    Mesh(pipeline=2),
    pytest.param(
        Mesh(tensor=2, pipeline=2),
        marks=pytest.mark.skipif(torch.cuda.device_count() < 4, reason="needs four CUDA devices"),
    ),
]


@pytest.mark.parametrize("capture", [False, True], ids=["eager", "captured"])
@pytest.mark.parametrize("mesh", MESHES, ids=lambda mesh: f"tp{mesh.tensor}-pp{mesh.pipeline}")
def test_a_mesh_of_cards_gives_the_logits_of_one_card(mesh: Mesh, capture: bool, tmp_path: Path) -> None:
    path = write_packed(tmp_path / "model", random_model(32), "awq", 32)
    model = DeviceModelSpec(name="m", path=str(path), compute="int4", activations="float16", kv_dtype="float16")
    core = replace(device_core(model), capture_steps=capture)
    alone = OneRank(core, tmp_path, "cuda")
    steps = ragged_steps(*PROMPTS)
    wanted = [alone.logits("m", step, rows) for step, rows in steps]
    with LocalMesh(device_mesh_spec(core, mesh, "cuda"), tmp_path) as running:
        for (step, rows), whole in zip(steps, wanted, strict=True):
            given = running.mesh.runners["m"].logits(step, rows).cpu()
            assert (given - whole).abs().max().item() <= LOGITS_BOUND
        stage = running.mesh.rank.models["m"].stage
        assert bool(stage.graphs.captured) == capture
        assert len(greedy_answers(running.core, list(PROMPTS), tokens=8)["0"]) == 8
