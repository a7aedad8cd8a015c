"""Adapters over meshes of two processes joined by gloo give the answers of one process."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from inference_core.engine.core import Core
from inference_core.errors import ModelFileError
from inference_core.loaders.open_checkpoint import open_checkpoint
from inference_core.loading.load_core import use_threads
from inference_core.parallel.leader import LocalMesh
from inference_core.parallel.mesh import Mesh
from inference_core.parallel.messages import ReadAdapter
from inference_core.protocol import AddRequest, SamplingParams
from tests.inference_core.loaders.int4_checkpoints import random_model, write_packed
from tests.inference_core.lora.adapters import write_adapter
from tests.inference_core.parallel.device_meshes import device_core, device_mesh_spec, four_bit, on_one_device

pytestmark = pytest.mark.mesh
PROMPT = [5, 40, 3, 41, 7, 2, 19, 8, 22, 1, 36]
ORDER = ("a", "b", "", "c", "b", "a")
MESHES = [Mesh(tensor=2), Mesh(pipeline=2)]


@dataclass(frozen=True)
class Run:
    """A mesh with two slots, and a core of one process that has as many; adapter "a" is in their specifications."""

    mesh: LocalMesh
    alone: Core
    folders: dict[str, str]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight heads over four KV heads, two layers, AWQ groups of 32."""
    return write_packed(tmp_path_factory.mktemp("model"), random_model(32), "awq", 32)


@pytest.fixture(scope="module")
def folders(model: Path, weight_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    config, root = open_checkpoint(model, weight_cache).config, tmp_path_factory.mktemp("adapters")
    wanted = {"a": {"rank": 8}, "b": {"rank": 3, "modules": ("q_proj", "v_proj", "o_proj")}, "c": {"rank": 5}}
    return {
        name: str(write_adapter(root / name, config, seed=seed, strength=1.0, **fields))
        for seed, (name, fields) in enumerate(wanted.items())
    }


@pytest.fixture(scope="module", params=MESHES, ids=lambda mesh: f"tp{mesh.tensor}-pp{mesh.pipeline}")
def run(request: pytest.FixtureRequest, model: Path, folders: dict[str, str], weight_cache: Path) -> Iterator[Run]:
    core = device_core(msgspec.structs.replace(four_bit("m", model), max_adapters=2, adapters={"a": folders["a"]}))
    with LocalMesh(device_mesh_spec(core, request.param), weight_cache) as running:
        yield Run(running, on_one_device(core, weight_cache), folders)
    use_threads(None)  # the leader computed with its part of the CPUs


def answers(core: Core, folders: dict[str, str]) -> dict[str, list[int]]:
    """Six requests together, with three adapters that come while others are served; the last one leaves again."""
    said: dict[str, list[int]] = {}
    for number, adapter in enumerate(ORDER):
        if adapter not in ("", *(info.name for info in core.adapters("m"))):
            core.load_adapter("m", adapter, folders[adapter])
        sampling = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
        name = f"{number}:{adapter}"
        core.add(AddRequest(request_id=name, model="m", prompt_token_ids=PROMPT, sampling=sampling, adapter=adapter))
        _step(core, said)
    core.unload_adapter("m", "c")
    while core.has_work:
        _step(core, said)
    core.check_integrity()
    assert [info.name for info in core.adapters("m")] == ["a", "b"]
    return said


def _step(core: Core, said: dict[str, list[int]]) -> None:
    for output in core.step():
        assert output.error is None, output.error
        said.setdefault(output.request_id, []).extend(output.token_ids)


def test_a_mesh_with_adapters_gives_the_answers_of_one_process(run: Run) -> None:
    wanted = answers(run.alone, run.folders)

    given = answers(run.mesh.core, run.folders)

    assert given == wanted
    assert len({tuple(tokens) for tokens in wanted.values()}) == 4, "the adapters must make a difference"
    stats = run.mesh.core.stats().models[0]
    assert stats.adapter_slots == 2
    assert stats.adapter_evictions >= 1


def test_an_adapter_that_one_rank_cannot_read_is_refused_and_the_mesh_goes_on(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = run.mesh.mesh.leader
    monkeypatch.setattr(leader._rank.runner, "execute", lambda command: None)
    with pytest.raises(ModelFileError, match=r"rank 1: .* on this machine differs"):
        leader.read_adapter(ReadAdapter("m", 99, run.folders["b"], b"of another folder"))
    monkeypatch.undo()
    assert answers(run.mesh.core, run.folders).keys() == {f"{i}:{name}" for i, name in enumerate(ORDER)}
