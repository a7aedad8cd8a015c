"""The linear kernels alone, on a model's shapes: products and bytes per second, against what the machine can do."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import cycle
from typing import Any

import click
import numpy as np
import torch

from benchmarks.kernels.attention_kernels import bench_attention
from benchmarks.kernels.machine_peaks import MachinePeaks, fastest, machine_peaks, model_bounds
from benchmarks.report.kept import echo_row
from gateway.cli.options import by_words, json_option, setting_options, settings_from
from gateway.cli.planning.bench import ManyNumbers
from inference_core.execution.block_memory import allocate_arena
from inference_core.linear.panels import PanelKind, pack
from inference_core.loaders.block_formats import BLOCK_DTYPES
from inference_core.loaders.packed_tensor import Kind, PackedTensor, float32_to_bfloat16
from inference_core.model_config import ModelConfig
from inference_core.native import cpu
from inference_core.native.cpu import Scheme

# What a step leaves in the caches of its weights is gone when it needs them again: every run reads others.
_STREAM_BYTES = 128 << 20
_SECONDS = 0.03  # of one row, and at least
_REPEATS = 5  # times


@dataclass(frozen=True, slots=True)
class _Encoding:
    kind: Kind
    panels: PanelKind
    integers: bool


_ENCODINGS: dict[Scheme, _Encoding] = {
    "int4-int8": _Encoding("Q4_1", "int4", True),
    "int4-centred-int8": _Encoding("Q4_0", "int4-centred", True),
    "int8-int8": _Encoding("Q8_0", "int8", True),
    "int4-float": _Encoding("Q4_1", "int4", False),
    "bfloat16": _Encoding("BF16", "bfloat16", False),
    "float32": _Encoding("F32", "float32", False),
}
SCHEMES: tuple[Scheme, ...] = tuple(_ENCODINGS)


def shapes(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """(inputs, outputs) of the network's projections by name."""
    width, cache = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    return {
        "qkv": (config.hidden_size, width + 2 * cache),
        "output": (width, config.hidden_size),
        "gate_up": (config.hidden_size, 2 * config.intermediate_size),
        "down": (config.intermediate_size, config.hidden_size),
        "head": (config.hidden_size, config.vocab_size),
    }


def bench_kernels(
    config: ModelConfig,
    peaks: MachinePeaks,
    *,
    schemes: tuple[Scheme, ...],
    rows: tuple[int, ...],
    threads: int,
    stream_bytes: int = _STREAM_BYTES,
) -> Iterator[dict[str, Any]]:
    """One row per scheme, projection and number of rows, on `threads` threads.

    `us`: the fastest of many runs with weights from memory, quantised activations included, less what a call itself
    takes. `bound_us`: the longer of reading the weights and multiplying at the machine's peak; `of_bound`: the share
    of it that is reached.
    """
    cpu.set_threads(threads)
    call = _call_seconds()
    for scheme in schemes:
        for name, (inputs, outputs) in shapes(config).items():
            weights = _streamed(scheme, inputs, outputs, stream_bytes)
            for count in rows:
                # A tiny product may take less than calls differ by.
                seconds = max(_seconds(scheme, weights, inputs, outputs, count) - call, 1e-9)
                yield {"scheme": scheme, "projection": name, "inputs": inputs, "outputs": outputs, "rows": count} | (
                    _figures(scheme, peaks, threads, weights[0].numel(), inputs * outputs * count, seconds)
                )


def _figures(
    scheme: Scheme, peaks: MachinePeaks, threads: int, weight_bytes: int, products: int, seconds: float
) -> dict[str, Any]:
    peak = peaks.integer_gmac_s if _ENCODINGS[scheme].integers else peaks.float_gmac_s
    rate = peaks.read_gb_s_one if threads == 1 else peaks.read_gb_s_all
    reading, multiplying = weight_bytes / rate / 1e9, products / (peak * threads) / 1e9
    return {
        "us": round(seconds * 1e6, 1),
        "gmac_s": round(products / seconds / 1e9, 1),
        "gb_s": round(weight_bytes / seconds / 1e9, 2),
        "bound": "memory" if reading > multiplying else "products",
        "bound_us": round(max(reading, multiplying) * 1e6, 1),
        "of_bound": round(max(reading, multiplying) / seconds, 3),
    }


