"""One configuration of a core under the mixed load, in its own process: `python -m benchmarks.core.ablation_worker`.

A task comes as JSON on standard input, its row goes to standard output. A process each keeps memory, threads and the
choice of kernels of one configuration away from the next.
"""

import asyncio
import contextlib
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from benchmarks.core.contiguous_cache import ContiguousArena
from benchmarks.core.load_rows import layout_in
from benchmarks.core.mixed_load import ORDERS, copy_jobs, mixed_jobs
from benchmarks.core.random_adapter import write_random_adapter
from gateway.planning.load_test.run import BenchTarget, CoreTarget, LoadRun, Timing, busy_share, core_target, summary
from gateway.planning.load_test.workload import BenchOptions, Job, Load
from inference_core.errors import CoreError
from inference_core.kv_cache.layout import KVDtype, KVLayout
from inference_core.loaders.hub_model import resolve_model_path
from inference_core.loaders.open_checkpoint import open_checkpoint
from inference_core.model_spec import Compute, CoreSpec, ModelSpec
from inference_core.protocol import AddRequest, Knobs, ModelStats
from inference_core.tokenization.load_tokenizer import load_tokenizer

Batching = Literal["static", "dynamic", "continuous"]
LoadKind = Literal["mixed", "small", "copy"]

# The baselines as they are usually set up (SPEC BS-02, BS-03): batches of 8; or of 8, 16 or 32, within 2 ms.
_BATCHING: dict[Batching, dict[str, Any]] = {
    "static": {"max_num_seqs": 8},
    "dynamic": {"max_queue_delay_ms": 2.0, "preferred_batch_sizes": [8, 16, 32]},
    "continuous": {},
}
ADAPTER_RANK = 8
# Longer than any context: a prompt is computed in one step.
_WHOLE_PROMPTS = {"prefill_chunk": 65_536, "max_num_batched_tokens": 65_536}


class Configuration(msgspec.Struct, frozen=True, kw_only=True):
    """Which techniques are on. `native` False computes with torch; `paging` False admits by contiguous reservation.

    Drafts of a model are those of the same weights in INT4. `structured` answers follow a JSON schema, and the
    requests take turns among as many `adapters`.
    """

    native: bool = True
    batching: Batching = "continuous"
    paging: bool = True
    prefix_caching: bool = True
    chunked_prefill: bool = True
    compute: Compute = "int4-int8"
    kv_dtype: KVDtype = "bfloat16"
    speculation: Literal["off", "prompt_lookup", "draft_model"] = "off"
    structured: bool = False
    adapters: int = 0

    def knobs(self) -> Knobs:
        """The live knobs of this configuration; nothing tunes them while it is measured."""
        chosen: dict[str, Any] = {"batching": self.batching, "prefix_caching": self.prefix_caching}
        chosen |= {"auto_tune": False, "speculation": self.speculation}
        chosen |= _BATCHING[self.batching] | ({} if self.chunked_prefill else _WHOLE_PROMPTS)
        return msgspec.structs.replace(Knobs(), **chosen)

    @property
    def label(self) -> str:
        """One word per part, for keys and progress lines."""
        words = [
            "native" if self.native else "torch",
            self.batching,
            "paged" if self.paging else "contiguous",
            *(["prefix"] if self.prefix_caching else []),
            *(["chunked"] if self.chunked_prefill else []),
            self.compute,
            f"kv-{self.kv_dtype}",
            *([self.speculation] if self.speculation != "off" else []),
            *(["structured"] if self.structured else []),
            *([f"{self.adapters}-adapters"] if self.adapters else []),
        ]
        return " ".join(words)


class ArmTask(msgspec.Struct, frozen=True, kw_only=True):
    """`configuration` of `model` under `requests` jobs of a load, `concurrency` in flight, in `arena_bytes` of KV."""

    configuration: Configuration
    load: LoadKind = "mixed"
    model: ModelSpec
    cache_dir: str
    seed: int
    requests: int
    concurrency: int
    arena_bytes: int
    slab_bytes: int
    threads: int | None
    timeout: float


class ArmError(CoreError):
    """A configuration could not be measured; the message ends with what its process said."""


async def run_in_process(task: ArmTask) -> dict[str, Any]:
    """The row of `task`, measured in a new process. Raises `ArmError`."""
    environment = {**os.environ, "AIO_NATIVE": "on" if task.configuration.native else "off"}
    pipe = asyncio.subprocess.PIPE
    command = [sys.executable, "-m", "benchmarks.core.ablation_worker"]
    process = await asyncio.create_subprocess_exec(*command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe)
    try:
        out, said = await process.communicate(msgspec.json.encode(task))
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        tail = "\n".join(said.decode(errors="replace").splitlines()[-15:])
        raise ArmError(f"{task.configuration.label} ended with status {process.returncode}:\n{tail}")
    return msgspec.json.decode(out.splitlines()[-1], type=dict[str, Any])


class ReservingTarget(BenchTarget):
    """Holds a request back until contiguous memory for its longest life is reserved, first come, first served.

    The core behind it stores tokens as it always does, so only admission differs between the two ways to allocate.
    """

    api = "in-process, contiguous"

    def __init__(self, inner: CoreTarget, arena: ContiguousArena) -> None:
        self.arena = arena
        self._inner = inner
        self._turn = asyncio.Lock()
        self._freed = asyncio.Event()

    async def ask(self, job: Job, due: float, timing: Timing) -> None:
        owner, tokens = str(id(timing)), self._inner.count_tokens(job.prompt) + (job.limit or job.output_tokens)
        if tokens > self.arena.capacity:
            raise ValueError(f"a request of {tokens} tokens does not fit memory for {self.arena.capacity}")
        async with self._turn:
            while self.arena.reserve(owner, tokens) is None:
                self._freed.clear()
                await self._freed.wait()
        try:
            await self._inner.ask(job, due, timing)
        finally:
            self.arena.release(owner)
            self._freed.set()


