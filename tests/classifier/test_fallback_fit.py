"""The fallback for novel prompts that training recommends."""

import numpy as np
import pytest
from classifier.fallback import fallback_of

from classifier.outcome_model import Outcomes
from classifier.training.fallback_fit import fitted_fallback
from classifier.training.train import Candidate


def test_two_in_a_hundred_of_the_held_out_prompts_falls_back_on_the_strongest_tier() -> None:
    novelty = np.random.default_rng(0).permutation(np.linspace(0, 0.9, 400, dtype=np.float32))
    fallback = fitted_fallback(Outcomes(np.full((400, 7), 0.5, np.float32), novelty), 4)
    assert np.mean(novelty >= fallback.threshold) == pytest.approx(0.02, abs=0.005)
    assert fallback.tier == 4


def test_a_trained_artefact_carries_its_fallback(tiny: Candidate) -> None:
    manifest = tiny.model.manifest
    assert manifest.fallback is not None
    assert fallback_of(manifest) == manifest.fallback
