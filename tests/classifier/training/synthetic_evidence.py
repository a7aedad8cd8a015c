"""Outcomes of two tiers with evidence that, by construction, informs beyond the prompt."""

from pathlib import Path

import numpy as np

from classifier.evidence import EVIDENCE_NAMES
from classifier.features.surface_features import FEATURE_NAMES
from classifier.training.data.outcome_folder import (
    SCHEMA_VERSION,
    CollectedTier,
    OutcomeFolder,
    Outcomes,
    OutcomesManifest,
)

DIM, SAID = 4, 61


def synthetic_folder(root: Path, n: int = 450, seed: int = 0, worth: float = 1.0) -> OutcomeFolder:
    """Tier 1 is right half of the time, tier 4 nearly always and at ten times the price.

    Whether tier 1 is right depends a little on the prompt's first feature and strongly on its tokens' uncertainty; half
    of the answers have an informative second sample. `worth`: strength of the evidence; at 0 it is noise.
    """
    rng = np.random.default_rng(seed)
    # Some informative numbers and some noise; their total number does not matter here.
    features = np.zeros((n, len(FEATURE_NAMES)), np.float32)
    features[:, :SAID] = rng.normal(size=(n, SAID))
    embedding = rng.normal(size=(n, DIM)).astype(np.float32) / DIM**0.5
    unsure = rng.normal(size=n)
    right = rng.random(n) < 1 / (1 + np.exp(-(0.5 * features[:, 0] - 2.0 * worth * unsure)))
    evidence = rng.normal(size=(n, len(EVIDENCE_NAMES))).astype(np.float32)
    evidence[:, EVIDENCE_NAMES.index("uncertainty_p90")] = unsure
    evidence[:, -2:] = 0
    agrees = rng.random(n) < np.where(right, 0.5 + 0.4 * worth, 0.5 - 0.2 * worth)
    length = np.exp(2.5 + 0.5 * features[:, 1] + 0.1 * rng.normal(size=n))
    shared = {
        "row": rng.integers(0, 2**62, size=n),
        "group": (np.arange(n) % 3).astype(np.int16),
        "level": (np.arange(n) % 2).astype(np.int16),
        "p_ok": np.full((n, 4), 0.6, np.float32) + 0.05 * np.clip(features[:, :1], -2, 2),
        "features": features,
        "embedding": embedding,
        "prompt_tokens": np.full(n, 50, np.int32),
        "answer_tokens": length.astype(np.int32),
    }
    tiers = {str(k): CollectedTier(
        model=f"m{k}", policy="plain", fingerprint=f"f{k}",
        input_usd_per_million=0.1 if k == 1 else 1.0, output_usd_per_million=0.3 if k == 1 else 3.0,
    ) for k in (1, 4)}  # fmt: skip
    folder = OutcomeFolder.begun(root, manifest(tiers))
    second = np.where(np.arange(n) % 2, agrees, np.nan).astype(np.float32)
    folder.append(1, Outcomes(**shared, evidence=evidence, agreement=second, correct=right))
    none = np.full(n, np.nan, np.float32)
    folder.append(4, Outcomes(**shared, evidence=0 * evidence, agreement=none, correct=rng.random(n) < 0.95))
    return folder


def manifest(tiers: dict[str, CollectedTier]) -> OutcomesManifest:
    return OutcomesManifest(
        schema_version=SCHEMA_VERSION,
        catalog="test",
        catalogue_fingerprint="fp",
        tiers=tiers,
        groups=["a", "b", "c"],
        seed=1,
        max_tokens=64,
        classifier_version="v1",
        encoder="e1",
        feature_names=list(FEATURE_NAMES),
        evidence_names=list(EVIDENCE_NAMES),
    )
