"""From a quality target to the parameter of a rule, read off an artefact's cost-quality curve.

A quality target q in [0, 1] asks that a share q of the answers be no worse than the strongest tier's; 1 - q of them
may be worse. The curve is measured on the artefact's valid split at its reference prices; probes of the serving
catalogue replace it once there are some.
"""

import math
from collections.abc import Sequence

import numpy as np

from classifier.errors import PolicyInputsError
from classifier.manifest import CurvePoint
from classifier.outcome_model import OutcomeModel

# From so many held probes on, the curve is drawn on them alone: they are the serving catalogue's.
CURVE_ROWS = 200


def quality_to_lambda(artefact: OutcomeModel, quality_target: float) -> float:
    """Lambda for the target: never rises with it, and is 0 (quality alone decides) at a target of 1."""
    return lambda_for(artefact.manifest.curves.lambda_rule, quality_target)


def quality_to_tau(artefact: OutcomeModel, quality_target: float) -> float:
    """Tau for the target: never falls with it, and is 1 at a target of 1."""
    return tau_for(artefact.manifest.curves.tau_rule, quality_target)


def lambda_for(points: Sequence[CurvePoint], quality_target: float) -> float:
    """Interpolated lambda of a curve whose measured quality is first made to fall with lambda (running minimum)."""
    return _read(points, quality_target, certain=0.0)


def tau_for(points: Sequence[CurvePoint], quality_target: float) -> float:
    """Interpolated tau of a curve whose measured quality is first made to rise with tau."""
    return _read(points[::-1], quality_target, certain=1.0)


def _read(best_first: Sequence[CurvePoint], quality_target: float, certain: float) -> float:
    """The parameter at the target, between `certain` at quality 1 and the last point's at the curve's least quality.

    A finite sample without a worse answer is no certainty, so only `certain` stands for a target of 1. Of points with
    equal quality the last, the cheapest, counts.
    """
    if not 0.0 <= quality_target <= 1.0:
        raise PolicyInputsError(f"quality target is {quality_target}; it must lie in [0, 1].")
    levels: dict[float, list[float]] = {1.0: [certain]}
    lowest = 1.0
    for point in best_first:
        lowest = min(lowest, point.no_worse)
        if lowest < 1.0:
            levels.setdefault(lowest, []).append(point.parameter)
    qualities, parameters = [], []
    for quality, members in sorted(levels.items()):
        # A target on a level gets its cheapest point; one above it must not be led past the level's first point.
        qualities += [quality, math.nextafter(quality, 2.0)]
        parameters += [members[-1], members[0]]
    return float(np.interp(quality_target, qualities, parameters))
