"""How many replicas a core should have, by its queue and its keys and values; the rule, and its form for Ray Serve.

A replica's pressure is the larger of two shares: of the seats that its sequences would take if none had to wait, and
of its KV blocks that are in use, each divided by the share that is aimed at. Replicas times mean pressure is how many
are wanted, as Kubernetes' horizontal autoscaler has it, and as there nothing changes within a tenth of 1.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from inference_core.protocol import CoreStats

if TYPE_CHECKING:
    from ray.serve.config import AutoscalingContext

TARGET_SEATS = 0.7
TARGET_BLOCKS = 0.8
TOLERANCE = 0.1
SEATS, BLOCKS = "seats_wanted", "blocks_in_use"


def pressures(stats: CoreStats) -> dict[str, float]:
    """Shares of seats wanted and of KV blocks in use: of the model that has most of each, 1 being all of them."""
    seats = [(model.running + model.waiting) / model.knobs.max_num_seqs for model in stats.models]
    blocks = [model.blocks_in_use / model.blocks_total for model in stats.models if model.blocks_total]
    return {SEATS: max(seats, default=0.0), BLOCKS: max(blocks, default=0.0)}


def desired_replicas(replicas: int, seats: Sequence[float], blocks: Sequence[float]) -> int:
    """Given the shares of `replicas` (or of those that told); at least 1."""
    if not seats or not blocks:
        return replicas
    pressure = max(_mean(seats) / TARGET_SEATS, _mean(blocks) / TARGET_BLOCKS)
    if abs(pressure - 1) <= TOLERANCE:
        return replicas
    return max(1, math.ceil(replicas * pressure - 1e-9))


def serve_policy(context: "AutoscalingContext") -> tuple[int, dict[str, Any]]:
    """The rule in the form that Ray Serve calls; bounds and delays are Serve's."""
    told: Mapping[str, Mapping[Any, float]] = context.aggregated_metrics or {}
    seats, blocks = (list(told.get(name, {}).values()) for name in (SEATS, BLOCKS))
    return desired_replicas(context.current_num_replicas, seats, blocks), {}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
