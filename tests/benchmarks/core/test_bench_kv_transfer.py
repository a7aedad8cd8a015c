"""The benchmark of hand-overs measures what it says: every block goes over, and the answers begin from them."""

import asyncio

import pytest

from benchmarks.core.kv_transfer import bench_handover
from inference_core.protocol import Knobs
from tests.inference_core.hash_model import hash_core


def test_each_length_is_handed_over_in_every_round() -> None:
    cores, stages = [], []

    def make():
        cores.append(hash_core("m", vocab_size=30_000, slabs=256, knobs=Knobs()))
        return cores[-1]

    figures = asyncio.run(
        bench_handover(make, "m", [40, 100], rounds=2, progress=lambda stage, share: stages.append(share))
    )

    assert [(one.prompt_tokens, one.handed_tokens, one.num_bytes) for one in figures] == [
        (40, 32, 32 * 16),
        (100, 96, 96 * 16),
    ]
    assert all(one.bytes_per_token == 16 for one in figures)
    assert figures[0].break_even_bytes_per_second == pytest.approx(32 * 16 / figures[0].prefill.median)
    source, target = (core.stats().models[0] for core in cores)
    assert (source.handover.out_blocks, target.handover.in_blocks) == (3 * 8, 3 * 8)
    assert target.prefix_hit_tokens == 3 * (32 + 96)
    assert stages[-1] == 1.0
