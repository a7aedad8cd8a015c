"""P(an answer is good) from the prompt's own probability and the answer's evidence: one logistic per judged tier.

A model belongs to one tier's model under one decoding policy and is refused for any other (`EvidenceModels.model`).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from classifier.errors import ArtefactError
from classifier.evidence.features import EVIDENCE_NAMES, Float, with_agreement
from classifier.model.answer_length import AnswerLength

Tensors = dict[str, npt.NDArray[np.generic]]
Label = Literal["no_worse", "correct"]

P_MIN, P_MAX = 0.005, 0.995
CLIP = 5.0  # standard deviations


class EvidenceHead(NamedTuple):
    """Logistic regressions over standardised evidence and the logit of the prompt's own probability.

    `mean`, `scale` [e]; `coef` [e, t]; `before` [t], the weight of the prompt's logit of the same column; `bias` [t].
    The t columns are the judged tiers.
    """

    mean: Float
    scale: Float
    coef: Float
    before: Float
    bias: Float

    def logits(self, evidence: Float, prompt: Float) -> Float:
        """Return logits [..., t] from `evidence` [..., e] and the prompt's logits [..., t]."""
        logits: Float = standardised(evidence, self.mean, self.scale) @ self.coef + prompt * self.before + self.bias
        return logits


class JudgedTier(msgspec.Struct, frozen=True, kw_only=True):
    """The tier whose answers a model judges, and its `Catalog.tier_fingerprint`.

    `judges`: the tiers of the columns, its own first; a bad answer is also evidence about the prompt, and so about the
    answers of the tiers above. `reads_agreement`: whether it was fitted with second samples.
    """

    tier: int
    model: str
    fingerprint: str
    judges: list[int]
    reads_agreement: bool = False


class EvidenceModel:
    """The judge of one tier's answers. Immutable; thread-safe."""

    def __init__(self, spec: JudgedTier, head: EvidenceHead) -> None:
        self.spec = spec
        self._head = head

    def p_ok(self, evidence: Float, prior: list[float]) -> list[float]:
        """Update `prior`, P(good) by tier from the prompt alone, by `evidence` [e] for the judged tiers."""
        before = np.asarray([logit(prior[tier - 1]) for tier in self.spec.judges], np.float32)
        p = list(prior)
        for tier, value in zip(self.spec.judges, self._head.logits(evidence, before).tolist(), strict=True):
            p[tier - 1] = min(max(1.0 / (1.0 + math.exp(-value)), P_MIN), P_MAX)
        return p

    def p_ok_by_agreement(self, evidence: Float, prior: list[float]) -> tuple[list[float], list[float]]:
        """Return `p_ok` if a second sample disagreed, and if it agreed."""
        disagreed, agreed = (self.p_ok(with_agreement(evidence, value), prior) for value in (0.0, 1.0))
        return disagreed, agreed


class EvidenceModels:
    """The evidence models of a catalogue's tiers and the answer-length model, from one artefact.

    `label`: what the probabilities are of; `no_worse` if the strongest tier's outcomes were collected too.
    `length_fingerprints`: of the tiers of `lengths`, in order.
    """

    def __init__(
        self,
        version: str,
        label: Label,
        models: list[EvidenceModel],
        lengths: AnswerLength | None,
        length_fingerprints: Sequence[str] = (),
    ) -> None:
        self.version, self.label, self.lengths = version, label, lengths
        self._length_fingerprints = list(length_fingerprints)
        self.tiers = {model.spec.tier: model for model in models}

    def model(self, tier: int, fingerprint: str) -> EvidenceModel | None:
        """Return the model of `tier`, or None. Raises `ArtefactError` if it belongs to another model or policy."""
        model = self.tiers.get(tier)
        if model is not None and model.spec.fingerprint != fingerprint:
            raise ArtefactError(
                f"probes {self.version}: tier {tier}'s was fitted on '{model.spec.model}' ({model.spec.fingerprint}), "
                f"which is not what answers there now ({fingerprint}). Collect outcomes and fit them again."
            )
        return model

    def lengths_for(self, fingerprints: Mapping[int, str]) -> AnswerLength | None:
        """Return the answer-length model for the tiers that are unchanged since it was measured; `fingerprints` by
        tier."""
        if self.lengths is None:
            return None
        measured = zip(self.lengths.tiers, self._length_fingerprints, strict=False)
        return self.lengths.of_tiers([tier for tier, print_ in measured if fingerprints.get(tier) == print_])


def standardised(evidence: Float, mean: Float, scale: Float) -> Float:
    """Return evidence [..., e] in standard deviations, clipped so that outliers do not extrapolate."""
    clipped: Float = np.minimum(np.maximum((evidence - mean) / scale, -CLIP), CLIP)
    return clipped


def head_tensors(tier: int, head: EvidenceHead) -> Tensors:
    """Return the parameters of the head of `tier` by name, float32."""
    return {f"tier_{tier}.{field}": np.asarray(value, np.float32) for field, value in head._asdict().items()}


def model_from(spec: JudgedTier, tensors: Tensors) -> EvidenceModel:
    """Build the model of `spec` from an artefact's tensors. Raises `ArtefactError` for missing, misshapen or non-finite
    ones."""
    name = f"tier_{spec.tier}"
    try:
        head = EvidenceHead(*(tensors[f"{name}.{field}"].astype(np.float32) for field in EvidenceHead._fields))
    except KeyError as error:
        raise ArtefactError(f"{error} is missing. Fit the probes again.") from error
    e, t = len(EVIDENCE_NAMES), len(spec.judges)
    wanted = ((e,), (e,), (e, t), (t,), (t,))
    found = tuple(part.shape for part in head)
    if found != wanted:
        raise ArtefactError(f"{name} has shapes {found}, expected {wanted}. Fit the probes again.")
    if not all(np.isfinite(part).all() for part in head) or not (head.scale > 0).all():
        raise ArtefactError(f"{name} holds values that are not finite, or scales not above 0. Fit the probes again.")
    return EvidenceModel(spec, head)


def logit(p: float) -> float:
    """Return the logit of `p`, clipped away from 0 and 1."""
    clipped = min(max(p, P_MIN), P_MAX)
    return math.log(clipped / (1 - clipped))
