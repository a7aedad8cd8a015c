"""A closed loop on a core, without HTTP and without asyncio: what the device and the engine do by themselves."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from inference_core.engine.core import Core
from inference_core.protocol import AddRequest, SamplingParams


@dataclass(slots=True, frozen=True, kw_only=True)
class DeviceLoad:
    """`requests` of `prompt_tokens` random ids and `output_tokens` answers, `concurrency` of them at a time. The first
    `shared_tokens` of all prompts are the same. Requests go in turn through `adapters` adapters, which the model has by
    the names "0", "1" and so on."""

    requests: int
    concurrency: int
    prompt_tokens: int
    output_tokens: int
    shared_tokens: int = 0
    seed: int = 7
    adapters: int = 0


@dataclass(slots=True)
class _Timing:
    began: float
    tokens: list[float]


def run_load(
    core: Core, model: str, load: DeviceLoad, clock: Callable[[], float] = time.perf_counter
) -> dict[str, Any]:
    """The load's figures: tokens per second, milliseconds to the first token and between tokens.

    Raises RuntimeError if an answer fails or is short.
    """
    random, vocabulary = Random(load.seed), core.model_infos[0].vocab_size
    shared = [random.randrange(vocabulary) for _ in range(load.shared_tokens)]
    timings: dict[str, _Timing] = {}
    sampling = SamplingParams(temperature=0, max_tokens=load.output_tokens, ignore_eos=True)
    began, live, finished = clock(), 0, 0
    while finished < load.requests:
        while live < load.concurrency and len(timings) < load.requests:
            own = [random.randrange(vocabulary) for _ in range(load.prompt_tokens - load.shared_tokens)]
            name = str(len(timings))
            adapter = str(len(timings) % load.adapters) if load.adapters else ""
            core.add(
                AddRequest(
                    request_id=name, model=model, prompt_token_ids=shared + own, sampling=sampling, adapter=adapter
                )
            )
            timings[name] = _Timing(clock(), [])
            live += 1
        outputs = core.step()
        now = clock()
        for output in outputs:
            timings[output.request_id].tokens += [now] * len(output.token_ids)
            if output.finish_reason is not None:
                if output.finish_reason != "length":
                    raise RuntimeError(f"answer {output.request_id} ended by {output.finish_reason}: {output.error}")
                live, finished = live - 1, finished + 1
    return figures(list(timings.values()), load, clock() - began)


def figures(timings: list[_Timing], load: DeviceLoad, seconds: float) -> dict[str, Any]:
    first = sorted((t.tokens[0] - t.began) * 1e3 for t in timings)
    gaps = sorted((b - a) * 1e3 for t in timings for a, b in zip(t.tokens, t.tokens[1:], strict=False))
    speeds = [(len(t.tokens) - 1) / (t.tokens[-1] - t.tokens[0]) for t in timings if t.tokens[-1] > t.tokens[0]]
    produced = load.requests * load.output_tokens
    return {
        "concurrency": load.concurrency,
        "requests": load.requests,
        "prompt_tokens": load.prompt_tokens,
        "output_tokens": load.output_tokens,
        "shared_tokens": load.shared_tokens,
        "adapters": load.adapters,
        "seconds": round(seconds, 3),
        "out_tok_s": round(produced / seconds, 1),
        "total_tok_s": round((produced + load.requests * load.prompt_tokens) / seconds, 1),
        **{f"ttft_{name}_ms": _rounded(first, q) for name, q in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))},
        **{f"itl_{name}_ms": _rounded(gaps, q) for name, q in (("p50", 0.5), ("p99", 0.99))},
        "itl_mean_ms": round(statistics.fmean(gaps), 3) if gaps else None,
        "slowest_stream_tok_s": round(min(speeds), 2) if speeds else None,
    }


def _rounded(values: list[float], quantile: float) -> float | None:
    return round(values[min(len(values) - 1, int(quantile * len(values)))], 3) if values else None
