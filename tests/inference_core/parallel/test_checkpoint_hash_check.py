"""Every machine hashes its files once, and a machine with other files is refused."""

from pathlib import Path

import pytest
import torch.distributed as dist

from inference_core.errors import MeshError
from inference_core.loaders.checkpoint import Checkpoint
from inference_core.loaders.open_checkpoint import open_checkpoint
from inference_core.parallel.mesh import Mesh, RankEnvironment, divide
from inference_core.parallel.rank import check_checkpoint_hashes
from inference_core.parallel.shards import ShardCheckpoint
from tests.inference_core.loaders.int4_checkpoints import random_model, write_packed


def rank(number: int) -> RankEnvironment:
    """Two ranks on each machine."""
    return RankEnvironment(
        rank=number, world_size=4, local_rank=number % 2, local_world_size=2, master="127.0.0.1", port=1
    )


def checkpoint(folder: Path, seed: int = 0) -> Checkpoint:
    return open_checkpoint(write_packed(folder, random_model(32, seed=seed), "awq", 32))


class Unread(Checkpoint):
    """A file that fails the test if it is hashed."""

    config = property(lambda self: None)  # type: ignore[assignment]
    tensors = property(lambda self: None)  # type: ignore[assignment]
    fingerprint = property(lambda self: pytest.fail("the file was read"))  # type: ignore[assignment]


def test_only_the_first_rank_of_a_machine_reads_the_file_and_all_agree(tmp_path: Path) -> None:
    store, file = dist.HashStore(), checkpoint(tmp_path / "a")
    agreed = [
        check_checkpoint_hashes(rank(number), store, [("m", file if number % 2 == 0 else Unread(file.path, None))], 5)
        for number in range(4)
    ]
    assert agreed == [{"m": file.fingerprint}] * 4


def test_a_machine_with_another_file_is_refused(tmp_path: Path) -> None:
    store = dist.HashStore()
    check_checkpoint_hashes(rank(0), store, [("m", checkpoint(tmp_path / "a"))], 5)
    with pytest.raises(MeshError, match="on machine 1 differs from machine 0's"):
        check_checkpoint_hashes(rank(2), store, [("m", checkpoint(tmp_path / "b", seed=1))], 5)


def test_parts_of_one_file_are_cached_under_different_names(tmp_path: Path) -> None:
    file = checkpoint(tmp_path / "a")
    shares = divide(file.config, Mesh(tensor=2, pipeline=2))
    names = {ShardCheckpoint(file, share, "known").fingerprint for share in shares}
    assert len(names) == 4
    assert all(name.startswith("known-part-") for name in names)
