"""The figures of a study with their intervals: against the stated goals, and scenario by scenario."""

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
from scipy.stats import beta, chi2

from quality.laboratory.run import Routing, RunResult, shift_gap

Float = npt.NDArray[np.float64]
_RESAMPLES = 2000
# An artefact whose utility is lower by more than this is worse.
WORSE_BY = 0.005


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """A value with its 95% interval; None where no run says anything. `of`: what it was counted or averaged over."""

    value: float | None
    ci: tuple[float, float] | None
    of: str


class ScenarioFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One scenario with some parts of the loop, means over runs. `before`, `shifted`, `last`: quality and cost of what
    was served on the day before the shift, on the first day after it, and on the last. `regret`: utility of the oracle
    less the artefact's on fresh prompts. `detected`: runs with an alarm after the shift; `samples` their median."""

    scenario: str
    arm: str
    runs: int
    before: tuple[float, float]
    shifted: tuple[float, float]
    last: tuple[float, float]
    detected: int
    samples: Figure
    promotions: int
    refused: int
    fixed_rule_alarms: float
    gap_closed: Figure
    cost_of_oracle: Figure
    regret: Figure
    verification_share: Figure
    repair_share: Figure


class Study(msgspec.Struct, frozen=True, kw_only=True):
    """What `aio quality simulate --json` prints, and the page shows."""

    runs: int
    requests: int
    false_retrains_per_100k: Figure
    fixed_rule_retrains_per_100k: Figure
    detection_samples_median: Figure
    gap_closed_by_promotion: Figure
    gap_closed_by_retraining: Figure
    gap_closed_by_retraining_all_runs: Figure
    worse_promotions: Figure
    verification_cost_share: Figure
    verification_cost_share_max: float | None
    verification_cost_share_max_of_a_day: float | None
    scenarios: list[ScenarioFigures]


def study_of(results: Sequence[RunResult]) -> Study:
    """The figures of finished runs."""
    still = [r for r in results if r.scenario == "nothing"]
    new = [r for r in results if r.scenario == "new_domain"]
    repaired, retrained = ([r for r in new if r.arm == arm] for arm in ("repair", "retraining"))
    noisy = [r for r in results if r.scenario == "noisy_judge"]
    served = sum(r.requests for r in still)
    false = sum(trigger == "drift" for r in still for _, trigger, _, _ in r.retrainings)
    return Study(
        runs=len(results),
        requests=sum(r.requests for r in results),
        false_retrains_per_100k=_rate(false, served),
        fixed_rule_retrains_per_100k=_rate(sum(len(r.fixed_rule) for r in still), served),
        detection_samples_median=_median(retrained),
        gap_closed_by_promotion=_mean([_gap_at_end(r) for r in repaired], "runs, at their end, retraining off"),
        gap_closed_by_retraining=_mean([_gap(r) for r in retrained if r.promotions], "runs with a promoted version"),
        gap_closed_by_retraining_all_runs=_mean([_gap(r) for r in retrained], "runs, promoted or not"),
        worse_promotions=_share(
            sum(any(p.gain < -WORSE_BY for p in r.promotions) for r in noisy), len(noisy), "runs with a judge who errs"
        ),
        verification_cost_share=_mean([r.verification_share for r in results], "runs of all scenarios"),
        verification_cost_share_max=max((r.verification_share for r in results), default=None),
        verification_cost_share_max_of_a_day=max((r.peak_share for r in results), default=None),
        scenarios=[_figures(list(group)) for group in _groups(results)],
    )


def _groups(results: Sequence[RunResult]) -> list[list[RunResult]]:
    names = dict.fromkeys((r.scenario, r.arm) for r in results)
    return [[r for r in results if (r.scenario, r.arm) == name] for name in names]


