"""Meshes replay their small steps, sums over the ranks included, and say the same as without."""

import copy
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from msgspec.structs import replace
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from inference_core.device import batch as graphs
from inference_core.device.batch import CudaGraphs, DeviceInputs
from inference_core.device.load_device_core import graphs_of
from inference_core.device.step_inputs import Capacity, StepShape, bytes_of
from inference_core.loading.load_core import use_threads
from inference_core.model_spec import DeviceModelSpec
from inference_core.parallel import local_ranks
from inference_core.parallel import rank as device_shard_loader
from inference_core.parallel.collectives import TensorGroup
from inference_core.parallel.leader import LocalMesh
from inference_core.parallel.mesh import Mesh
from inference_core.parallel.rank import load_shard
from inference_core.parallel.shards import ShardCheckpoint, divide_model
from tests.inference_core.device.tape_graphs import WAITS, TapeGraphs
from tests.inference_core.loaders.int4_checkpoints import random_model, write_packed
from tests.inference_core.parallel.device_meshes import device_core, device_mesh_spec, four_bit, on_one_device
from tests.inference_core.parallel.meshes import greedy_answers
from tests.inference_core.parallel.side_by_side import SHAPES, Drawn
from tests.inference_core.parallel.taped_rank import replays, tapes_for

pytestmark = pytest.mark.processes

PROMPTS = ([5, 40, 3, 41, 7, 2, 19, 8, 22, 1, 36], [18, 33, 9, 47, 11, 30])
TOKENS = 8


@pytest.fixture
def tapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The leader and the ranks that it starts replay from tapes; the folder where those ranks say how often."""
    monkeypatch.setattr(device_shard_loader, "graphs_of", tapes_for)
    monkeypatch.setattr(TapeGraphs, "made", [])
    program = (sys.executable, "-m", "tests.inference_core.parallel.taped_rank")
    monkeypatch.setattr(local_ranks, "PROGRAM", program)
    monkeypatch.setenv("TAPES", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    "mesh",
    [
        pytest.param(Mesh(tensor=2), id="tp2"),
        pytest.param(Mesh(tensor=2, pipeline=2), id="tp2-pp2", marks=pytest.mark.mesh),
    ],
)
def test_ranks_that_replay_their_steps_say_what_one_device_says(mesh: Mesh, tapes: Path, tmp_path: Path) -> None:
    core = device_core(four_bit("m", write_packed(tmp_path / "model", random_model(32), "awq", 32)))
    wanted = greedy_answers(on_one_device(core, tmp_path), PROMPTS, TOKENS)
    with LocalMesh(device_mesh_spec(core, mesh), tmp_path) as running:
        assert greedy_answers(running.core, PROMPTS, TOKENS) == wanted
        # One sequence decodes, and two do; each rank records that once, and replays every other step.
        here = replays()
        greedy_answers(running.core, PROMPTS, TOKENS)
        assert replays()["recorded"] == here["recorded"] > 0
        assert replays()["replayed"] >= 2 * (TOKENS - 1)
    use_threads(None)  # the leader computed with its part of the CPUs
    for rank in range(1, mesh.size):
        assert json.loads((tapes / f"rank-{rank}.json").read_text()) == replays()


class OnTheDevice(TorchDispatchMode):  # type: ignore[misc]  # torch has no types for it
    """Refuses what a capture refuses: copies from and to the host, and waits for a value."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        assert func._schema.name not in WAITS
        for leaf in tree_leaves((args, kwargs, out)):
            assert not isinstance(leaf, torch.Tensor) or leaf.is_meta, f"{func} uses the host's memory"
        return out


@pytest.mark.parametrize("tensor", [1, 2, 4])
def test_what_ranks_capture_needs_nothing_of_the_host(
    tensor: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By operations on a device that only has shapes: two sums a layer and the embedding's are among them."""
    sums: list[torch.device] = []
    monkeypatch.setattr(dist, "all_reduce", lambda part, **_: sums.append(part.device))
    shape = StepShape(tokens=4, sequences=4, sampled=4, longest_query=1, table_updates=0)
    spec = DeviceModelSpec(name="m", path="-", compute="dense", max_context=64)
    checkpoint = Drawn(SHAPES["llama"], "BF16")
    model = divide_model(spec, checkpoint, Mesh(tensor=tensor), uneven=True, slab_bytes=1 << 20)
    capacity = Capacity(tokens=8, sequences=4, draws=8, table_updates=4)
    share, group = model.shares[0], TensorGroup(list(range(tensor)), 0)
    host = load_shard(model, ShardCheckpoint(checkpoint, share), share, torch.device("cpu"), tmp_path, group)
    card = torch.device("meta")
    monkeypatch.setitem(copy._deepcopy_dispatch, torch.Tensor, lambda stored, _: torch.empty_like(stored, device=card))
    with torch.inference_mode():
        decoder = copy.deepcopy(host).over(torch.zeros(1 << 20, dtype=torch.uint8, device=card))
        memory = torch.zeros(bytes_of(capacity), dtype=torch.uint8, device=card)
        batch = DeviceInputs(capacity, memory, torch.zeros(16, dtype=torch.int64, device=card)).batch(shape)
        with OnTheDevice():
            hidden = decoder.compute(decoder.embed(batch.token_ids.long()), batch)
    assert hidden.shape == (4, checkpoint.config.hidden_size)
    assert len(sums) == (2 * checkpoint.config.num_layers + 1 if tensor > 1 else 0)


def test_cards_capture_steps_unless_the_group_says_not_to_and_the_host_never_does() -> None:
    core = device_core(four_bit("m", "-"))
    cuda = torch.device("cuda", 0)
    assert graphs_of(core, cuda) is CudaGraphs
    assert graphs_of(replace(core, capture_steps=False), cuda) is None
    assert graphs_of(core, torch.device("cpu")) is None


def test_a_step_that_cannot_be_captured_is_computed_all_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What was captured before is still replayed; nothing else is tried again."""

    class Refusing(CudaGraphs):
        def _warm_up(self, work: object) -> None:
            warm.append(work)

        def _capture(self, work: object) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
            raise RuntimeError("operation not permitted when stream is capturing")

    warm: list[object] = []
    streams: list[object] = []
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 0))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: "the usual one")
    monkeypatch.setattr(torch.cuda, "set_stream", streams.append)
    refusing = Refusing()
    with caplog.at_level("WARNING", graphs.__name__):
        for size in (1, 2, 1):
            assert refusing.run(size, lambda size=size: torch.full((size,), size)).tolist() == [size] * size
    assert refusing.captured == ()
    assert len(warm) == 1
    assert streams == ["the usual one"]
    (said,) = [record.getMessage() for record in caplog.records]
    assert "not permitted when stream is capturing" in said
    assert "capture_steps = false" in said
