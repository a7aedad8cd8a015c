"""What a mesh of devices is asked for, the largest step that it is measured by, and that the least rank decides."""

import socket
import threading
from pathlib import Path

import msgspec
import pytest
import torch
import torch.distributed as dist

from inference_core.device.batch import NoGraphs
from inference_core.device.cards import MemoryProfile
from inference_core.errors import MemoryPlanError, RankLostError
from inference_core.model_spec import DeviceModelSpec
from inference_core.parallel import rank as device_shard_loader
from inference_core.parallel.collectives import TensorGroup
from inference_core.parallel.control import Followers, LeaderLink
from inference_core.parallel.leader import no_check
from inference_core.parallel.mesh import Mesh, MeshSpec, RankEnvironment
from inference_core.parallel.messages import ArenaCapacity, Divided, Failed, Joined, Ready, RunStep
from inference_core.parallel.rank import DeviceShardLoader, largest_step
from inference_core.parallel.rank_runner import RankModel
from inference_core.transport.framing import FrameWriter
from tests.inference_core.loaders.int4_checkpoints import random_model, write_packed
from tests.inference_core.parallel.device_meshes import SLAB, device_core, device_mesh_spec

ALONE = RankEnvironment(rank=0, world_size=1, local_rank=0, local_world_size=1, master="127.0.0.1", port=0)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers in AWQ groups of 32, trained for 128 tokens."""
    return write_packed(tmp_path_factory.mktemp("model"), random_model(32), "awq", 32)


def shares_of(path: Path, cache: Path, total: int, activations: int = 0, **limits: int) -> DeviceShardLoader:
    """An undivided tiny model, as if its device had `total` bytes, the weights took one slab, and each step as much as
    `activations`. `limits`: of a step."""
    model = DeviceModelSpec(name="m", path=str(path), activations="float32", kv_dtype="float32")

    def profile(_: torch.device, step: object) -> MemoryProfile:
        assert callable(step)
        step()
        return MemoryProfile(total=total, others=0, weights=SLAB, activations=activations)

    core = msgspec.structs.replace(device_core(model), **limits)
    return DeviceShardLoader(device_mesh_spec(core, Mesh()), ALONE, cache, profile)


def test_a_specification_is_read_back_and_names_its_device() -> None:
    spec = device_mesh_spec(device_core(DeviceModelSpec(name="m", path="m.gguf")), Mesh(tensor=2), "cuda")
    encoded = msgspec.json.encode(spec)
    assert msgspec.json.decode(encoded, type=MeshSpec) == spec
    for wrong in (encoded.replace(b'"cuda"', b'"abacus"'), encoded.replace(b'"device":"cuda",', b"")):
        with pytest.raises(msgspec.DecodeError, match="device"):
            msgspec.json.decode(wrong, type=MeshSpec)


@pytest.mark.parametrize(("tokens", "sequences"), [(32, 4), (300, 2), (3, 8), (128, 1)])
def test_the_largest_step_has_as_many_tokens_and_sequences_as_a_step_may_have(
    tokens: int, sequences: int, path: Path, tmp_path: Path
) -> None:
    (model,) = shares_of(path, tmp_path, 10 * SLAB).models
    step = largest_step(model, tokens, sequences, drafts=5)
    lengths = [len(s.token_ids) for s in step.sequences]
    assert len(lengths) == min(tokens, sequences)
    assert max(lengths) <= model.max_context == 128
    assert sum(lengths) == min(tokens, sequences * 128)
    assert len(step.rows) == min(len(lengths) + 5, sum(lengths))
    assert step.rows == sorted(set(step.rows))
    assert step.rows[-1] == sum(lengths) - 1


def test_a_ranks_arena_capacity_is_what_weights_and_the_largest_step_leave(path: Path, tmp_path: Path) -> None:
    shares = shares_of(path, tmp_path, 10 * SLAB)
    shares.load(dist.HashStore(), TensorGroup([0], 0))
    rehearsed: list[RunStep] = []

    def profile_step(models: dict[str, RankModel], step: RunStep) -> None:
        assert models["m"].stage.device.type == "cpu"
        rehearsed.append(step)

    # 10 slabs x 0.9 - 1 of weights
    assert shares.arena_capacity(profile_step) == 8 * SLAB
    assert [step.model for step in rehearsed] == ["m"]
    tight = shares_of(path, tmp_path, SLAB)
    tight.load(dist.HashStore(), TensorGroup([0], 0))
    with pytest.raises(MemoryPlanError, match="nothing is left for keys and values"):
        tight.arena_capacity(profile_step)


def test_what_captured_steps_hold_is_left_out_of_a_ranks_arena(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_shard_loader, "graphs_of", lambda core, device: NoGraphs)
    shares = shares_of(path, tmp_path, 10 * SLAB, activations=SLAB, max_num_batched_tokens=600, max_num_seqs=8)
    shares.load(dist.HashStore(), TensorGroup([0], 0))
    rehearsed: list[int] = []

    def profile_step(models: dict[str, RankModel], step: RunStep) -> None:
        rehearsed.append(sum(len(s.token_ids) for s in step.sequences))

    # 10 slabs x 0.9 - 1 of weights - 1 of the largest step - 1 of those that are captured
    assert shares.arena_capacity(profile_step) == 6 * SLAB
    assert rehearsed == [600, 512]


def test_reports_that_arrive_with_a_ranks_first_message_are_not_lost() -> None:
    followers = Followers([1], "127.0.0.1")
    host, port, token = followers.address.split()
    with socket.create_connection((host, int(port))) as link:
        frames = FrameWriter()
        link.sendall(frames.frame(Joined(1, token)) + frames.frame(Divided(1)))
        followers.accept(10, no_check)
        followers.wait(Divided, 10)
        followers.close()


def test_the_leader_receives_every_ranks_arena_capacity() -> None:
    followers, links = Followers([1, 2], "127.0.0.1"), []
    joining = threading.Thread(target=lambda: links.extend(LeaderLink(followers.address, r, 10) for r in (1, 2)))
    joining.start()
    followers.accept(10, no_check)
    joining.join()
    try:
        for rank, link in enumerate(links, 1):
            link.report(Divided(rank))
            link.report(Ready(rank, {"m": 10 * rank}))
        followers.wait(Divided, 10)
        assert sorted(ready.weight_bytes["m"] for ready in followers.wait(Ready, 10)) == [10, 20]
        links[0].report(ArenaCapacity(1, 700))
        followers.check(10)
        with pytest.raises(RankLostError, match=r"rank\(s\) 2 did not finish the largest step within 0 seconds"):
            followers.wait(ArenaCapacity, 0)
        links[1].report(ArenaCapacity(2, 500))
        assert min(arena_capacity.arena_bytes for arena_capacity in followers.wait(ArenaCapacity, 10)) == 500
        links[1].report(Failed(2, "MemoryPlanError: nothing is left for keys and values"))
        with pytest.raises(RankLostError, match="rank 2 failed: MemoryPlanError: nothing is left"):
            followers.check(10)
    finally:
        followers.close()
        for link in links:
            link.close()
