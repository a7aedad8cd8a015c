"""How ranks are numbered, and which of them belong together (SPEC PX-04)."""

import pytest

from inference_core.errors import MeshError
from inference_core.parallel.mesh import Mesh, Position


def test_ranks_count_tensor_first_then_stages() -> None:
    mesh = Mesh(tensor=2, pipeline=3)

    assert [mesh.position(rank) for rank in (0, 1, 2, 5)] == [
        Position(0, 0), Position(0, 1), Position(1, 0), Position(2, 1),
    ]  # fmt: skip
    for rank in range(mesh.size):
        at = mesh.position(rank)
        assert mesh.rank(at.stage, at.shard) == rank


def test_every_rank_has_one_tensor_group() -> None:
    mesh = Mesh(tensor=2, pipeline=2)

    assert mesh.tensor_groups() == [[0, 1], [2, 3]]
    assert all(rank in mesh.tensor_group(rank) for rank in range(4))


@pytest.mark.parametrize("sizes", [{"tensor": 0}, {"pipeline": -1}])
def test_a_mesh_without_ranks_is_refused(sizes: dict[str, int]) -> None:
    with pytest.raises(MeshError, match="at least 1"):
        Mesh(**sizes)


def test_a_rank_outside_of_the_mesh_is_refused() -> None:
    with pytest.raises(MeshError, match="rank 4 is outside of a mesh of 4"):
        Mesh(tensor=4).position(4)


def test_a_tensor_group_may_not_span_machines_but_stages_may() -> None:
    Mesh(tensor=4, pipeline=2).check_node(4)
    Mesh(tensor=2, pipeline=4).check_node(4)
    Mesh(tensor=8).check_node(8)
    with pytest.raises(MeshError, match="4 ranks per machine are not a multiple of 8"):
        Mesh(tensor=8).check_node(4)
    with pytest.raises(MeshError, match="4 ranks per machine are not a multiple of 3"):
        Mesh(tensor=3, pipeline=2).check_node(4)
