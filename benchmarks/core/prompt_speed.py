"""What prompt arithmetic gains: the kernels alone, a prompt, and streams of requests."""

import random
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from benchmarks.kernels.linear_kernels import bench_kernels
from benchmarks.kernels.machine_peaks import machine_peaks
from inference_core.core import Core
from inference_core.loaders.hub_model import resolve_model_path
from inference_core.loaders.open_checkpoint import open_checkpoint
from inference_core.loading.load_core import layout_of, load_core, use_threads
from inference_core.model_spec import CoreSpec, ModelSpec
from inference_core.native.cpu import Scheme
from inference_core.protocol import AddRequest, SamplingParams

ARITHMETICS = ("exact", "fast")
SCHEMES: tuple[Scheme, ...] = ("int4-int8", "bfloat16")
STREAM_PROMPT, STREAM_ANSWER = 160, 48  # tokens of a stream's requests
_REQUESTS_PER_STREAM = 3


def kernel_rows(spec: ModelSpec, cache_dir: Path, rows: tuple[int, ...], stream_bytes: int) -> Iterator[dict[str, Any]]:
    """GMAC/s of one thread by scheme, projection and rows in both arithmetics, weights from memory."""
    config = open_checkpoint(resolve_model_path(spec.path), cache_dir).config
    peaks = machine_peaks(1)
    measured = [
        bench_kernels(
            config, peaks, schemes=SCHEMES, rows=rows, threads=1, stream_bytes=stream_bytes, prompt=arithmetic == "fast"
        )
        for arithmetic in ARITHMETICS
    ]
    for exact, fast in zip(*measured, strict=True):
        if exact["projection"] == "head":
            continue  # computed for the last token of a prompt alone
        shape = {name: exact[name] for name in ("scheme", "projection", "rows")}
        yield {"part": "kernels", **shape, "exact_gmac_s": exact["gmac_s"], "fast_gmac_s": fast["gmac_s"]}
    use_threads(None)


def prompt_rows(spec: ModelSpec, cache_dir: Path, *, tokens: int, rounds: int) -> Iterator[dict[str, Any]]:
    """Milliseconds to the first token of one prompt of `tokens`, alone: medians of interleaved rounds."""
    core = _core(spec, cache_dir, tokens + 16)
    prompt = _prompt(core, tokens, 0)
    spent: dict[str, list[float]] = {arithmetic: [] for arithmetic in ARITHMETICS}
    for number in range(rounds + 1):
        for arithmetic in ARITHMETICS:
            core.set_knobs({"prefill_arithmetic": arithmetic, "prefix_caching": False})
            seconds = _run(core, [[prompt]], 1, f"{number}-{arithmetic}")["ttft"][0]
            if number:  # the first round warms up
                spent[arithmetic].append(seconds * 1e3)
    medians = {f"{arithmetic}_ms": round(statistics.median(values), 2) for arithmetic, values in spent.items()}
    yield {"part": "prompt", "tokens": tokens, **medians}


def stream_rows(spec: ModelSpec, cache_dir: Path, *, streams: tuple[int, ...], rounds: int) -> Iterator[dict[str, Any]]:
    """Closed loops of each number of streams, interleaved rounds: output tokens/s, TTFT and ITL in milliseconds."""
    core = _core(spec, cache_dir, max(streams) * (STREAM_PROMPT + STREAM_ANSWER))
    core.set_knobs({"prefix_caching": False})
    for count in streams:
        jobs = [[_prompt(core, STREAM_PROMPT, s * 100 + r) for r in range(_REQUESTS_PER_STREAM)] for s in range(count)]
        times: dict[str, dict[str, list[float]]] = {
            arithmetic: {"ttft": [], "itl": [], "rate": []} for arithmetic in ARITHMETICS
        }
        for number in range(rounds):
            for arithmetic in ARITHMETICS:
                core.set_knobs({"prefill_arithmetic": arithmetic})
                for name, values in _run(core, jobs, STREAM_ANSWER, f"{count}-{number}-{arithmetic}").items():
                    times[arithmetic][name] += values
        for arithmetic, measured in times.items():
            row = {"part": "streams", "streams": count, "prefill_arithmetic": arithmetic}
            row["tokens_s"] = round(statistics.median(measured["rate"]), 1)
            for name in ("ttft", "itl"):
                p50, p99 = np.percentile(measured[name], [50, 99]) * 1e3
                row |= {f"{name}_p50_ms": round(float(p50), 2), f"{name}_p99_ms": round(float(p99), 2)}
            yield row


def _core(spec: ModelSpec, cache_dir: Path, tokens: int) -> Core:
    """A core with room for `tokens` tokens of `spec`, and as many again."""
    layout = layout_of(spec, open_checkpoint(resolve_model_path(spec.path), cache_dir).config)
    whole = CoreSpec(models=[spec])
    slabs = -(-2 * tokens * layout.bytes_per_token // whole.slab_bytes) + 1
    return load_core(replace(whole, arena_bytes=slabs * whole.slab_bytes), cache_dir)


def _prompt(core: Core, tokens: int, seed: int) -> list[int]:
    (model,) = core._models.values()
    draw = random.Random(seed)
    return [draw.randrange(model.runner.info.vocab_size) for _ in range(tokens)]


def _run(core: Core, jobs: list[list[list[int]]], answer: int, name: str) -> dict[str, list[float]]:
    """Each stream asks its prompts one after another. Seconds to first tokens and between tokens; tokens per second."""
    (model,) = core._models
    sampling = SamplingParams(temperature=0, max_tokens=answer, ignore_eos=True)
    left = {str(stream): prompts[::-1] for stream, prompts in enumerate(jobs)}
    last: dict[str, float] = {}
    started: set[str] = set()
    measured: dict[str, list[float]] = {"ttft": [], "itl": []}

    def ask(stream: str) -> None:
        request = f"{name}/{len(left[stream])}/{stream}"
        prompt = left[stream].pop()
        last[request] = time.perf_counter()
        core.add(AddRequest(request_id=request, model=model, prompt_token_ids=prompt, sampling=sampling))

    began, produced = time.perf_counter(), 0
    for stream in left:
        ask(stream)
    while core.has_work:
        outputs = core.step()
        now = time.perf_counter()
        for output in outputs:
            request = output.request_id
            produced += len(output.token_ids)
            if output.token_ids:
                measured["itl" if request in started else "ttft"].append(now - last[request])
                started.add(request)
                last[request] = now
            if output.finish_reason is not None and left[request.rpartition("/")[2]]:
                ask(request.rpartition("/")[2])
    return {**measured, "rate": [produced / (time.perf_counter() - began)]}
