"""The immediate repair of a prediction: P(no worse) lowered by recent verified outcomes, and taken back."""

import math

import msgspec
import numpy as np

from classifier.decision import Prediction
from classifier.memory import Float
from classifier.recent_memory import RecentOutcomes

NAME = "verified outcomes nearby"


def repaired(prediction: Prediction, embedding: Float, outcomes: RecentOutcomes) -> Prediction:
    """`prediction` for a prompt of this `embedding` [dim], lowered where `outcomes` contradict it, with the reason
    among its contributions."""
    if not len(outcomes.centres):
        return prediction
    before = np.array([prediction.p_ok[:-1]], np.float32)
    after = outcomes.adjust(embedding[None], before)
    if not (after < before).any():
        return prediction
    # Where nothing was lowered the number stays what it was, bit for bit.
    p_ok = [
        low if low < high else p
        for p, low, high in zip(prediction.p_ok, after[0].tolist(), before[0].tolist(), strict=False)
    ]
    effect = _logit(p_ok[0]) - _logit(prediction.p_ok[0])
    moved = sorted([*prediction.contributions, (NAME, round(effect, 4))], key=lambda one: -abs(one[1]))
    return msgspec.structs.replace(
        prediction,
        p_ok=[*p_ok, prediction.p_ok[-1]],
        p_ok_before=prediction.p_ok,
        contributions=moved if effect else prediction.contributions,
    )


def unrepaired(prediction: Prediction) -> Prediction:
    """The artefact's own word again."""
    if not prediction.p_ok_before:
        return prediction
    return msgspec.structs.replace(
        prediction,
        p_ok=prediction.p_ok_before,
        p_ok_before=[],
        contributions=[one for one in prediction.contributions if one[0] != NAME],
    )


def _logit(p: float) -> float:
    return math.log(p / (1.0 - p))
