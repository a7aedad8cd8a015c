"""Reads the rotary settings of GGUF files: linear scaling, Llama 3.1's rule, yarn, and longrope's factors."""

import math

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
    if kind not in (None, "none", "linear", "yarn"):
        raise ModelFileError(
            f"{path}: rope scaling '{kind}' is not supported; supported are none, linear, llama3, yarn and longrope"
        )
    if kind == "yarn":
        return _yarn(metadata, factor)
    if kind == "none" or factor in (0.0, 1.0):
        return None
    return RopeScaling(kind="linear", factor=factor)


def _yarn(metadata: Metadata, factor: float) -> RopeScaling:
    """Scores are divided by the temperature of Peng et al. (2023), section 3.4, as llama.cpp does. `truncate` has no
    key: gpt-oss's config.json alone says that it is false."""
    gpt_oss = metadata.prefix == "gpt-oss"
    original = metadata.integer(
        "rope.scaling.original_context_length", 4096 if gpt_oss else metadata.integer("context_length")
    )
    temperature = 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0
    return RopeScaling(
        kind="yarn",
        factor=factor,
        original_max_position=original,
        beta_fast=metadata.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=metadata.number("rope.scaling.yarn_beta_slow", 1.0),
        truncate=not gpt_oss,
        attention_factor=temperature * metadata.number("rope.scaling.yarn_attn_factor", 1.0),
    )


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
