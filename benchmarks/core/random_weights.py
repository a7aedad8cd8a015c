"""Random weights generated on the device: a model of 70B parameters in seconds. Only for measurements."""

import math
import zlib
from pathlib import Path

import torch

from inference_core.errors import ModelFileError
from inference_core.linear.device import DenseLinear, DeviceScheme, EightBitLinear, Int4Linear
from inference_core.linear.linear import Linear
from inference_core.loaders.checkpoint import Checkpoint
from inference_core.models.weights import Projection, projections
from inference_core.triton_kernels.weights import BLOCK, WORDS, EightBitWeight, Int4Weight

_GROUP = 128  # of 4-bit weights, as AWQ and GPTQ files have them


def random_linears(
    checkpoint: Checkpoint, scheme: DeviceScheme, dtype: torch.dtype, device: torch.device, _: Path
) -> dict[str, Linear]:
    """Projections with a checkpoint's shapes, by name; its data is not read. Weights have a standard deviation of about
    1 / sqrt(inputs). The vocabulary projection is dense, as in checkpoints.
    """
    return {p.name: _random(checkpoint, p, scheme, dtype, device) for p in projections(checkpoint)}


def _random(
    checkpoint: Checkpoint, projection: Projection, scheme: DeviceScheme, dtype: torch.dtype, device: torch.device
) -> Linear:
    tensors = [checkpoint.tensors[name] for name in projection.tensors]
    outputs, inputs = sum(t.shape[0] for t in tensors), tensors[0].shape[1]
    generator = torch.Generator(device).manual_seed(zlib.crc32(projection.name.encode()))
    if scheme == "dense" or projection.name == "head":
        weight = torch.empty(outputs, inputs, dtype=dtype, device=device)
        return DenseLinear(weight.normal_(0, inputs**-0.5, generator=generator), None)
    if scheme == "int4":
        return Int4Linear(_int4(outputs, inputs, device, generator), None)
    codes = torch.int8 if scheme == "int8" else torch.float8_e4m3fn
    return EightBitLinear(_eight_bit(outputs, inputs, codes, device, generator), None)


def _int4(outputs: int, inputs: int, device: torch.device, generator: torch.Generator) -> Int4Weight:
    if inputs % BLOCK:
        raise ModelFileError(f"random 4-bit layers need inputs in multiples of {BLOCK}, not {inputs}")
    shape = (inputs // BLOCK, outputs, WORDS)
    codes = torch.randint(-(1 << 31), 1 << 31, shape, dtype=torch.int32, device=device, generator=generator)
    # Codes are uniform over 16 values: their standard deviation is 16 / sqrt(12).
    scale = math.sqrt(12 / inputs) / 16
    scales = torch.full((inputs // _GROUP, outputs), scale, dtype=torch.float16, device=device)
    return Int4Weight(codes, scales, None, inputs)


def _eight_bit(
    outputs: int, inputs: int, dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> EightBitWeight:
    if dtype == torch.int8:
        codes = torch.randint(-127, 128, (outputs, inputs), dtype=torch.int8, device=device, generator=generator)
        scale = math.sqrt(12 / inputs) / 255
    else:
        codes = torch.empty(outputs, inputs, dtype=torch.float16, device=device)
        codes = codes.normal_(0, 64, generator=generator).clamp_(-448, 448).to(dtype)
        scale = inputs**-0.5 / 64
    return EightBitWeight(codes, torch.full((outputs,), scale, dtype=torch.float32, device=device))
