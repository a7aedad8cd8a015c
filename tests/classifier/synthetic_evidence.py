"""Outcomes of two tiers with evidence that tells, by construction, what the prompt does not."""

from pathlib import Path

import numpy as np

from classifier.features import FEATURE_NAMES
from classifier.outcome_folder import SCHEMA_VERSION, CollectedTier, OutcomeFolder, Outcomes, OutcomesManifest
from classifier.token_summary import OPENING_NAMES, WHOLE_NAMES

HIDDEN, DIM, SAID = 8, 4, 61


def synthetic_folder(root: Path, n: int = 450, seed: int = 0) -> OutcomeFolder:
    """Tier 1 is right half of the time, tier 4 nearly always and at ten times the price.

    Whether tier 1 is right depends on the prompt's first feature a little, on its state much, on its tokens too.
    """
    rng = np.random.default_rng(seed)
    # Some that say something or nothing; how many there are in all is not this test's matter.
    features = np.zeros((n, len(FEATURE_NAMES)), np.float32)
    features[:, :SAID] = rng.normal(size=(n, SAID))
    embedding = rng.normal(size=(n, DIM)).astype(np.float32) / DIM**0.5
    known, surprise = rng.normal(size=n), rng.normal(size=n)
    right = rng.random(n) < 1 / (1 + np.exp(-(0.5 * features[:, 0] + 2.0 * known + 2.0 * surprise)))
    state = rng.normal(size=(n, HIDDEN)).astype(np.float32)
    state[:, 3] += known
    opening = rng.normal(size=(n, len(OPENING_NAMES))).astype(np.float32)
    whole = rng.normal(size=(n, len(WHOLE_NAMES))).astype(np.float32)
    opening[:, 0] += surprise
    whole[:, 0] += 2 * surprise
    length = np.exp(2.5 + 0.5 * features[:, 1] + 0.1 * rng.normal(size=n))
    shared = {
        "row": rng.integers(0, 2**62, size=n),
        "group": (np.arange(n) % 3).astype(np.int16),
        "level": (np.arange(n) % 2).astype(np.int16),
        "p_ok": np.full((n, 4), 0.6, np.float32),
        "features": features,
        "embedding": embedding,
        "prompt_tokens": np.full(n, 50, np.int32),
        "answer_tokens": length.astype(np.int32),
    }
    tiers = {str(k): CollectedTier(
        model=f"m{k}", policy="plain", fingerprint=f"f{k}", layer=2 if k == 1 else 0,
        input_usd_per_million=0.1 if k == 1 else 1.0, output_usd_per_million=0.3 if k == 1 else 3.0,
    ) for k in (1, 4)}  # fmt: skip
    folder = OutcomeFolder.begun(root, manifest(tiers))
    nothing = np.full((n, 0), 0, np.float32)
    folder.append(1, Outcomes(**shared, state=state, opening=opening, whole=whole, correct=right))
    folder.append(
        4,
        Outcomes(**shared, state=nothing, opening=opening * np.nan, whole=whole * np.nan, correct=rng.random(n) < 0.95),
    )
    return folder


def manifest(tiers: dict[str, CollectedTier]) -> OutcomesManifest:
    return OutcomesManifest(
        schema_version=SCHEMA_VERSION,
        catalog="test",
        catalogue_fingerprint="fp",
        tiers=tiers,
        groups=["a", "b", "c"],
        seed=1,
        pooling="last",
        max_tokens=64,
        classifier_version="v1",
        encoder="e1",
        feature_names=list(FEATURE_NAMES),
    )
