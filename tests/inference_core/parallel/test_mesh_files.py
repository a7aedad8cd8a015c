"""Every architecture and every file format, divided over two ranks, answers as it does on one device."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from inference_core.engine.core import Core
from inference_core.loading.load_core import use_threads
from inference_core.parallel.leader import LocalMesh
from inference_core.parallel.mesh import Mesh
from tests.inference_core.device.test_served_files import FAMILIES, FILES, is_computed_by, spec_of
from tests.inference_core.parallel.device_meshes import device_core, device_mesh_spec, on_one_device
from tests.inference_core.parallel.meshes import greedy_answers

pytestmark = pytest.mark.mesh

PROMPTS = [[7 * i % 40 for i in range(22)], [3, 9, 27, 1]]


@dataclass(frozen=True)
class Both:
    """The same models on a mesh and on one device."""

    mesh: Core
    single: Core
    names: list[str]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    folder = tmp_path_factory.mktemp("models")
    paths = {name: write(folder / str(number)) for number, (name, write) in enumerate((FAMILIES | FILES).items())}
    core = device_core(*(spec_of(name, path) for name, path in paths.items() if is_computed_by("a mesh", path)))
    with LocalMesh(device_mesh_spec(core, Mesh(tensor=2)), folder / "cache") as running:
        single = on_one_device(core, folder / "cache")
        yield Both(running.core, single, [model.name for model in core.models])
    use_threads(None)  # the leader computed with its part of the CPUs


@pytest.mark.parametrize("name", [*FAMILIES, *FILES])
def test_two_ranks_answer_as_one_device(name: str, both: Both) -> None:
    if name not in both.names:
        pytest.skip("meshes refuse it")
    answers = greedy_answers(both.mesh, PROMPTS, 6, name)
    assert answers == greedy_answers(both.single, PROMPTS, 6, name)
    assert all(len(tokens) == 6 for tokens in answers.values())
