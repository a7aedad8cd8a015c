"""`python -m inference_core.parallel`: a mesh served at a socket, by our launcher and by torchrun."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from inference_core.parallel.__main__ import main
from inference_core.parallel.mesh import Mesh, MeshSpec
from inference_core.protocol import AddRequest, SamplingParams
from inference_core.transport.unix_socket import SocketCoreClient
from tests.inference_core.loaders.int4_checkpoints import random_model, write_packed
from tests.inference_core.parallel.device_meshes import device_core, device_mesh_spec, four_bit, on_one_device
from tests.inference_core.parallel.meshes import greedy_answers
from tests.ports import held_port

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
PROGRAM = ["-m", "inference_core.parallel"]
# Only how long a failure takes: what works ends as soon as it has.
SECONDS = 120.0


@pytest.fixture
def spec(tmp_path: Path) -> MeshSpec:
    model = write_packed(tmp_path / "model", random_model(32), "awq", 32)
    return device_mesh_spec(device_core(four_bit("m", model)), Mesh(tensor=2, pipeline=2))


@pytest.fixture
def port() -> Iterator[str]:
    with held_port() as held:
        yield str(held.getsockname()[1])


@contextmanager
def served(folder: Path, spec: MeshSpec, command: list[str], *options: str) -> Iterator["subprocess.Popen[str]"]:
    """The program, once its core listens; ended afterwards, with all it has started."""
    (folder / "mesh.json").write_bytes(msgspec.json.encode(spec))
    arguments = [str(folder / "mesh.json"), "--socket", str(folder / "s"), "--cache-dir", str(folder / "cache")]
    process = subprocess.Popen(
        [sys.executable, *command, *PROGRAM, *arguments, *options],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"GLOO_SOCKET_IFNAME": "lo"},
        start_new_session=True,
    )
    assert process.stderr is not None
    said: list[str] = []
    try:
        while not any("core listens at" in line for line in said):
            line = process.stderr.readline()
            assert line, f"the program ended: {''.join(said[-20:])}"
            said.append(line)
        yield process
    finally:
        process.terminate()
        try:
            process.communicate(timeout=SECONDS)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@contextmanager
def machine(arguments: list[str]) -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen([sys.executable, *PROGRAM, *arguments], stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def answer(path: Path) -> list[int]:
    client = SocketCoreClient(path)
    await client.start()
    sampling = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    request = AddRequest(request_id="a", model="m", prompt_token_ids=PROMPT, sampling=sampling)
    tokens = [token async for output in client.generate(request) for token in output.token_ids]
    await client.close()
    return tokens


@pytest.mark.mesh
async def test_the_launcher_serves_a_mesh_and_ends_all_ranks_on_a_signal(
    tmp_path: Path, spec: MeshSpec, port: str
) -> None:
    expected = greedy_answers(on_one_device(spec.core, tmp_path / "cache"), [PROMPT], tokens=8)["0"]
    with served(tmp_path, spec, [], "--port", port) as process:
        assert await answer(tmp_path / "s") == expected
    assert process.returncode == 0


@pytest.mark.mesh
async def test_two_machines_are_joined_by_an_address_and_a_port(tmp_path: Path, spec: MeshSpec, port: str) -> None:
    """Both are this machine, one rank each; the second ends by itself when the first does."""
    spec = msgspec.structs.replace(spec, mesh=Mesh(pipeline=2))
    expected = greedy_answers(on_one_device(spec.core, tmp_path / "cache"), [PROMPT], tokens=8)["0"]
    place = ["--nodes", "2", "--port", port]
    there = [str(tmp_path / "mesh.json"), "--cache-dir", str(tmp_path / "other"), *place, "--node", "1"]
    with served(tmp_path, spec, [], *place, "--node", "0") as first, machine(there) as second:
        assert await answer(tmp_path / "s") == expected
        first.terminate()
        assert second.wait(SECONDS) == 0


@pytest.mark.mesh
async def test_torchrun_starts_the_same_program(tmp_path: Path, spec: MeshSpec, port: str) -> None:
    spec = msgspec.structs.replace(spec, mesh=Mesh(tensor=2))
    expected = greedy_answers(on_one_device(spec.core, tmp_path / "cache"), [PROMPT], tokens=8)["0"]
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", port]
    with served(tmp_path, spec, torchrun):
        assert await answer(tmp_path / "s") == expected


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "nothing to load"),
        (["nowhere.json"], "nowhere.json is not a mesh specification"),
        (["SPEC", "--nodes", "3"], "4 ranks cannot be spread over 3 machines evenly"),
        (["SPEC", "--nodes", "2", "--node", "2"], "machine 2 is not one of 2"),
    ],
)
def test_mistakes_are_explained_before_anything_is_started(
    tmp_path: Path, spec: MeshSpec, capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    path = tmp_path / "mesh.json"
    path.write_bytes(msgspec.json.encode(spec))
    assert main([str(path) if option == "SPEC" else option for option in options]) == 1
    assert said in capsys.readouterr().err
