"""What a hidden state costs beside the prefill of the same prompt: how much of the work an early exit wastes."""

import time
from collections.abc import Sequence

import msgspec
import numpy as np

from classifier.local_states import user_cache
from inference_core.core import Core
from inference_core.evidence import EvidenceRequest
from inference_core.loading import load_core
from inference_core.model_spec import Compute, CoreSpec, ModelSpec
from inference_core.protocol import AddRequest, SamplingParams

_NAME = "encoder"
_WARM_UP = 5


class StateCost(msgspec.Struct, frozen=True, kw_only=True):
    """Of one prompt of `tokens`, alone in a core. CPU time is of all threads together.

    `milliseconds`, `p99_milliseconds`, `cpu_ms`: the hidden state, by an early exit. `prefill_cpu_ms`: the whole prompt
    up to the first token of an answer. `wasted`: share of the early exit in the sum, which is what is thrown away when
    the same model then answers, since its keys and values are those of the first layers and of another template.
    `worth_keeping_from`: a whole prefill in place of the early exit, reused if the same model answers, would pay from
    this share of requests on.
    """

    tokens: int
    milliseconds: float
    p99_milliseconds: float
    cpu_ms: float
    prefill_cpu_ms: float
    wasted: float
    worth_keeping_from: float


def state_costs(
    model: str,
    layer: int,
    compute: Compute,
    *,
    tokens: Sequence[int] = (64, 128),
    repeats: int = 100,
    threads: int = 1,
    seed: int = 0,
) -> list[StateCost]:
    """Measure layer `layer` of `model`, as `resolve_model_path` takes it, on random tokens; five runs warm it up.

    Raises `ModelFileError`, and `InvalidRequestError` for a layer that it does not have.
    """
    spec = CoreSpec(models=[ModelSpec(name=_NAME, path=model, compute=compute)], threads=threads)
    core = load_core(spec, user_cache())
    rng = np.random.default_rng(seed)
    vocabulary = core.model_infos[0].vocab_size
    found = []
    for count in tokens:
        # Every prompt is a new one: nothing comes from the prefix cache.
        prompts = rng.integers(5, vocabulary, (2, repeats + _WARM_UP, count)).tolist()
        exits = np.array([_seconds(core, prompt, layer) for prompt in prompts[0]][_WARM_UP:])
        whole = np.array([_seconds(core, prompt, None) for prompt in prompts[1]][_WARM_UP:])
        cpu, prefill = float(np.median(exits[:, 1])), float(np.median(whole[:, 1]))
        found.append(
            StateCost(
                tokens=count,
                milliseconds=float(np.median(exits[:, 0])) * 1e3,
                p99_milliseconds=float(np.quantile(exits[:, 0], 0.99)) * 1e3,
                cpu_ms=cpu * 1e3,
                prefill_cpu_ms=prefill * 1e3,
                wasted=cpu / (cpu + prefill),
                worth_keeping_from=max(1 - cpu / prefill, 0.0),
            )
        )
    return found


def _seconds(core: Core, prompt: list[int], layer: int | None) -> tuple[float, float]:
    """(elapsed, CPU) of the hidden state after `layer` layers, or of the first token of an answer."""
    began, cpu = time.perf_counter(), time.process_time()
    core.add(
        AddRequest(
            request_id="measured",
            model=_NAME,
            prompt_token_ids=prompt,
            sampling=SamplingParams(temperature=0.0, max_tokens=1),
            evidence=None if layer is None else EvidenceRequest(layer=layer, pooling="mean"),
            embed=layer is not None,
        )
    )
    while core.has_work:
        core.step()
    return time.perf_counter() - began, time.process_time() - cpu
