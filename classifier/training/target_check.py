"""Whether a higher quality target ever lowers a tier: measured on real predictions, with the artefact's own curves."""

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from classifier.curve import lambda_for, tau_for
from classifier.manifest import Curves
from classifier.policy import SCALE
from classifier.training.routing import Rule

Float = npt.NDArray[np.floating[Any]]
TARGETS = tuple(k / 200 for k in range(201))


class TargetCheck(msgspec.Struct, frozen=True, kw_only=True):
    """One rule over rising targets. `lowered`: prompts that got a lower tier for a higher target at least once;
    `example`: the first such step, in words ("" if there is none)."""

    rule: str
    prompts: int
    targets: int
    lowered: int
    example: str


def target_check(curves: Curves, p_ok: Float, prices: Float, rule: Rule) -> TargetCheck:
    """Sweep the quality target over `p_ok` [n, tiers] at `prices` [tiers], deciding as `policy.decide` does."""
    read = lambda_for if rule == "lambda" else tau_for
    points = curves.lambda_rule if rule == "lambda" else curves.tau_rule
    picks = np.stack([_picks(p_ok, prices, rule, read(points, target)) for target in TARGETS])
    falls = np.diff(picks, axis=0) < 0
    example = ""
    if falls.any():
        step, prompt = (int(i) for i in np.argwhere(falls)[0])
        example = (
            f"prompt {prompt} gets tier {picks[step, prompt] + 1} at target {TARGETS[step]:.3f} and tier "
            f"{picks[step + 1, prompt] + 1} at {TARGETS[step + 1]:.3f}"
        )
    return TargetCheck(
        rule=rule, prompts=len(p_ok), targets=len(TARGETS), lowered=int(falls.any(axis=0).sum()), example=example
    )


def _picks(p_ok: Float, prices: Float, rule: Rule, parameter: float) -> npt.NDArray[np.intp]:
    """Column [n] that `decide` picks; scores are integers, as there."""
    if rule == "tau":
        reached = p_ok.astype(np.float64) >= parameter
        reached[:, -1] = True
        picked: npt.NDArray[np.intp] = np.argmax(reached, axis=1)
        return picked
    share = np.round(prices / prices[-1] * SCALE).astype(np.int64)
    loss = SCALE - np.round(p_ok.astype(np.float64) * SCALE).astype(np.int64)
    picked = np.argmin(loss * SCALE + round(parameter * SCALE) * share, axis=1)
    return picked
