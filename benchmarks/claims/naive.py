"""What a naive server costs next to the core: `transformers.generate`, one request after another (SPEC TB-07).

Both compute the same weights in BF16 with one thread, and the cost is the CPU time of this process per token of an
answer, which work of other processes moves far less than it moves the time that passes.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from benchmarks.report.measured import Spread
from benchmarks.report.measurement import Measurement
from benchmarks.report.rounds import geometric_interval, spread
from inference_core.engine.core import Core
from inference_core.errors import ModelFileError
from inference_core.kv_cache.layout import KVDtype
from inference_core.loaders.checkpoint import Checkpoint
from inference_core.loaders.hub_model import resolve_model_path
from inference_core.loaders.open_checkpoint import open_checkpoint
from inference_core.loaders.packed_tensor import dequantize
from inference_core.loading.load_core import load_core, use_threads
from inference_core.model_spec import Compute, CoreSpec, ModelSpec
from inference_core.protocol import AddRequest, SamplingParams
from inference_core.quantization.calibration import calibration_text
from inference_core.quantization.files import described_config
from inference_core.tokenization.load_tokenizer import load_tokenizer

NAIVE = "transformers.generate in a loop"
# The core with so many requests in flight, by the names of their rows.
_IN_FLIGHT = {"the core, one request at a time": 1, "the core, 16 in flight": 16}
WAYS = (NAIVE, *_IN_FLIGHT)
_MODEL = "model"


class NaiveOptions(msgspec.Struct, frozen=True, kw_only=True):
    """In each of `rounds` every way answers `requests` prompts of `prompt_tokens` with `output_tokens`, the core with
    many in flight as many as fill it."""

    rounds: int = 5
    requests: int = 4
    prompt_tokens: int = 128
    output_tokens: int = 32


class NaiveWay(msgspec.Struct, frozen=True, kw_only=True):
    """`ms_per_token`: CPU milliseconds of this process per token of an answer, the prompt's included; `gain`: those of
    the naive loop over these, the geometric mean of the rounds with its 95% interval."""

    way: str
    ms_per_token: Spread
    gain: Spread


class NaiveResults(msgspec.Struct, frozen=True, kw_only=True):
    """In the order of `WAYS`."""

    ways: list[NaiveWay]


def measure_naive(
    path: str, cache_dir: Path, options: NaiveOptions, measurement: Measurement, progress: Callable[[str], None]
) -> NaiveResults:
    """Measure the rounds that `measurement` lacks, and finish it. Raises ModelFileError and QuantizationError."""
    tokenizer = load_tokenizer(resolve_model_path(path))
    most = max(_IN_FLIGHT.values())
    each = [options.requests, *(max(options.requests, width) for width in _IN_FLIGHT.values())]
    prompts = iter(calibration_text([]).windows(tokenizer, options.rounds * sum(each), options.prompt_tokens))
    model = naive_model(open_checkpoint(resolve_model_path(path), cache_dir), torch.bfloat16)
    with opened_core(path, cache_dir, "bfloat16", most * (options.prompt_tokens + options.output_tokens)) as core:
        generate(model, [[1, 2]], 2)
        for turn in range(options.rounds):
            for way, count in zip(WAYS, each, strict=True):
                asked = [next(prompts) for _ in range(count)]
                if measurement.find(round=turn, way=way) is None:
                    progress(f"round {turn + 1}, {way}")
                    measurement.add(_row(turn, way, asked, options.output_tokens, model, core))
    results = NaiveResults(ways=[_way(way, measurement.rows) for way in WAYS])
    measurement.finish(msgspec.to_builtins(results))
    return results


def naive_model(checkpoint: Checkpoint, dtype: torch.dtype) -> Any:
    """The weights of `checkpoint` in transformers' own implementation of its architecture: its class is chosen by the
    name of the architecture alone, and no code of a model's folder is run."""
    import transformers

    described = described_config(checkpoint.config)
    config = transformers.AutoConfig.for_model(described.pop("model_type"), **described)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=False).eval()
    weights = {
        name: torch.from_numpy(np.array(dequantize(tensor), np.float32, copy=True)).to(dtype)
        for name, tensor in checkpoint.tensors.items()
    }
    lacking = model.load_state_dict(weights, strict=False)
    missing = [name for name in lacking.missing_keys if not (name == "lm_head.weight" and config.tie_word_embeddings)]
    if missing or lacking.unexpected_keys:
        raise ModelFileError(f"{checkpoint.path}: transformers lacks {missing} and knows no {lacking.unexpected_keys}")
    return model


