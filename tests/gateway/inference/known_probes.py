"""Evidence models whose judgement a test can read off the tokens' log-probabilities and the text."""

import numpy as np

from classifier.evidence import EVIDENCE_NAMES, EvidenceHead, EvidenceModel, EvidenceModels, Float, JudgedTier
from tiers.catalog.catalog import Catalog

# Of the logit: 4 if sure; 4 less for a 90th percentile of 1.7 nats, and refusals and second samples as they are.
WEIGHTS = {"uncertainty_p90": -4.0, "refusal": -8.0, "agreement_known": -3.0, "agreement": 8.0}
BIAS = 4.0


def known_probe(catalog: Catalog, tier: int = 1, fingerprint: str | None = None) -> EvidenceModel:
    """A model that ignores what the prompt said and judges `tier` alone."""
    spec = JudgedTier(
        tier=tier,
        model=str(catalog.tier(tier).model),
        fingerprint=catalog.tier_fingerprint(tier) if fingerprint is None else fingerprint,
        judges=[tier],
        reads_agreement=True,
    )
    coef = np.asarray([[WEIGHTS.get(name, 0.0)] for name in EVIDENCE_NAMES], np.float32)
    zero: Float = np.zeros(len(EVIDENCE_NAMES), np.float32)
    return EvidenceModel(spec, EvidenceHead(zero, zero + 1, coef, zero[:1], np.asarray([BIAS], np.float32)))


def known_probes(catalog: Catalog, *, fingerprint: str | None = None) -> EvidenceModels:
    """A set with the model of tier 1."""
    return EvidenceModels("known", "no_worse", [known_probe(catalog, fingerprint=fingerprint)], None)