class MemoryWatch:
    """`running`: sequences at a time; `kv_mb`: megabytes of their keys and values, or of the `reserved` arena."""

    def __init__(
        self, target: CoreTarget, model: str, layout: KVLayout, reserved: ContiguousArena | None = None
    ) -> None:
        self._target = target
        self._model = model
        self._layout = layout
        self._reserved = reserved
        self.running: list[float] = []
        self.kv_mb: list[float] = []

    @contextlib.asynccontextmanager
    async def sampling(self, seconds: float = 0.1) -> AsyncIterator[None]:
        """Take a sample every so many seconds meanwhile."""
        task = asyncio.create_task(self._sample(seconds))
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def stats(self) -> ModelStats:
        """What the core says of the model now."""
        models = (await self._target.client.stats()).models
        return next(model for model in models if model.name == self._model)

    async def _sample(self, seconds: float) -> None:
        while True:
            model = await self.stats()
            paged = model.blocks_in_use * self._layout.block_size
            tokens = paged if self._reserved is None else self._reserved.reserved
            self.running.append(model.running)
            self.kv_mb.append(tokens * self._layout.bytes_per_token / 1e6)
            await asyncio.sleep(seconds)


class FeatureTarget(CoreTarget):
    """Asks for answers to a JSON schema, and of one adapter after the other."""

    structured = False
    adapters: tuple[str, ...] = ()
    _asked = 0

    def _request(self, job: Job) -> AddRequest:
        request = super()._request(job)
        if self.structured:
            sampling = msgspec.structs.replace(request.sampling, grammar=ORDERS, ignore_eos=False)
            request = msgspec.structs.replace(request, sampling=sampling)
        if self.adapters:
            request = msgspec.structs.replace(request, adapter=self.adapters[self._asked % len(self.adapters)])
            self._asked += 1
        return request


def _spec(task: ArmTask) -> ModelSpec:
    chosen = task.configuration
    return msgspec.structs.replace(
        task.model, compute=chosen.compute, kv_dtype=chosen.kv_dtype, max_adapters=chosen.adapters, adapters={}
    )


@contextlib.asynccontextmanager
async def _opened(task: ArmTask) -> AsyncIterator[CoreTarget]:
    """The model of `task` on a core, with what its configuration needs in addition."""
    chosen, cache_dir, spec, draft = task.configuration, Path(task.cache_dir), _spec(task), None
    if chosen.speculation == "draft_model":
        draft = msgspec.structs.replace(spec, name=f"{spec.name} draft", compute="int4-int8", draft=None)
        spec = msgspec.structs.replace(spec, draft=draft.name)
    core = CoreSpec(models=[spec], arena_bytes=task.arena_bytes, slab_bytes=task.slab_bytes, threads=task.threads)
    async with core_target(core, spec, cache_dir, chosen.knobs(), draft=draft) as inner:
        with tempfile.TemporaryDirectory() as folder:
            target = FeatureTarget(inner.client, load_tokenizer(resolve_model_path(spec.path)), spec.name)
            target.structured = chosen.structured
            target.adapters = await _load_adapters(target, spec, cache_dir, Path(folder), chosen.adapters)
            yield target


async def _load_adapters(
    target: CoreTarget, spec: ModelSpec, cache_dir: Path, folder: Path, count: int
) -> tuple[str, ...]:
    names = tuple(f"adapter-{number}" for number in range(count))
    config = open_checkpoint(resolve_model_path(spec.path), cache_dir).config
    for number, name in enumerate(names):
        await asyncio.to_thread(write_random_adapter, folder / name, config, ADAPTER_RANK, number)
        await target.client.load_adapter(spec.name, name, str(folder / name))
    return names


async def measure(task: ArmTask) -> dict[str, Any]:
    """The row of `task`, in this process: the columns of `report.summary`, then memory."""
    chosen = task.configuration
    layout = layout_in(_spec(task), Path(task.cache_dir))
    arena = None if chosen.paging else ContiguousArena(task.arena_bytes // layout.bytes_per_token)
    jobs_of = copy_jobs if task.load == "copy" else mixed_jobs
    async with _opened(task) as inner:
        target = inner if arena is None else ReservingTarget(inner, arena)
        run = LoadRun(target, task.timeout)
        await run.warm_up(jobs_of(task.seed + 500_000, 1))
        busy = await busy_share()
        watch = MemoryWatch(inner, task.model.name, layout, arena)
        load = Load({"concurrency": task.concurrency}, jobs_of(task.seed, task.requests), task.concurrency)
        began = time.perf_counter()
        async with watch.sampling():
            timings = await run.measured(load)
        wall = time.perf_counter() - began
        model = await watch.stats()
        weights = inner.client.models[task.model.name].weight_bytes
    row = summary(load.columns, timings, wall, BenchOptions(), {"api": target.api, "busy_before": busy})
    return row | {
        "running_mean": statistics.fmean(watch.running or [0.0]),
        "running_most": max(watch.running, default=0),
        "kv_mb_mean": statistics.fmean(watch.kv_mb or [0.0]),
        "kv_bytes_per_token": layout.bytes_per_token,
        "weights_mb": weights / 1e6,
        "peak_resident_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6,
        "prefix_hit_share": model.prefix_hit_tokens / max(1, model.prompt_tokens),
        "preemptions": model.preemptions,
    }


if __name__ == "__main__":
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=ArmTask)
    sys.stdout.buffer.write(msgspec.json.encode(asyncio.run(measure(task))))
