"""Probes whose judgement a test can read off the state and the log-probabilities."""

import numpy as np

from classifier.probes import Float, ProbedTier, ProbeSet, StageHead, TierProbe
from classifier.token_summary import OPENING_NAMES, WHOLE_NAMES
from tiers.catalog import Catalog

HIDDEN = 2
GOOD_STATE, BAD_STATE = (1.0, 0.0), (-1.0, 0.0)


def known_probe(catalog: Catalog, tier: int = 1, fingerprint: str | None = None) -> TierProbe:
    """Stage 2's logit is 4 x the state's first number, stage 3's 4 + 4 x the mean log-probability; both ignore what
    was known before."""
    spec = ProbedTier(
        tier=tier,
        model=str(catalog.tier(tier).model),
        fingerprint=catalog.tier_fingerprint(tier) if fingerprint is None else fingerprint,
        layer=20,
        pooling="last",
        judges=[tier],
    )
    opening = OPENING_NAMES.index("opening_mean_logprob")
    whole = WHOLE_NAMES.index("mean_logprob")
    return TierProbe(
        spec, _head(HIDDEN, 0, 0.0), _head(len(OPENING_NAMES), opening, 4.0), _head(len(WHOLE_NAMES), whole, 4.0)
    )


def known_probes(catalog: Catalog, *, fingerprint: str | None = None) -> ProbeSet:
    """A set with the probe of tier 1."""
    return ProbeSet("known", "no_worse", [known_probe(catalog, fingerprint=fingerprint)], None)


def _head(evidence: int, place: int, bias: float) -> StageHead:
    coef = np.zeros((evidence, 1), np.float32)
    coef[place] = 4.0
    zero: Float = np.zeros(evidence, np.float32)
    return StageHead(zero, zero + 1, coef, np.zeros(1, np.float32), np.asarray([bias], np.float32))