def _figures(runs: Sequence[RunResult]) -> ScenarioFigures:
    day = round(runs[0].shift / (runs[0].requests / len(runs[0].served)))
    per_100k = 100_000 * sum(len(r.fixed_rule) for r in runs) / sum(r.requests for r in runs)
    gap: Callable[[RunResult], float | None] = _gap_at_end if runs[0].arm == "repair" else _gap
    return ScenarioFigures(
        scenario=runs[0].scenario,
        arm=runs[0].arm,
        runs=len(runs),
        before=_served(runs, day - 1),
        shifted=_served(runs, day),
        last=_served(runs, -1),
        detected=sum(r.detection is not None for r in runs),
        samples=_median(runs),
        promotions=sum(len(r.promotions) for r in runs),
        refused=sum(not promoted for r in runs for _, _, promoted, _ in r.retrainings),
        fixed_rule_alarms=per_100k,
        gap_closed=_mean([gap(r) for r in runs], "runs"),
        cost_of_oracle=_mean([_last(r).shift_cost / r.oracle.shift_cost for r in runs if r.oracle], "runs"),
        regret=_mean([r.oracle.utility - _last(r).utility for r in runs if r.oracle], "runs"),
        verification_share=_mean([r.verification_share for r in runs], "runs"),
        repair_share=_mean([r.repair_share for r in runs], "runs"),
    )


def _last(run: RunResult) -> Routing:
    """The router at the end; without repairs it is the artefact."""
    return run.days[-1]


def _gap(run: RunResult) -> float | None:
    return shift_gap(run, run.artefact)


def _gap_at_end(run: RunResult) -> float | None:
    return shift_gap(run, run.days[-1])


def _served(runs: Sequence[RunResult], day: int) -> tuple[float, float]:
    quality, cost = np.mean([r.served[day] for r in runs], axis=0)
    return float(quality), float(cost)


def _rate(count: int, requests: int) -> Figure:
    """Per 100,000 requests, with the exact Poisson interval (Garwood 1936), one-sided at 95% where none came."""
    if not requests:
        return Figure(value=None, ci=None, of="no requests")
    scale = 100_000 / requests
    low = float(chi2.ppf(0.025, 2 * count)) / 2 if count else 0.0
    high = float(chi2.ppf(0.975 if count else 0.95, 2 * count + 2)) / 2
    return Figure(value=count * scale, ci=(low * scale, high * scale), of=f"{count} in {requests:,} requests")


def _share(count: int, total: int, of: str) -> Figure:
    """With the exact interval of Clopper and Pearson (1934), one-sided at 95% where nothing was counted."""
    if not total:
        return Figure(value=None, ci=None, of=of)
    low = float(beta.ppf(0.025, count, total - count + 1)) if count else 0.0
    high = float(beta.ppf(0.975 if count else 0.95, count + 1, total - count)) if count < total else 1.0
    return Figure(value=count / total, ci=(low, high), of=f"{count} of {total} {of}")


def _median(runs: Sequence[RunResult]) -> Figure:
    """Of the samples until the alarm; a run without one counts as later than any, and the interval is by bootstrap."""
    if not runs:
        return Figure(value=None, ci=None, of="no runs")
    samples = np.array([np.inf if r.detection is None else r.detection for r in runs])
    draws = np.sort(np.median(_resampled(samples), axis=1))
    value, low, high = (float(v) for v in (np.median(samples), draws[len(draws) // 40], draws[-len(draws) // 40]))
    of = f"{int(np.isfinite(samples).sum())} of {len(runs)} runs alarmed"
    if not np.isfinite(value):
        return Figure(value=None, ci=None, of=of)
    return Figure(
        value=value, ci=(low, high if np.isfinite(high) else float(max(r.shifted_samples for r in runs))), of=of
    )


def _mean(values: Sequence[float | None], of: str) -> Figure:
    known = np.array([v for v in values if v is not None])
    if not len(known):
        return Figure(value=None, ci=None, of=of)
    low, high = np.quantile(_resampled(known).mean(axis=1), [0.025, 0.975])
    return Figure(value=float(known.mean()), ci=(float(low), float(high)), of=f"{len(known)} {of}")


def _resampled(
    values: "np.ndarray[tuple[int], np.dtype[np.float64]]",
) -> "np.ndarray[tuple[int, int], np.dtype[np.float64]]":
    """Bootstrap resamples [b, n] of runs."""
    rows = np.random.default_rng(0).integers(0, len(values), (_RESAMPLES, len(values)))
    return values[rows]
