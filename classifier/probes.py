"""Stages 2 and 3: what a tier's hidden state and its tokens say about the answer it is giving (DESIGN §4).

A probe belongs to one model under one decoding policy and is refused for any other (`ProbeSet.probe`). Linear probes on
the last prompt token: Kadavath et al. 2022; token probabilities as confidence: Malinin and Gales 2021.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from classifier.answer_length import AnswerLength
from classifier.errors import ArtefactError
from classifier.token_summary import OPENING_NAMES, WHOLE_NAMES

Float = npt.NDArray[np.float32]
Tensors = dict[str, npt.NDArray[np.generic]]
Label = Literal["no_worse", "correct"]

P_MIN, P_MAX = 0.005, 0.995
CLIP = 5.0  # standard deviations


class StageHead(NamedTuple):
    """Calibrated logistic heads of one stage over standardised evidence and the logits of the stage before.

    `mean`, `scale` [e]; `coef` [e, t]; `before` [t], the weight of the earlier logit of the same column; `bias` [t].
    The t columns are the tiers whose answers are judged.
    """

    mean: Float
    scale: Float
    coef: Float
    before: Float
    bias: Float

    def logits(self, evidence: Float, earlier: Float) -> Float:
        """Logits [..., t] of `evidence` [..., e] after `earlier` [..., t]."""
        logits: Float = standardised(evidence, self.mean, self.scale) @ self.coef + earlier * self.before + self.bias
        return logits


class ProbedTier(msgspec.Struct, frozen=True, kw_only=True):
    """Whose evidence a probe reads: the tier, its `Catalog.tier_fingerprint`, the layer and pooling of its state.

    `judges`: the tiers that the probe's columns stand for, its own first.
    """

    tier: int
    model: str
    fingerprint: str
    layer: int
    pooling: Literal["last", "mean"]
    judges: list[int]


class TierProbe:
    """Stages 2 and 3 of one tier. Immutable; safe from many threads."""

    def __init__(self, spec: ProbedTier, state: StageHead, opening: StageHead, whole: StageHead) -> None:
        self.spec = spec
        self._state, self._opening, self._whole = state, opening, whole

    @property
    def hidden(self) -> int:
        """Length of the state that it reads."""
        return len(self._state.mean)

    def after_prefill(self, state: Float, p_ok: list[float]) -> Float:
        """Stage 2: logits [judged] by the hidden state [hidden], float32, and stage 1's probabilities by tier."""
        before = np.asarray([logit(p_ok[tier - 1]) for tier in self.spec.judges], np.float32)
        return self._state.logits(state, before)

    def after_opening(self, opening: Float, logits: Float) -> Float:
        """Stage 3 of an answer that has begun, by `TokenSummary.opening` after stage 2's logits."""
        return self._opening.logits(opening, logits)

    def after_answer(self, whole: Float, logits: Float) -> Float:
        """Stage 3 of an answer that is finished, by `TokenSummary.whole` after stage 2's logits."""
        return self._whole.logits(whole, logits)

    def p_ok(self, logits: Float, prior: list[float]) -> list[float]:
        """`prior` by tier with what `logits` say of those that are judged."""
        p = list(prior)
        for tier, value in zip(self.spec.judges, logits.tolist(), strict=True):
            p[tier - 1] = min(max(1.0 / (1.0 + math.exp(-value)), P_MIN), P_MAX)
        return p


class ProbeSet:
    """The probes of a catalogue's tiers and the lengths of their answers, as one artefact holds them.

    `label`: what the probabilities are of, `no_worse` where the strongest tier's outcomes were collected too.
    `length_fingerprints`: of the tiers of `lengths`, in their order.
    """

    def __init__(
        self,
        version: str,
        label: Label,
        probes: list[TierProbe],
        lengths: AnswerLength | None,
        length_fingerprints: Sequence[str] = (),
    ) -> None:
        self.version, self.label, self.lengths = version, label, lengths
        self._length_fingerprints = list(length_fingerprints)
        self.tiers = {probe.spec.tier: probe for probe in probes}

    def probe(self, tier: int, fingerprint: str) -> TierProbe | None:
        """The probe of `tier`; None if it has none. Raises `ArtefactError` if it belongs to another model or policy."""
        probe = self.tiers.get(tier)
        if probe is not None and probe.spec.fingerprint != fingerprint:
            raise ArtefactError(
                f"probes {self.version}: tier {tier}'s was fitted on '{probe.spec.model}' ({probe.spec.fingerprint}), "
                f"which is not what answers there now ({fingerprint}). Collect outcomes and fit them again."
            )
        return probe

    def lengths_for(self, fingerprints: Mapping[int, str]) -> AnswerLength | None:
        """The lengths of the tiers that answer as they did when they were measured; `fingerprints` by tier."""
        if self.lengths is None:
            return None
        measured = zip(self.lengths.tiers, self._length_fingerprints, strict=False)
        return self.lengths.of_tiers([tier for tier, print_ in measured if fingerprints.get(tier) == print_])


def standardised(evidence: Float, mean: Float, scale: Float) -> Float:
    """Evidence [..., e] in standard deviations, clipped: odd evidence must not extrapolate."""
    clipped: Float = np.minimum(np.maximum((evidence - mean) / scale, -CLIP), CLIP)
    return clipped


def head_tensors(name: str, head: StageHead) -> Tensors:
    """The parameters of `head` by name, float32."""
    return {f"{name}.{field}": np.asarray(value, np.float32) for field, value in head._asdict().items()}


def probe_from(spec: ProbedTier, tensors: Tensors) -> TierProbe:
    """The probe of `spec` out of an artefact's tensors. Raises `ArtefactError`."""
    name = f"tier_{spec.tier}"
    return TierProbe(
        spec,
        _head_from(f"{name}.state", tensors, None, spec),
        _head_from(f"{name}.opening", tensors, len(OPENING_NAMES), spec),
        _head_from(f"{name}.whole", tensors, len(WHOLE_NAMES), spec),
    )


def _head_from(name: str, tensors: Tensors, evidence: int | None, spec: ProbedTier) -> StageHead:
    """What `head_tensors` gave. Raises `ArtefactError` for what is missing, misshapen or not finite."""
    try:
        head = StageHead(*(tensors[f"{name}.{field}"].astype(np.float32) for field in StageHead._fields))
    except KeyError as error:
        raise ArtefactError(f"{error} is missing. Fit the probes again.") from error
    e, t = len(head.mean) if evidence is None else evidence, len(spec.judges)
    wanted = ((e,), (e,), (e, t), (t,), (t,))
    found = tuple(part.shape for part in head)
    if found != wanted:
        raise ArtefactError(f"{name} has shapes {found}, expected {wanted}. Fit the probes again.")
    if not all(np.isfinite(part).all() for part in head) or not (head.scale > 0).all():
        raise ArtefactError(f"{name} holds values that are not finite, or scales not above 0. Fit the probes again.")
    return head


def logit(p: float) -> float:
    """The logit of `p`, which is kept away from 0 and 1."""
    clipped = min(max(p, P_MIN), P_MAX)
    return math.log(clipped / (1 - clipped))
