"""A mesh of devices that loses a rank ends its core with an error that names it; cards that are missing are refused."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from inference_core.errors import MeshError, RankLostError
from inference_core.loading.load_core import use_threads
from inference_core.parallel.leader import load_device_mesh
from inference_core.protocol import AddRequest, SamplingParams
from tests.inference_core.loaders.int4_checkpoints import random_model, write_packed
from tests.inference_core.parallel.device_meshes import device_core, four_bit
from tests.inference_core.parallel.meshes import greedy_answers

SECONDS = 60.0
PROMPTS = ([5, 40, 3, 41, 7, 2], [18, 33, 9])


@pytest.fixture
def awq(tmp_path: Path) -> Iterator[Path]:
    """Eight heads over four KV heads, two layers, AWQ groups of 32."""
    yield write_packed(tmp_path / "model", random_model(32), "awq", 32)
    use_threads(None)  # a leader computes with its part of the CPUs


@pytest.mark.mesh
def test_a_lost_rank_ends_a_core_of_devices_with_its_number(awq: Path, tmp_path: Path) -> None:
    group = load_device_mesh(device_core(four_bit("awq", awq)), [0, 1], tmp_path, device="cpu", card_bytes=1 << 30)
    try:
        assert len(greedy_answers(group.core, PROMPTS, tokens=6, model="awq")["0"]) == 6
        sampling = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
        group.core.add(AddRequest(request_id="a", model="awq", prompt_token_ids=[1, 2, 3], sampling=sampling))
        assert group.core.step()
        group.ranks.processes[1].send_signal(signal.SIGKILL)
        group.ranks.processes[1].wait(SECONDS)
        with pytest.raises(RankLostError, match=r"rank\(s\) 1 died without a report"):
            group.core.step()
    finally:
        group.close()


def test_cards_that_are_not_there_are_refused(awq: Path, tmp_path: Path) -> None:
    there = torch.cuda.device_count()
    with pytest.raises(MeshError, match=f"cuda:{there}, but this machine has {there} CUDA"):
        load_device_mesh(device_core(four_bit("awq", awq)), [there, there + 1], tmp_path)
    with pytest.raises(MeshError, match="name 2 different devices"):
        load_device_mesh(device_core(four_bit("awq", awq)), [0, 0], tmp_path)
