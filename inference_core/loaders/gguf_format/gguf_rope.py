"""Reads the rotary settings of GGUF files: linear scaling, Llama 3.1's rule, and longrope's factors."""

import numpy as np
from numpy.typing import NDArray

from inference_core.errors import ModelFileError
from inference_core.loaders.gguf_format.gguf_metadata import Metadata
from inference_core.loaders.gguf_format.rope_factors import llama3_scaling
from inference_core.model_config import RopeScaling

FREQUENCIES = "rope_freqs.weight"
LONG, SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
ROPE_TENSORS = (FREQUENCIES, LONG, SHORT)

Factors = dict[str, NDArray[np.float32]]


def rope_scaling(metadata: Metadata, theta: float, rotary_dim: int, factors: Factors) -> RopeScaling | None:
    """`factors`: those of `ROPE_TENSORS` that the file has, float32 [rotary_dim / 2]. Raises ModelFileError for what is
    not supported."""
    path = metadata.header.path
    if FREQUENCIES in factors:
        return llama3_scaling(path, factors[FREQUENCIES], theta, rotary_dim)
    kind = metadata.text("rope.scaling.type")
    if LONG in factors or SHORT in factors:
        return _longrope(metadata, factors)
    factor = metadata.number("rope.scaling.factor", metadata.number("rope.scale_linear", 1.0))
    if kind not in (None, "none", "linear"):
        raise ModelFileError(
            f"{path}: rope scaling '{kind}' is not supported; supported are none, linear, llama3 and longrope"
        )
    if kind == "none" or factor in (0.0, 1.0):
        return None
    return RopeScaling(kind="linear", factor=factor)


def _longrope(metadata: Metadata, factors: Factors) -> RopeScaling:
    path, length = metadata.header.path, metadata.integer("context_length")
    if LONG not in factors or SHORT not in factors:
        raise ModelFileError(f"{path}: longrope needs both {LONG} and {SHORT}")
    original = metadata.integer("rope.scaling.original_context_length", length)
    return RopeScaling(
        kind="longrope",
        factor=length / max(original, 1),
        original_max_position=original,
        attention_factor=metadata.number("rope.scaling.attn_factor", 1.0),
        short=tuple(factors[SHORT].tolist()),
        long=tuple(factors[LONG].tolist()),
    )
