"""The ranks of a replica's pipeline stages in the bundles of its placement group, one stage each, the leader's
first."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from inference_core.parallel.ranks.local_ranks import LocalRanks, RankHosts
from inference_core.parallel.topology.environment import RankEnvironment


def stage_places() -> RankHosts:
    """Return the place of each bundle of this process's replica: a machine, or a Ray node."""
    group = ray.util.get_current_placement_group()
    assert group is not None, "replicas are deployed with a placement group"
    if group.bundle_count == 1:
        return RankHosts()
    return RankHosts(
        master=ray.util.get_node_ip_address(),
        nodes=group.bundle_count,
        start=lambda environments, arguments: StageRanks(group, environments, arguments),
    )


class StageRanks:
    """The leader's stage runs as its own processes, every other one as processes of an actor in its bundle.

    A lost rank of another node is noticed by its broken connection; actors end with the replica that made them.
    """

    def __init__(
        self, group: PlacementGroup, environments: Sequence[RankEnvironment], arguments: Sequence[str]
    ) -> None:
        stages = {
            stage: list(ranks)
            for stage, ranks in groupby(environments, lambda each: each.rank // each.local_world_size)
        }
        self._here = LocalRanks(stages.pop(0, []), arguments)
        self._others: list[Any] = []
        for stage, ranks in stages.items():
            bundle = group.bundle_specs[stage]
            options: dict[str, Any] = {
                "num_cpus": bundle.get("CPU", 0),
                "num_gpus": bundle.get("GPU", 0),
                "memory": bundle.get("memory", 0),
                "scheduling_strategy": PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=stage),
            }
            self._others.append(ray.remote(LocalRanks).options(**options).remote(ranks, arguments))

    def check(self) -> None:
        """See `Ranks`; of this machine's ranks."""
        self._here.check()

    def close(self, grace_seconds: float = 10.0) -> None:
        """See `Ranks`; ranks of other machines end when their leader does."""
        self._here.close(grace_seconds)
        for actor in self._others:
            ray.kill(actor)
