"""How many replicas a core should have, by its queue and its KV cache: the rule, and its form for Ray Serve.

A replica's pressure is the larger of two shares, each divided by its target: batch places needed if no sequence had to
wait, and KV blocks in use. The wanted number is replicas times mean pressure, as in Kubernetes' horizontal autoscaler;
as there, nothing changes within a tenth of 1.
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
    """Return the shares of batch places needed and of KV blocks used, of the model with the most of each; 1 is all."""
    seats = [(model.running + model.waiting) / model.knobs.max_num_seqs for model in stats.models]
    blocks = [model.blocks_in_use / model.blocks_total for model in stats.models if model.blocks_total]
    return {SEATS: max(seats, default=0.0), BLOCKS: max(blocks, default=0.0)}


def desired_replicas(replicas: int, seats: Sequence[float], blocks: Sequence[float]) -> int:
    """Return the wanted number, at least 1, from the shares of the replicas that reported."""
    if not seats or not blocks:
        return replicas
    pressure = max(_mean(seats) / TARGET_SEATS, _mean(blocks) / TARGET_BLOCKS)
    if abs(pressure - 1) <= TOLERANCE:
        return replicas
    return max(1, math.ceil(replicas * pressure - 1e-9))


def serve_policy(context: "AutoscalingContext") -> tuple[int, dict[str, Any]]:
    """The rule in the form that Ray Serve calls; bounds and delays are Serve's."""
    reported: Mapping[str, Mapping[Any, float]] = context.aggregated_metrics or {}
    seats, blocks = (list(reported.get(name, {}).values()) for name in (SEATS, BLOCKS))
    return desired_replicas(context.current_num_replicas, seats, blocks), {}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