def generate(model: Any, prompts: Sequence[list[int]], output_tokens: int) -> list[list[int]]:
    """Greedy answers of `output_tokens` ids, by `generate` with its cache, one prompt after another."""
    answers = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        made = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            min_new_tokens=output_tokens,
            max_new_tokens=output_tokens,
            pad_token_id=0,
        )
        answers.append(made[0, len(prompt) :].tolist())
    return answers


@contextmanager
def opened_core(path: str, cache_dir: Path, compute: Compute, tokens: int) -> Iterator[Core]:
    """A core of one thread with room for `tokens`, its cache in the numbers of `compute`; torch gets one thread too."""
    cache: KVDtype = "float32" if compute == "float32" else "bfloat16"
    spec = CoreSpec(models=[ModelSpec(name=_MODEL, path=path, compute=compute, kv_dtype=cache)], threads=1)
    config = open_checkpoint(resolve_model_path(path), cache_dir).config
    token_bytes = 4 * 2 * config.num_layers * config.num_kv_heads * config.head_dim
    slabs = -(-2 * tokens * token_bytes // spec.slab_bytes) + 1
    core = load_core(msgspec.structs.replace(spec, arena_bytes=slabs * spec.slab_bytes), cache_dir)
    use_threads(1)
    try:
        yield core
    finally:
        core.close()


def answers_of(core: Core, prompts: Sequence[list[int]], output_tokens: int, in_flight: int) -> list[list[int]]:
    """Greedy answers of `output_tokens` ids, in a closed loop of `in_flight`. Raises ModelFileError."""
    sampling = SamplingParams(temperature=0.0, max_tokens=output_tokens, ignore_eos=True)
    said: dict[str, list[int]] = {str(number): [] for number in range(len(prompts))}
    waiting, running = list(said)[::-1], 0
    while waiting or running:
        while waiting and running < in_flight:
            name = waiting.pop()
            core.add(AddRequest(request_id=name, model=_MODEL, prompt_token_ids=prompts[int(name)], sampling=sampling))
            running += 1
        for output in core.step():
            if output.finish_reason == "error":
                raise ModelFileError(f"a prompt cannot be answered: {output.error}")
            said[output.request_id] += output.token_ids
            running -= output.finish_reason is not None
    return list(said.values())


def _row(
    turn: int, way: str, prompts: list[list[int]], output_tokens: int, model: Any, core: Core
) -> dict[str, float | str]:
    began = time.process_time()
    if way == NAIVE:
        answers = generate(model, prompts, output_tokens)
    else:
        answers = answers_of(core, prompts, output_tokens, _IN_FLIGHT[way])
    spent = time.process_time() - began
    return {"round": turn, "way": way, "cpu_seconds": spent, "output_tokens": sum(map(len, answers))}


def _way(way: str, rows: list[dict[str, Any]]) -> NaiveWay:
    cost = {(row["way"], row["round"]): 1000 * row["cpu_seconds"] / row["output_tokens"] for row in rows}
    ours = {turn: value for (name, turn), value in cost.items() if name == way}
    middle = spread(list(ours.values()))
    assert middle is not None
    gain = geometric_interval([cost[NAIVE, turn] / value for turn, value in ours.items()])
    return NaiveWay(way=way, ms_per_token=middle, gain=gain)
