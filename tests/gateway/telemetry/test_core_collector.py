"""A core's snapshot as Prometheus scrapes it."""

from gateway.telemetry.core_collector import CoreCollector
from inference_core.protocol import KVTransferStats, SpeculationStats, SwapStats
from tests.inference_core.hash_model import hash_core


def test_handovers_are_counted_by_outcome() -> None:
    stats = hash_core("m").stats()
    stats.models[0].handover = KVTransferStats(
        out_blocks=3, in_blocks=5, refused_frames=1, outcomes={"done": 2, "corrupt": 1}, seconds=0.5, tokens=80
    )
    collector = CoreCollector()
    collector.stats = {"cpu": stats}
    samples = [sample for family in collector.collect() for sample in family.samples]

    by_outcome = {s.labels["outcome"]: s.value for s in samples if s.name == "aio_handovers_total"}
    scraped = {s.name: s.value for s in samples}
    assert by_outcome == {"done": 2, "corrupt": 1}
    assert (scraped["aio_handed_out_blocks_total"], scraped["aio_handed_in_blocks_total"]) == (3, 5)
    assert scraped["aio_handover_refused_frames_total"] == 1
    assert (scraped["aio_handover_seconds_total"], scraped["aio_handover_tokens_total"]) == (0.5, 80)


def test_swaps_are_reported_in_blocks_bytes_and_seconds() -> None:
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
    scraped = {s.name: s.value for family in collector.collect() for s in family.samples}
    assert scraped["aio_host_cache_blocks"] == 3
    assert (scraped["aio_swapped_out_blocks_total"], scraped["aio_swapped_in_blocks_total"]) == (5, 2)
    assert scraped["aio_swapped_bytes_total"] == 700
    assert scraped["aio_swap_refused_blocks_total"] == 7
    assert (scraped["aio_swap_copying_seconds_total"], scraped["aio_swap_spared_seconds_total"]) == (0.5, 4.0)


def test_queues_blocks_batches_and_the_arena_are_shown_as_the_core_counts_them() -> None:
    """OB-05."""
    collector, stats = CoreCollector(), hash_core("m").stats()
    collector.stats = {"cpu": stats}
    stats.arena_bytes, stats.slab_bytes, stats.slabs_free = 1000, 100, 4
    model = stats.models[0]
    model.running, model.waiting, model.preemptions = 2, 3, 5
    model.blocks_in_use, model.blocks_total = 30, 120
    model.batch_sizes = {1: 2, 2: 1, 3: 4, 256: 1, 300: 1}
    model.speculation = SpeculationStats(proposed=[9, 8], accepted=[6, 1], rounds=9, seconds=2.0, plain_seconds=3.0)
    samples = [sample for family in collector.collect() for sample in family.samples]

    scraped = {s.name: s.value for s in samples}
    assert (scraped["vllm:num_requests_running"], scraped["vllm:num_requests_waiting"]) == (2, 3)
    assert (scraped["vllm:num_preemptions_total"], scraped["vllm:kv_cache_usage_perc"]) == (5, 0.25)
    within = {s.labels["le"]: s.value for s in samples if s.name == "aio_step_sequences_bucket"}
    assert [within[most] for most in ("1", "2", "4", "128", "256", "+Inf")] == [2, 3, 7, 7, 8, 9]
    drafted = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
    assert [scraped[f"vllm:spec_decode_{name}_total"] for name in drafted] == [9, 17, 7]
    assert scraped["aio_speculation_speedup"] == 1.5
    arena = {s.labels["state"]: s.value for s in samples if s.name == "aio_kv_arena_bytes"}
    assert arena == {"free": 400, "owned": 600}


def test_the_threads_of_a_core_are_shown_where_its_kernels_have_them() -> None:
    collector = CoreCollector()
    collector.stats = {"cpu": hash_core("m").stats(), "card": hash_core("n").stats()}
    collector.stats["cpu"].threads = 3
    found = {s.labels["core"]: s.value for f in collector.collect() for s in f.samples if s.name == "aio_core_threads"}
    assert found == {"cpu": 3}
