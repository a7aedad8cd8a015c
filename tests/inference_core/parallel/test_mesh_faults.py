"""When a rank dies, fails or never joins, the core ends with an error that names it, and no process is left behind."""

import signal
from pathlib import Path

import pytest

from inference_core.errors import MeshError, ModelFileError, RankLostError
from inference_core.parallel.leader import LocalMesh
from inference_core.parallel.mesh import Mesh, MeshSpec, RankEnvironment
from inference_core.parallel.messages import RunStep
from inference_core.protocol import AddRequest, Event, SamplingParams, SequenceOutput
from inference_core.transport.core_thread import CoreLoop
from tests.inference_core.loaders.int4_checkpoints import random_model, write_packed
from tests.inference_core.parallel.device_meshes import device_core, device_mesh_spec, four_bit
from tests.inference_core.parallel.meshes import greedy_answers, share

pytestmark = pytest.mark.processes

SECONDS = 60.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight heads over four KV heads, two layers, AWQ groups of 32."""
    return write_packed(tmp_path_factory.mktemp("model"), random_model(32), "awq", 32)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def spec_of(model: Path | str, mesh: Mesh) -> MeshSpec:
    return device_mesh_spec(device_core(four_bit("m", model)), mesh)


def endless() -> AddRequest:
    sampling = SamplingParams(temperature=0, max_tokens=50, ignore_eos=True)
    return AddRequest(request_id="a", model="m", prompt_token_ids=[1, 2, 3], sampling=sampling)


@pytest.mark.parametrize(
    ("mesh", "victim"),
    [
        (Mesh(tensor=2), 1),
        pytest.param(Mesh(pipeline=2), 1, marks=pytest.mark.mesh),
        pytest.param(Mesh(tensor=2, pipeline=2), 3, marks=pytest.mark.mesh),
    ],
)
def test_a_rank_killed_between_steps_ends_the_core_and_all_other_ranks(
    model: Path, cache: Path, mesh: Mesh, victim: int
) -> None:
    running = LocalMesh(spec_of(model, mesh), cache)
    try:
        running.core.add(endless())
        for _ in range(3):
            assert running.core.step()
        running.ranks.processes[victim].send_signal(signal.SIGKILL)
        running.ranks.processes[victim].wait(SECONDS)
        with pytest.raises(RankLostError, match=rf"rank\(s\) {victim} died without a report"):
            running.core.step()
        with pytest.raises(RankLostError, match=f"{victim}"):
            running.core.step()
        for process in running.ranks.processes.values():
            assert process.wait(SECONDS) != 0
    finally:
        running.close()


@pytest.mark.mesh
def test_a_rank_that_dies_in_the_middle_of_a_step_ends_the_core(model: Path, cache: Path) -> None:
    """The leader is within a sum over the ranks when the connection breaks."""
    running = LocalMesh(spec_of(model, Mesh(tensor=2, pipeline=2)), cache)
    try:
        stage = running.mesh.rank.models["m"].stage
        compute = stage.compute

        def kill_first(*arguments: object) -> object:
            running.ranks.processes[3].send_signal(signal.SIGKILL)
            running.ranks.processes[3].wait(SECONDS)
            return compute(*arguments)  # type: ignore[arg-type]

        stage.compute = kill_first  # type: ignore[method-assign, assignment]
        running.core.add(endless())
        with pytest.raises(RankLostError, match=r"rank\(s\) 3 died without a report"):
            running.core.step()
        for process in running.ranks.processes.values():
            assert process.wait(SECONDS) != 0
    finally:
        running.close()


@pytest.mark.mesh
def test_a_rank_that_fails_says_why_before_it_ends(model: Path, cache: Path) -> None:
    running = LocalMesh(spec_of(model, Mesh(pipeline=2)), cache)
    try:
        with pytest.raises(RankLostError, match="rank 1 failed: KeyError: 'unheard of'"):
            running.mesh.leader.run(RunStep("unheard of", [share("a", [1], 0, 0)], [0]))
        for process in running.ranks.processes.values():
            assert process.wait(SECONDS) != 0
    finally:
        running.close()


@pytest.mark.mesh
def test_the_leader_failing_in_mid_step_frees_the_others(model: Path, cache: Path) -> None:
    running = LocalMesh(spec_of(model, Mesh(tensor=2)), cache)
    try:

        def fail(*_: object) -> None:
            raise MemoryError("no room for activations")

        running.mesh.rank.models["m"].stage.compute = fail  # type: ignore[method-assign, assignment]
        running.core.add(endless())
        with pytest.raises(RankLostError, match=r"the leader failed .* MemoryError: no room for activations"):
            running.core.step()
        assert running.ranks.processes[1].wait(SECONDS) != 0
    finally:
        running.close()


@pytest.mark.mesh
def test_a_loop_that_drives_a_mesh_reports_the_lost_rank_as_the_cause_of_death(model: Path, cache: Path) -> None:
    running = LocalMesh(spec_of(model, Mesh(tensor=2)), cache)
    causes: list[BaseException | None] = []

    def deliver(events: list[Event]) -> None:
        if isinstance(events[0], SequenceOutput):
            running.ranks.processes[1].kill()

    loop = CoreLoop(lambda: running.core, deliver, causes.append)
    try:
        loop.start()
        loop.submit(endless())
        loop.join()
        assert isinstance(causes[0], RankLostError)
        assert "1 died" in str(causes[0])
    finally:
        running.close()


@pytest.mark.mesh
def test_closing_a_mesh_ends_its_processes_in_good_order(model: Path, cache: Path) -> None:
    with LocalMesh(spec_of(model, Mesh(tensor=2)), cache) as running:
        assert len(greedy_answers(running.core, [[1, 2, 3]], tokens=3)["0"]) == 3
    assert [process.returncode for process in running.ranks.processes.values()] == [0]
    running.close()
    with pytest.raises(RankLostError, match="the mesh was stopped"):
        running.mesh.runners["m"].logits([share("a", [1], 0, 0)], [0])


def test_what_cannot_be_divided_is_refused_before_anything_is_read(model: Path, cache: Path) -> None:
    spec = spec_of(model, Mesh(pipeline=3))
    with pytest.raises(MeshError, match="2 layers cannot give each of 3 ranks a part"):
        LocalMesh(spec, cache)
    with pytest.raises(ModelFileError, match="nowhere"):
        LocalMesh(spec_of("nowhere", Mesh(tensor=2)), cache)


def test_the_environment_of_a_rank_is_read_as_torchrun_writes_it() -> None:
    variables = {
        "RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29400", "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "2",
    }  # fmt: skip
    environment = RankEnvironment.read(variables)
    assert (environment.rank, environment.local_world_size, environment.agent_store) == (5, 4, True)
    assert environment.attempt == 2
    assert environment.variables().items() <= variables.items()
    with pytest.raises(MeshError, match="lacks LOCAL_RANK, MASTER_PORT"):
        RankEnvironment.read({k: v for k, v in variables.items() if k not in ("LOCAL_RANK", "MASTER_PORT")})
    with pytest.raises(MeshError, match="cannot be read"):
        RankEnvironment.read(variables | {"RANK": "first"})
