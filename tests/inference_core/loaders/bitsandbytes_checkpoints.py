"""Packs weights as bitsandbytes does, from the published format alone, number by number and without its package.

Tables: NF4 as printed in Dettmers et al. 2023 (QLoRA), appendix E; FP4 from its bits: sign, two of exponent, one of
mantissa, where 1 is a subnormal of 1/16 and the largest, 12, stands for the largest absolute weight of a block.
"""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
NF4 = [
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
]  # fmt: skip
FP4 = [sign * number / 12 for sign in (1, -1) for number in (0, 1 / 16, 8, 12, 4, 6, 2, 3)]
TABLES = {"nf4": NF4, "fp4": FP4}
BLOCK, NESTED_BLOCK = 64, 256


@dataclass
class Packed:
    """A weight's tensors by their suffix, and the weight that they stand for, float32 [N, K]."""

    parts: dict[str, NDArray[Any]]
    weight: Floats


def pack(weight: Floats, kind: str = "nf4", *, nested: bool = False, storage: type = np.uint8) -> Packed:
    """The parts of a layer X: `weight`, then those of X.weight. Scales of blocks are absolute maxima; nested ones are
    rounded to a dynamic table, here one of evenly spread numbers, which the file brings along."""
    table = np.array(TABLES[kind], np.float32)
    flat = weight.reshape(-1)
    scales = np.maximum.reduceat(np.abs(flat), range(0, len(flat), BLOCK))
    state: dict[str, Any] = {"quant_type": kind, "blocksize": BLOCK, "dtype": "bfloat16", "shape": list(weight.shape)}
    parts: dict[str, NDArray[Any]] = {"weight.quant_map": table}
    if nested:
        offset = float(scales.mean())
        steps = np.linspace(-1, 1, 256).astype(np.float32)
        codes, spread = np.empty(len(scales), np.uint8), []
        for start in range(0, len(scales), NESTED_BLOCK):
            part = scales[start : start + NESTED_BLOCK] - np.float32(offset)
            spread.append(np.abs(part).max())
            codes[start : start + NESTED_BLOCK] = np.abs(steps - (part / spread[-1])[:, None]).argmin(axis=1)
        parts["weight.absmax"] = codes
        parts["weight.nested_absmax"] = np.array(spread, np.float32)
        parts["weight.nested_quant_map"] = steps
        state |= {"nested_blocksize": NESTED_BLOCK, "nested_dtype": "float32", "nested_offset": offset}
        scales = steps[codes] * np.repeat(np.array(spread), NESTED_BLOCK)[: len(codes)] + np.float32(offset)
    else:
        parts["weight.absmax"] = scales
    of_weights = np.repeat(scales, BLOCK)[: len(flat)]
    codes4 = np.abs(table - (flat / of_weights)[:, None]).argmin(axis=1).astype(np.uint8)
    words = 16 * codes4[::2] + codes4[1::2]
    parts["weight"] = words.view(storage).reshape(-1, 1)
    parts[f"weight.quant_state.bitsandbytes__{kind}"] = np.frombuffer(json.dumps(state).encode(), np.uint8)
    return Packed(parts, (table[codes4] * of_weights).reshape(weight.shape))


def config(**extra: Any) -> dict[str, Any]:
    return {
        "quant_method": "bitsandbytes",
        "load_in_4bit": True,
        "load_in_8bit": False,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_compute_dtype": "bfloat16",
    } | extra
