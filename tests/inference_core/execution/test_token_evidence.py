"""What logits say of a token: against float64 over the whole vocabulary."""

import numpy as np
import pytest
import torch

from inference_core.engine.prompt_readings import StatePool
from inference_core.execution.logits_runner import RowEvidence, StepEvidence
from inference_core.protocol import SamplingParams
from inference_core.step_plan import SampledToken, SampleSpec, ScheduledSequence

ASKS = SampleSpec(SamplingParams(), [], [], 0, 0, (), evidence=True)
SILENT = SampleSpec(SamplingParams(), [], [], 0, 0, ())


def law(raw: np.ndarray) -> np.ndarray:
    wide = raw.astype(np.float64)
    top = wide.max()
    return wide - top - np.log(np.exp(wide - top).sum())


@pytest.mark.parametrize("scale", [0.1, 3.0, 40.0])
def test_evidence_equals_float64_over_the_whole_vocabulary(scale: float) -> None:
    raw = (np.random.default_rng(1).normal(size=5000) * scale).astype(np.float32)
    logprobs = law(raw)
    evidence = RowEvidence(raw).of(17)
    second, first = np.sort(logprobs)[-2:]
    assert evidence.logprob == pytest.approx(logprobs[17], abs=1e-9)
    assert evidence.entropy == pytest.approx(-(np.exp(logprobs) * logprobs).sum(), abs=1e-9)
    assert evidence.margin == pytest.approx(first - second, abs=1e-9)


def test_tokens_without_probability_and_ties_are_no_trouble() -> None:
    raw = np.full(100, -np.inf, np.float32)
    raw[3] = raw[5] = 2.0
    evidence = RowEvidence(raw).of(5)
    assert (evidence.margin, evidence.logprob) == (0.0, pytest.approx(-np.log(2)))
    assert evidence.entropy == pytest.approx(np.log(2))


def test_rows_with_drafts_are_matched_to_their_sequences_and_masks_change_nothing() -> None:
    logits = torch.randn(5, 40, generator=torch.Generator().manual_seed(0))
    raw = logits.numpy().copy()
    sequences = [
        ScheduledSequence("prompt", [1, 2], 0, [0], None),
        ScheduledSequence("drafted", [1, 8, 9], 0, [0], ASKS, num_drafts=2),
        ScheduledSequence("silent", [1], 0, [0], SILENT),
        ScheduledSequence("plain", [1], 0, [0], ASKS),
    ]
    evidence = StepEvidence(logits, sequences)
    logits.fill_(-torch.inf)
    drawn = evidence.added_to([[], [SampledToken(8), SampledToken(4)], [SampledToken(2)], [SampledToken(7)]])
    assert [[token.evidence is not None for token in tokens] for tokens in drawn] == [[], [True, True], [False], [True]]
    rows = [(drawn[1][0], 0), (drawn[1][1], 1), (drawn[3][0], 4)]
    assert all(token.evidence.logprob == pytest.approx(law(raw[row])[token.token_id]) for token, row in rows)


def test_a_mean_has_the_same_bits_in_any_chunks() -> None:
    states = np.random.default_rng(2).normal(size=(97, 33)).astype(np.float32) * 100
    means = set()
    for cuts in ([97], [1] * 97, [40, 57], [3, 90, 4]):
        pool, taken = StatePool(1, "mean", 97), 0
        for rows in cuts:
            pool.take(states[taken : taken + rows])
            taken += rows
        means.add(pool.pop())
    assert len(means) == 1
    assert np.frombuffer(means.pop(), "<f4") == pytest.approx(states.mean(axis=0, dtype=np.float64), rel=1e-6)
