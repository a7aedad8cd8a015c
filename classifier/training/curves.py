"""An artefact's cost-quality curves, drawn on calibration rows with every tier's outcome, and the better rule there."""

import numpy as np
import numpy.typing as npt

from classifier.manifest import CurvePoint, Curves
from classifier.training.encoded_rows import EncodedRows
from classifier.training.estimates import RESAMPLES, estimate
from classifier.training.metrics import resamples
from classifier.training.row_sets import RowSet, row_sets
from classifier.worth import COST_WEIGHT, Rule, choose, utility

Float = npt.NDArray[np.floating]

LAMBDAS = (0.0, *np.geomspace(1e-3, 3.0, 60).tolist())
TAUS = tuple(np.linspace(0.0, 1.0, 101).tolist())
GRID: dict[Rule, tuple[float, ...]] = {"lambda": LAMBDAS, "tau": TAUS}
_SIGNED_RULES: tuple[tuple[Rule, int], ...] = (("lambda", 1), ("tau", -1))


def valid_curves(p: Float, valid: EncodedRows, tiers: int) -> Curves | None:
    """Curves of both rules on the valid rows with every tier observed, and the better rule there.

    None if there are no such rows. The default quality target is the lambda curve's at lambda = 0.1, the yardstick's
    own price of cost.
    """
    full = next((s for s in row_sets(valid, tiers) if len(s.tiers) == tiers), None)
    if full is None:
        return None
    p_ok, no_worse = full.p_ok(p), full.scores["no_worse"]
    correct = full.scores.get("correct", no_worse)
    chosen = choose(p_ok, full.prices, "lambda", COST_WEIGHT)
    return Curves(
        rows=len(no_worse),
        prices=full.prices.tolist(),
        lambda_rule=curve(p_ok, no_worse, correct, full.prices, "lambda"),
        tau_rule=curve(p_ok, no_worse, correct, full.prices, "tau"),
        default_rule=_better_rule(p_ok, full),
        default_quality_target=round(float(no_worse[np.arange(len(chosen)), chosen].mean()), 4),
    )


def best_parameter(p_ok: Float, score: Float, prices: Float, rule: Rule, *, times: int = 200) -> float:
    """The grid's parameter of greatest mean utility on these rows (the valid split).

    Utility is flat around its maximum, so the median over bootstrap resamples of the rows is taken: it moves less from
    sample to sample than the one best point.
    """
    worth = utility(score, prices)
    rows = np.arange(len(score))
    each = np.stack([worth[rows, choose(p_ok, prices, rule, t)] for t in GRID[rule]], axis=1)
    best = np.argmax(np.round(resamples(len(score), times, seed=0) @ each, 6), axis=1)
    return GRID[rule][int(np.median(best))]


def curve(p_ok: Float, no_worse: Float, correct: Float, prices: Float, rule: Rule) -> list[CurvePoint]:
    """The rule's cost-quality curve; all arrays [n, tiers], rows with every tier's outcome."""
    rows = np.arange(len(p_ok))
    points = []
    for parameter in GRID[rule]:
        pick = choose(p_ok, prices, rule, parameter)
        points.append(
            CurvePoint(
                parameter=round(float(parameter), 6),
                no_worse=round(float(no_worse[rows, pick].mean()), 6),
                quality=round(float(correct[rows, pick].mean()), 6),
                cost_share=round(float((prices / prices[-1])[pick].mean()), 6),
            )
        )
    return points


def _better_rule(p_ok: Float, rows: RowSet) -> Rule:
    """The tau rule if its utility is significantly higher, averaged over the labels; else the lambda rule, which
    does not spend the dearest tier on hopeless prompts."""
    n = np.arange(len(p_ok))
    difference = np.zeros(len(p_ok))
    for score in rows.scores.values():
        worth = utility(score, rows.prices)
        for rule, sign in _SIGNED_RULES:
            best = best_parameter(p_ok, score, rows.prices, rule)
            difference += sign * worth[n, choose(p_ok, rows.prices, rule, best)] / len(rows.scores)
    draws = resamples(len(n), RESAMPLES, seed=0) @ difference / len(n)
    return "tau" if estimate(float(difference.mean()), draws).high < 0 else "lambda"
