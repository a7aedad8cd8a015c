"""What a core's statistics say of memory and pipelines, as metrics."""

from typing import Any

import pytest

from gateway.runtime.cluster.merged_stats import merged
from gateway.telemetry.core_collector import CoreCollector
from inference_core.protocol import CoreStats, ModelStats, PipelineStats
from inference_core.protocol.outputs import STEP_SECONDS

GB = 10**9


def model(name: str, weight_bytes: int, pipeline: PipelineStats | None = None) -> ModelStats:
    idle: dict[str, Any] = dict.fromkeys(
        ("running", "waiting", "blocks_in_use", "blocks_cached", "blocks_total", "prompt_tokens", "generated_tokens",
         "prefix_hit_tokens", "prefix_query_tokens", "preemptions", "step_seconds_mean", "predicted_wait_seconds"), 0,
    )  # fmt: skip
    return ModelStats(
        name=name,
        weight_bytes=weight_bytes,
        pipeline=pipeline,
        step_seconds_counts=[0] * (len(STEP_SECONDS) + 1),
        **idle,
    )


def core(*models: ModelStats, slabs: int = 400, slabs_free: int = 80) -> CoreStats:
    """Slabs of 256 MiB."""
    size = 2**28
    return CoreStats(
        query_id="", steps=0, arena_bytes=slabs * size, slab_bytes=size, slabs_free=slabs_free, models=list(models)
    )


def samples(stats: CoreStats) -> dict[tuple[str, str], float]:
    collector = CoreCollector()
    collector.stats = {"card": stats}
    return {
        (sample.name, sample.labels.get("model_name", "")): sample.value
        for family in collector.collect()
        for sample in family.samples
    }


def test_weights_of_a_70b_in_4_bits_are_32_percent_of_weights_and_80_gib_of_keys_and_values() -> None:
    found = samples(core(model("70b", 38 * GB), model("draft", 2 * GB)))

    assert found["aio_weight_bytes", "70b"] == 38 * GB
    assert found["aio_weights_share", ""] == pytest.approx(0.32, abs=0.005)


def test_a_core_that_knows_no_weights_has_no_share() -> None:
    assert ("aio_weights_share", "") not in samples(core(model("m", 0)))


def test_the_idle_share_of_stages_is_the_mean_of_the_steps() -> None:
    counts = PipelineStats(stages=4, steps=2, micro_batches=13, idle_sum=0.75 + 0.2)

    found = samples(core(model("cut", 1, counts), model("whole", 1), model("new", 1, PipelineStats(stages=4))))

    assert {name: value for (metric, name), value in found.items() if metric == "aio_pipeline_idle_share"} == {
        "cut": pytest.approx(0.475)
    }


def test_replicas_add_up_weights_and_steps_and_a_former_one_leaves_its_steps_alone() -> None:
    one = core(model("m", 10, PipelineStats(stages=2, steps=1, micro_batches=2, idle_sum=0.5)))

    (all_of,) = merged("", [one, one], [one]).models

    assert all_of.weight_bytes == 20
    assert all_of.pipeline == PipelineStats(stages=2, steps=3, micro_batches=6, idle_sum=1.5)
