"""What a core's snapshot says is what Prometheus scrapes."""

from gateway.telemetry.core_collector import CoreCollector
from inference_core.fake_runner import hash_core
from inference_core.protocol import SwapStats


def test_swaps_are_told_in_blocks_bytes_and_seconds() -> None:
    collector = CoreCollector()
    stats = hash_core("m").stats()
    collector.stats = {"gpu": stats}
    stats.models[0].swap = SwapStats(
        blocks_kept=3,
        block_bytes=100,
        out_blocks=5,
        back_blocks=2,
        refused_blocks=7,
        copying_seconds=0.5,
        spared_seconds=4.0,
    )
    told = {s.name: s.value for family in collector.collect() for s in family.samples}
    assert told["aio_host_cache_blocks"] == 3
    assert (told["aio_swapped_out_blocks_total"], told["aio_swapped_in_blocks_total"]) == (5, 2)
    assert told["aio_swapped_bytes_total"] == 700
    assert told["aio_swap_refused_blocks_total"] == 7
    assert (told["aio_swap_copying_seconds_total"], told["aio_swap_spared_seconds_total"]) == (0.5, 4.0)
