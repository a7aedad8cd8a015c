"""The published rule of how many replicas there should be."""

import pytest

from gateway.runtime.cluster.placement import BLOCKS, SEATS, desired_replicas, pressures, serve_policy
from inference_core.protocol import CoreStats, Knobs, ModelStats


class Context:
    """What Ray Serve passes to a policy, as far as ours uses it."""

    def __init__(self, replicas: int, metrics: dict[str, dict[str, float]] | None) -> None:
        self.current_num_replicas, self.aggregated_metrics = replicas, metrics


def model(running: int, waiting: int, in_use: int) -> ModelStats:
    return ModelStats(
        name="m",
        running=running,
        waiting=waiting,
        blocks_in_use=in_use,
        blocks_cached=0,
        blocks_total=100,
        prompt_tokens=0,
        generated_tokens=0,
        prefix_hit_tokens=0,
        prefix_query_tokens=0,
        preemptions=0,
        step_seconds_mean=0.0,
        predicted_wait_seconds=0.0,
        knobs=Knobs(max_num_seqs=10),
    )


def test_the_busiest_model_speaks_for_its_core() -> None:
    stats = CoreStats(
        query_id="", steps=0, arena_bytes=0, slab_bytes=1, slabs_free=0, models=[model(1, 0, 60), model(10, 5, 10)]
    )

    assert pressures(stats) == {SEATS: 1.5, BLOCKS: 0.6}


@pytest.mark.parametrize(
    ("replicas", "seats", "blocks", "wanted"),
    [
        (2, [0.7, 0.7], [0.1, 0.1], 2),
        (2, [1.4, 1.4], [0.1, 0.1], 4),
        (2, [0.1, 0.1], [0.8, 0.8], 2),
        (2, [0.1, 0.1], [1.0, 1.0], 3),
        (4, [0.35] * 4, [0.0] * 4, 2),
        (3, [0.0] * 3, [0.0] * 3, 1),
        (2, [0.75, 0.75], [0.0, 0.0], 2),
        (2, [], [], 2),
    ],
    ids=["as aimed", "queue", "blocks as aimed", "blocks", "fewer", "idle", "within a tenth", "no reports"],
)
def test_replicas_follow_the_larger_pressure(
    replicas: int, seats: list[float], blocks: list[float], wanted: int
) -> None:
    assert desired_replicas(replicas, seats, blocks) == wanted


def test_a_steady_load_settles_and_does_not_flap() -> None:
    load, replicas, seen = 3.0, 1, []  # seats wanted by the whole load
    for _ in range(6):
        replicas = desired_replicas(replicas, [load / replicas] * replicas, [0.0] * replicas)
        seen.append(replicas)

    assert seen == [5, 5, 5, 5, 5, 5]


def test_ray_serve_gets_the_rules_result() -> None:
    assert serve_policy(Context(2, {SEATS: {"a": 1.4, "b": 1.4}, BLOCKS: {"a": 0.0, "b": 0.0}})) == (4, {})  # type: ignore[arg-type]
    assert serve_policy(Context(2, None)) == (2, {})  # type: ignore[arg-type]
