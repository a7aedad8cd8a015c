"""Where a core's ranks can run in a cluster, which constraint fails if nowhere, and how many replicas a core should
have. Independent of Ray. The errors of a cluster are one type per action that the operator can take.

A replica's pressure is the larger of two shares, each divided by its target: batch places needed if no sequence had to
wait, and KV blocks in use. The wanted number is replicas times mean pressure, as in Kubernetes' horizontal autoscaler;
as there, nothing changes within a tenth of 1.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from inference_core.protocol import CoreStats
from tiers.catalog.catalog import CPU_CORE, Catalog

if TYPE_CHECKING:
    from ray.serve.config import AutoscalingContext


class ClusterError(RuntimeError):
    """The cluster is unreachable or failed to do something; the message says what to check."""


class NoRoomError(ClusterError):
    """No node of the cluster can hold a replica; the message names the constraint. Add or free nodes."""


Bundle = dict[str, float]
"""Resources by Ray's names that one node provides together: CPU, GPU, and memory in bytes."""
Strategy = Literal["STRICT_PACK", "SPREAD"]
_BYTES = "memory"


class CorePlacement(msgspec.Struct, frozen=True, kw_only=True):
    """What one replica of a core needs: the bundles of its placement group, the leader's first.

    STRICT_PACK: all on one node, since tensor-parallel ranks exchange activations in every layer. SPREAD: pipeline
    stages, each a bundle with all of its tensor-parallel ranks, on different nodes if there are enough.
    """

    core: str
    bundles: list[Bundle]
    strategy: Strategy = "STRICT_PACK"


class NodeRoom(msgspec.Struct, frozen=True):
    """A node, its free resources and the address at which its cores listen."""

    name: str
    free: Mapping[str, float]
    address: str = ""


def placement_of(catalog: Catalog, core: str, cpus: float) -> CorePlacement:
    """`cpus`: of a replica of the CPU core, and of every rank of another one."""
    if core == CPU_CORE:
        return CorePlacement(core=core, bundles=[{"CPU": cpus, _BYTES: catalog.core.arena_bytes}])
    group = catalog.group(core)
    # One process starts the ranks of a bundle, and has to own all of their cards.
    bundle: Bundle = {"CPU": cpus * group.tensor}
    bundle |= {_BYTES: group.tensor * group.card_bytes} if group.device == "cpu" else {"GPU": group.tensor}
    strategy: Strategy = "STRICT_PACK" if group.pipeline == 1 else "SPREAD"
    return CorePlacement(core=core, bundles=[bundle] * group.pipeline, strategy=strategy)


def require_room(placement: CorePlacement, nodes: Sequence[NodeRoom], replicas: int = 1) -> list[list[str]]:
    """Return the nodes of the bundles of each of `replicas`, in order. Raises `NoRoomError` with what fails."""
    free = {node.name: dict(node.free) for node in nodes}
    node_lists: list[list[str]] = []
    for number in range(replicas):
        placed = _placed(placement, free)
        if placed is None:
            of = f"replica {number + 1} of {replicas}: " if replicas > 1 else ""
            raise NoRoomError(f"the cluster has no room for {placement.core}: {of}{_why(placement, free)}")
        node_lists.append(placed)
    return node_lists


def _placed(placement: CorePlacement, free: dict[str, dict[str, float]]) -> list[str] | None:
    """Return the nodes of one replica and take their resources; None, taking nothing, if there are none."""
    if placement.strategy == "STRICT_PACK":
        together = _total(placement.bundles)
        node = next((name for name, room in free.items() if _holds(room, together)), None)
        if node is None:
            return None
        _take(free[node], together)
        return [node] * len(placement.bundles)
    left = {name: dict(room) for name, room in free.items()}
    nodes: list[str] = []
    for bundle in placement.bundles:
        fitting = [name for name, room in left.items() if _holds(room, bundle)]
        if not fitting:
            return None
        nodes.append(next((name for name in fitting if name not in nodes), fitting[0]))
        _take(left[nodes[-1]], bundle)
    free.update(left)
    return nodes


def _why(placement: CorePlacement, free: Mapping[str, Mapping[str, float]]) -> str:
    if not free:
        return "it has no nodes"
    packed = placement.strategy == "STRICT_PACK"
    asked = _total(placement.bundles) if packed else placement.bundles[0]
    rule = "on one node" if packed else f"for each of {len(placement.bundles)} pipeline stages"
    for name, amount in asked.items():
        node = max(free, key=lambda node: free[node].get(name, 0.0))
        most = free[node].get(name, 0.0)
        if most < amount:
            needed, there = _amount(name, amount), _amount(name, most)
            return f"it needs {needed} {rule} ({placement.strategy}), and the most that is free on one is {there}"
    listed = ", ".join(_amount(name, amount) for name, amount in asked.items())
    if packed:
        return f"it needs {listed} {rule} ({placement.strategy}); nodes have enough of each, but none of all together"
    return f"it needs {listed} {rule} ({placement.strategy}), and there are not so many places"


def _amount(name: str, amount: float) -> str:
    return f"{amount / 2**20:,.0f} MiB of memory" if name == _BYTES else f"{amount:g} {name}"


def _total(bundles: Sequence[Bundle]) -> Bundle:
    total: Bundle = {}
    for bundle in bundles:
        for name, amount in bundle.items():
            total[name] = total.get(name, 0.0) + amount
    return total


def _holds(room: Mapping[str, float], asked: Mapping[str, float]) -> bool:
    return all(room.get(name, 0.0) >= amount for name, amount in asked.items())


def _take(room: dict[str, float], asked: Mapping[str, float]) -> None:
    for name, amount in asked.items():
        room[name] -= amount


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