def _streamed(scheme: Scheme, inputs: int, outputs: int, stream_bytes: int) -> torch.Tensor:
    """Panels uint8 [copies, panels, panel bytes] of a random matrix, in huge pages."""
    encoding = _ENCODINGS[scheme]
    panels = torch.from_numpy(pack(_random(encoding.kind, outputs, inputs), encoding.panels))
    copies = max(2, stream_bytes // panels.numel())
    memory = allocate_arena(copies * panels.numel()).view(copies, *panels.shape)
    memory[:] = panels
    return memory


def _random(kind: Kind, rows: int, columns: int) -> PackedTensor:
    generator = np.random.default_rng(rows + columns)
    if kind in BLOCK_DTYPES:
        blocks = np.zeros((rows, columns // 32), BLOCK_DTYPES[kind])
        codes = blocks["codes"]
        codes[:] = generator.integers(0, 256, codes.shape, np.uint8).view(codes.dtype)
        blocks["d"] = 0.01
        return PackedTensor(kind, (rows, columns), blocks.view(np.uint8).reshape(rows, -1))
    values = generator.standard_normal((rows, columns), np.float32)
    return PackedTensor(kind, (rows, columns), values if kind == "F32" else float32_to_bfloat16(values))


def _seconds(scheme: Scheme, weights: torch.Tensor, inputs: int, outputs: int, rows: int) -> float:
    x, out = torch.randn(rows, inputs), torch.empty(rows, outputs)
    copies = cycle(weights)

    def run() -> None:
        cpu.linear(scheme, next(copies), x, out)

    once = fastest(run, 2)
    return fastest(run, max(_REPEATS, int(_SECONDS / once)))


def _call_seconds() -> float:
    """What a call takes besides computing: one that multiplies next to nothing."""
    weights = torch.zeros(1, 1, 32 * 4 * 16, dtype=torch.uint8)
    x, out = torch.zeros(1, 32), torch.empty(1, 16)
    return fastest(lambda: cpu.linear("float32", weights[0], x, out), 2_000)


@click.command(cls=ManyNumbers)
@click.option("--model", help="Model of the catalogue whose shapes are taken.  [its first]")
@click.option("--scheme", multiple=True, help="int4-int8, int8-int8, int4-float, bfloat16, float32.  [all]")
@click.option("--rows", callback=by_words(int), metavar="N...", default="1 2 4 8 16 32 64 128 256")
@click.option("--attention", is_flag=True, help="The attention kernels too, for every format of the KV cache.")
@click.option("--threads", default=1, help="Threads of the kernels.")
@setting_options("catalog", "cache_dir")
@json_option
def kernels(
    model: str | None,
    scheme: tuple[str, ...],
    rows: tuple[int, ...],
    attention: bool,
    threads: int,
    as_json: bool,
    **arguments: Any,
) -> None:
    """First the machine's peaks and what they allow the model, in tokens per second; then one row per kernel and size.

    Example: python -m benchmarks kernels --scheme int4-int8 --rows 1 8 64 --json
    """
    from gateway.planning.load_test.run import model_of
    from inference_core.loaders.hub_model import resolve_model_path
    from inference_core.loaders.open_checkpoint import open_checkpoint
    from inference_core.loading.load_core import weight_bytes
    from tiers.catalog.load import load_catalog

    chosen = tuple(name for name in SCHEMES if name in scheme) if scheme else SCHEMES
    unknown = set(scheme) - set(SCHEMES)
    if unknown:
        raise click.BadParameter(f"no scheme {', '.join(sorted(unknown))}; there are {', '.join(SCHEMES)}")
    settings = settings_from(**arguments)
    spec = model_of(load_catalog(settings.catalog).core, model)
    checkpoint = open_checkpoint(resolve_model_path(spec.path), settings.cache_path)
    peaks = machine_peaks()
    echo_row({"machine": asdict(peaks)}, as_json)
    echo_row(
        {"model": spec.name, "bounds": model_bounds(peaks, checkpoint.config, weight_bytes(checkpoint, spec))},
        as_json,
    )
    for row in bench_kernels(checkpoint.config, peaks, schemes=chosen, rows=rows, threads=threads):
        echo_row(row, as_json)
    for row in bench_attention(checkpoint.config, peaks, threads=threads) if attention else ():
        echo_row(row, as_json)
