"""Where cores may run in a cluster, and which constraint is named when there is no such place."""

from pathlib import Path

import msgspec
import pytest

from gateway.runtime.cluster.placement import CorePlacement, NodeRoom, NoRoomError, placement_of, require_room
from tests.gateway.device_catalog import write_catalog
from tiers.catalog.load import load_catalog

MIB = 2.0**20
FOUR_CARDS = CorePlacement(core="gpu-70b", bundles=[{"CPU": 4, "GPU": 4}])
TWO_STAGES = CorePlacement(core="big", bundles=[{"GPU": 2}, {"GPU": 2}], strategy="SPREAD")


def test_the_cpus_core_takes_processors_and_its_arena() -> None:
    placement = placement_of(load_catalog("laptop"), "cpu", cpus=2)

    assert placement.bundles == [{"CPU": 2, "memory": 402_653_184}]


def test_tensor_parallel_ranks_are_packed_on_one_node() -> None:
    placement = placement_of(load_catalog("datacenter"), "gpu-70b", cpus=1)

    assert placement == FOUR_CARDS
    assert placement.strategy == "STRICT_PACK"


def test_each_pipeline_stage_is_a_bundle_of_its_own() -> None:
    catalog = load_catalog("datacenter")
    groups = [msgspec.structs.replace(group, pipeline=2 if group.cards == 4 else 1) for group in catalog.gpu_groups]

    placement = placement_of(msgspec.structs.replace(catalog, gpu_groups=groups), "gpu-70b", cpus=1)

    assert placement.bundles == [{"CPU": 2, "GPU": 2}] * 2
    assert placement.strategy == "SPREAD"


def test_a_group_on_the_host_takes_memory_for_its_cards(tmp_path: Path) -> None:
    catalog = load_catalog(str(write_catalog(tmp_path / "catalog.toml")))

    (bundle,) = placement_of(catalog, "card", cpus=1).bundles

    assert bundle == {"CPU": 1, "memory": catalog.group("card").card_bytes}


def test_cards_on_two_nodes_do_not_make_room_for_ranks_of_one_node() -> None:
    nodes = [NodeRoom("a", {"CPU": 8, "GPU": 2}), NodeRoom("b", {"CPU": 8, "GPU": 3})]

    with pytest.raises(NoRoomError, match=r"needs 4 GPU on one node \(STRICT_PACK\), and the most .* is 3 GPU"):
        require_room(FOUR_CARDS, nodes)


def test_enough_of_each_on_different_nodes_is_said_to_be_so() -> None:
    nodes = [NodeRoom("a", {"CPU": 1, "GPU": 4}), NodeRoom("b", {"CPU": 8, "GPU": 0})]

    with pytest.raises(NoRoomError, match="enough of each, but none of all together"):
        require_room(FOUR_CARDS, nodes)


def test_memory_is_reported_in_mib() -> None:
    placement = CorePlacement(core="cpu", bundles=[{"memory": 512 * MIB}])

    with pytest.raises(NoRoomError, match=r"needs 512 MiB of memory .* is 100 MiB of memory"):
        require_room(placement, [NodeRoom("a", {"memory": 100 * MIB})])


def test_replicas_do_not_take_the_same_room_twice() -> None:
    one = CorePlacement(core="cpu", bundles=[{"CPU": 1}])
    nodes = [NodeRoom("a", {"CPU": 1}), NodeRoom("b", {"CPU": 2})]

    assert require_room(one, nodes, 3) == [["a"], ["b"], ["b"]]
    with pytest.raises(NoRoomError, match="replica 4 of 4"):
        require_room(one, nodes, 4)


def test_pipeline_stages_spread_over_nodes_and_share_one_only_if_they_must() -> None:
    two, one = [NodeRoom("a", {"GPU": 4}), NodeRoom("b", {"GPU": 2})], [NodeRoom("a", {"GPU": 4})]

    assert require_room(TWO_STAGES, two) == [["a", "b"]]
    assert require_room(TWO_STAGES, one) == [["a", "a"]]
    with pytest.raises(NoRoomError, match="there are not so many places"):
        require_room(TWO_STAGES, [NodeRoom("a", {"GPU": 3})])


def test_a_cluster_without_nodes_says_so() -> None:
    with pytest.raises(NoRoomError, match="it has no nodes"):
        require_room(FOUR_CARDS, [])
