"""How rows of logits are drawn from, as columns that travel to a device. No torch."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import DTypeLike

from inference_core.step_plan import SampleSpec

PARAM_FIELDS: tuple[tuple[str, DTypeLike], ...] = (
    ("temperature", np.float64),
    ("top_k", np.int32),
    ("top_p", np.float64),
    ("min_p", np.float64),
    ("seed", np.int64),
    ("position", np.int64),
)
"""What a draw depends on besides its logits, in the order of the arguments of `aio::draw_tokens`."""
_INT32 = (1 << 31) - 1


def param_columns(specs: Sequence[SampleSpec]) -> dict[str, Sequence[float]]:
    """A column [R] of each of `PARAM_FIELDS`: `temperature` 0 is greedy, `top_k` 0 is all."""
    params = [spec.params for spec in specs]
    return {
        "temperature": [p.temperature for p in params],
        "top_k": [min(max(p.top_k, 0), _INT32) for p in params],
        "top_p": [p.top_p for p in params],
        "min_p": [p.min_p for p in params],
        "seed": [_as_int64(spec.seed) for spec in specs],
        "position": [spec.position for spec in specs],
    }


def _as_int64(seed: int) -> int:
    """The lowest 64 bits of a seed, as a signed number."""
    return (seed + (1 << 63)) % (1 << 64) - (1 << 63)
