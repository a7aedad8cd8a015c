"""The linear layers of a device alone, on a model's shapes and random weights: time, bytes and products per second.

    python -m benchmarks.kernels.device_linears [--tiny]

prints one JSON object per line. Times are of a CUDA graph's replay. Without a device the references run, which measures
nothing.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from benchmarks.kernels.device_kernels import launch_seconds
from inference_core.linear.device import DenseLinear, DeviceScheme, EightBitLinear, Int4Linear
from inference_core.linear.linear import Linear
from inference_core.triton_kernels.weights import BLOCK, SCALE_BLOCK, WORDS, EightBitWeight, Int4Weight

SCHEMES: tuple[DeviceScheme, ...] = ("dense", "int4", "int8", "fp8", "fp8-blocks")
INT4_GROUP = 128
# Weights that a step has used are gone from the caches when it needs them again: every run reads others.
_STREAM_BYTES = 512 << 20
_MAX_COPIES = 64
_REPEATS = 20
# Inputs and outputs of Llama 3 8B's fused projections.
LLAMA_8B = {"qkv": (4096, 6144), "output": (4096, 4096), "gate_up": (4096, 28672), "down": (14336, 4096)}
ROWS = (1, 4, 16, 32, 64, 256, 512, 4096)
TINY = {"output": (512, 64)}


def bench_device_linears(
    device: torch.device,
    dtype: torch.dtype,
    shapes: Mapping[str, tuple[int, int]],
    *,
    schemes: tuple[DeviceScheme, ...] = SCHEMES,
    rows: tuple[int, ...],
    stream_bytes: int = _STREAM_BYTES,
    repeats: int = _REPEATS,
) -> Iterator[dict[str, Any]]:
    """One row per scheme, projection (name -> inputs, outputs) and number of rows of activations of `dtype`.

    `us`: of one layer with weights from memory, quantisation of activations included; on CUDA as it runs in a graph.
    """
    for scheme in schemes:
        for name, (inputs, outputs) in shapes.items():
            first = random_layer(scheme, inputs, outputs, device, dtype)
            size = weight_bytes(first)
            copies = min(max(stream_bytes // size, 1), _MAX_COPIES)
            layers = [first, *(random_layer(scheme, inputs, outputs, device, dtype) for _ in range(copies - 1))]
            for count in rows:
                x = torch.randn(count, inputs, device=device).to(dtype)
                out = torch.empty(count, outputs, device=device, dtype=dtype)
                seconds = launch_seconds(partial(_apply, layers, x, out), device, repeats) / copies
                yield {
                    "scheme": scheme,
                    "projection": name,
                    "inputs": inputs,
                    "outputs": outputs,
                    "rows": count,
                    "us": seconds * 1e6,
                    "weights_gb_s": size / seconds / 1e9,
                    "tflop_s": 2 * inputs * outputs * count / seconds / 1e12,
                }


def random_layer(
    scheme: DeviceScheme, inputs: int, outputs: int, device: torch.device, dtype: torch.dtype
) -> DenseLinear | Int4Linear | EightBitLinear:
    """A layer with random codes, made where it is used: for speed and memory, never for answers."""
    if scheme == "dense":
        return DenseLinear((torch.randn(outputs, inputs, device=device) * inputs**-0.5).to(dtype), None)
    if scheme == "int4":
        blocks = -(-inputs // BLOCK)
        codes = torch.randint(-(1 << 31), 1 << 31, (blocks, outputs, WORDS), dtype=torch.int32, device=device)
        scales = torch.full(
            (blocks * BLOCK // INT4_GROUP, outputs), inputs**-0.5 / 5, dtype=torch.float16, device=device
        )
        return Int4Linear(Int4Weight(codes, scales, scales * 0.5, inputs), None)
    # Every byte but those of E4M3's two NaN (0x7F and 0xFF) is a number.
    codes = torch.randint(0x7F, (outputs, inputs), dtype=torch.uint8, device=device)
    codes |= torch.randint_like(codes, 2) << 7
    kind = torch.int8 if scheme == "int8" else torch.float8_e4m3fn
    shape = (-(-outputs // SCALE_BLOCK), -(-inputs // SCALE_BLOCK)) if scheme == "fp8-blocks" else (outputs,)
    scales = torch.full(shape, inputs**-0.5 / 70, device=device)
    return EightBitLinear(EightBitWeight(codes.view(kind), scales), None)


def weight_bytes(layer: DenseLinear | Int4Linear | EightBitLinear) -> int:
    """What one pass over the layer reads."""
    if isinstance(layer, DenseLinear):
        tensors = [layer.weight]
    elif isinstance(layer, Int4Linear):
        tensors = [t for t in (layer.weight.codes, layer.weight.scales, layer.weight.offsets) if t is not None]
    else:
        tensors = [layer.weight.codes, layer.weight.scales]
    return sum(t.numel() * t.element_size() for t in tensors)


def _apply(layers: Sequence[Linear], x: torch.Tensor, out: torch.Tensor) -> None:
    for layer in layers:
        layer.apply(x, out)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description="Measure the linear layers of a CUDA device.")
    parser.add_argument("--tiny", action="store_true", help="small shapes, to see that it runs")
    tiny = bool(parser.parse_args(arguments).tiny) or not torch.cuda.is_available()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    shapes, rows, stream = (TINY, (1, 20), 1) if tiny else (LLAMA_8B, ROWS, _STREAM_BYTES)
    for measured in bench_device_linears(device, torch.bfloat16, shapes, rows=rows, stream_bytes=stream):
        print(json.dumps(measured), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
