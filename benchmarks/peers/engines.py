"""Engines that answer the same prompts with the same weights: ours in this process and over HTTP, OpenVINO GenAI in a
process of its own, llama.cpp and vLLM over HTTP; without drafts, and with those of prompt lookup that each has."""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.core.workloads import code_prompt
from benchmarks.peers.environments import PeersError, ended, installed, served, unpacked
from benchmarks.peers.gateways import free_port
from benchmarks.running_server import running_server
from gateway.base.settings import Settings
from gateway.planning.load_test.http_target import HttpTarget
from gateway.planning.load_test.run import CoreTarget, LoadRun, Timing, core_target, model_of
from gateway.planning.load_test.workload import Job, Load, Prompts, jobs_of
from inference_core.loaders.hub_model import resolve_model_path
from inference_core.protocol import KnobValue
from tiers.catalog.core_spec import core_spec
from tiers.catalog.load import load_catalog

OURS, DRAFTS = "aio", ", drafts"
_SLOTS, _SLOT_TOKENS = 32, 1536
# OpenVINO's default number of candidates of prompt lookup.
_ASSISTANT_TOKENS = 5
_WORKER = Path(__file__).with_name("openvino_worker.py")
Measured = tuple[list[Timing], float]


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """A closed loop: `requests` prompts of so many words, or excerpts of code where that is None, at `concurrency`."""

    name: str
    concurrency: int
    requests: int
    words: int | None
    output_tokens: int

    def load(self, turn: int, salt: str) -> Load:
        """The jobs of a round, the same for every system, unlike those of other rounds and loads. `salt`: jobs of
        different ones share no cached prefix in our core."""
        seed = 1000 * turn + self.concurrency
        jobs = jobs_of(Prompts(seed, 0), self.requests, self.words or 1, self.output_tokens)
        if self.words is None:
            # The first line differs, so that no server has any part of a prompt from before.
            texts = [f"# excerpt {seed}-{n}\n{code_prompt(seed + n)}" for n in range(self.requests)]
            jobs = [Job(text, self.output_tokens) for text in texts]
        salted = [Job(job.prompt, job.output_tokens, salt=f"{salt}, {self.name}, {seed}") for job in jobs]
        return Load({"concurrency": self.concurrency}, salted, self.concurrency)


CODE = "code"
LOADS = (
    EngineLoad("one stream", 1, 8, 128, 64),
    EngineLoad("many streams", 8, 24, 128, 64),
    EngineLoad("many streams", 32, 64, 128, 64),
    EngineLoad("long prompt", 1, 4, 1024, 2),
    EngineLoad(CODE, 1, 4, None, 96),
    EngineLoad(CODE, 8, 8, None, 96),
    EngineLoad(CODE, 32, 32, None, 96),
)


@dataclass(frozen=True, slots=True)
class System:
    """An engine that is up. With drafts it answers code alone, without them every load."""

    name: str
    transport: str
    measured: Callable[[Load], Awaitable[Measured]]

    def takes(self, load: EngineLoad) -> bool:
        """Whether it is asked under `load`."""
        return load.name == CODE or not self.name.endswith(DRAFTS)


@asynccontextmanager
async def running_engines(
    settings: Settings, peers: Path, folder: Path, names: Collection[str]
) -> AsyncIterator[list[System]]:
    """Ours and those of `names`, all loaded, to be asked in turns; the latter are installed in `peers`, and write to
    `folder`. Raises `PeersError`, and what `load_core` raises."""
    core = core_spec(load_catalog(settings.catalog))
    spec = model_of(core, None)
    model, threads = str(resolve_model_path(spec.path)), len(os.sched_getaffinity(0))
    async with AsyncExitStack() as stack:
        target = await stack.enter_async_context(core_target(core, spec, settings.cache_path))
        systems = [
            System(OURS, "in process", _ours(target, spec.name, "off")),
            System(OURS + DRAFTS, "in process", _ours(target, spec.name, "prompt_lookup")),
        ]
        for drafts in ("", DRAFTS):
            if "openvino" in names:
                assistant = _ASSISTANT_TOKENS if drafts else 0
                command = [str(installed("openvino", peers)), str(_WORKER), model, str(threads), str(assistant)]
                worker = await stack.enter_async_context(_worker(command, folder / f"openvino{drafts}.log"))
                systems.append(System(f"openvino{drafts}", "in process", worker))
            if "llama.cpp" in names:
                url = f"http://127.0.0.1:{(port := free_port())}"
                command = [str(installed("llama.cpp", peers)), "--model", model, "--threads", str(threads), "--no-ui"]
                command += ["--parallel", str(_SLOTS), "--ctx-size", str(_SLOTS * _SLOT_TOKENS), "--port", str(port)]
                command += ["--spec-type", "ngram-simple"] if drafts else []
                await stack.enter_async_context(served(command, f"{url}/health", folder / f"llama.cpp{drafts}.log"))
                systems.append(System(f"llama.cpp{drafts}", "http", _asked(HttpTarget(url, spec.name))))
        if "vllm" in names:
            url = await stack.enter_async_context(_vllm(model, peers, folder / "vllm.log"))
            systems.append(System("vllm", "http", _asked(HttpTarget(url, "peer"))))
        server = await stack.enter_async_context(running_server(settings, {"AIO_MONITOR": "false"}))
        systems.append(System(OURS, "http", _asked(HttpTarget(server.url, "tier-1"))))
        yield systems


@asynccontextmanager
async def _vllm(model: str, peers: Path, log: Path) -> AsyncIterator[str]:
    """vLLM's server for `peer`, in bfloat16 and on every core: left to itself it keeps one free."""
    python, url = installed("vllm", peers), f"http://127.0.0.1:{(port := free_port())}"
    programs = python.parent
    command = [str(programs / "vllm"), "serve", str(unpacked(model, python, peers)), "--served-model-name", "peer"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--dtype", "bfloat16", "--max-model-len", str(_SLOT_TOKENS)]
    environment = {
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, sorted(os.sched_getaffinity(0)))),
        # As its documentation wants it: with other threads it is slower.
        "LD_PRELOAD": str(programs.with_name("lib") / "libiomp5.so"),
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "PATH": f"{programs}:{os.environ['PATH']}",
    }
    async with served(command, f"{url}/health", log, environment):
        yield url


def _asked(target: HttpTarget | CoreTarget) -> Callable[[Load], Awaitable[Measured]]:
    run = LoadRun(target, 600.0)

    async def measured(load: Load) -> Measured:
        began = time.perf_counter()
        return await run.measured(load), time.perf_counter() - began

    return measured


def _ours(target: CoreTarget, model: str, speculation: str) -> Callable[[Load], Awaitable[Measured]]:
    ask, knobs = _asked(target), dict[str, KnobValue](speculation=speculation)

    async def measured(load: Load) -> Measured:
        await target.client.set_knobs(knobs, model)
        return await ask(load)

    return measured


@asynccontextmanager
async def _worker(command: list[str], log: Path) -> AsyncIterator[Callable[[Load], Awaitable[Measured]]]:
    """OpenVINO in a process of its own, which runs a whole load between two lines. Raises `PeersError`."""
    pipe = asyncio.subprocess.PIPE
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=pipe, stdout=pipe, stderr=errors, limit=1 << 24, start_new_session=True
        )
    assert process.stdin is not None
    assert process.stdout is not None
    requests, answers = process.stdin, process.stdout

    async def measured(load: Load) -> Measured:
        jobs = [(job.prompt, job.output_tokens) for job in load.jobs]
        requests.write(json.dumps({"concurrency": load.concurrency, "jobs": jobs}).encode() + b"\n")
        if not (line := await answers.readline()):
            raise PeersError(f"{' '.join(command)} ended with {await process.wait()}; see {log}")
        answer = json.loads(line)
        asked = load.jobs[0].output_tokens
        return [Timing(asked=asked, has_usage=True, **timing) for timing in answer["timings"]], answer["wall"]

    try:
        yield measured
    finally:
        await ended(process)
