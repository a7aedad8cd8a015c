"""What recorded runs show of ends: how often each kind of end failed, and whether signs in mid-run foretell failure."""

from collections.abc import Sequence

import msgspec
import numpy as np

from benchmarks.sessions.recorded import RecordedRun, counters_of, end_signs
from classifier.policy.sessions import EndSituation, LastExit, LearnedEnds, trouble_signs, work_end

SEEN_AT = (5, 10, 20, 40)
"""Steps at one of which, drawn at random, a run is looked at while it still goes on. Half of a run would give its
length away, and with it, in some harnesses, the label."""


class EndRow(msgspec.Struct, frozen=True):
    """`labels`: runs seen; `bad`: the share that failed. `gain`: nats by which trouble and last exit beat the step
    alone in log loss, with its `standard_error`; `is_active`: whether the product would use them."""

    labels: int
    bad: float
    gain: float
    standard_error: float
    is_active: bool


class EndRate(msgspec.Struct, frozen=True):
    """`runs` that ended so, and the share of them that `failed` their task."""

    runs: int
    failed: float


def end_rates(runs: Sequence[RecordedRun]) -> dict[str, EndRate]:
    """Return the kinds of ends by the product's own definition."""
    failed: dict[str, list[bool]] = {}
    for run in runs:
        end = work_end(end_signs(run))
        name = end.end if end.end == "none" else f"{end.end}: {end.sign}"
        failed.setdefault(name, []).append((run.reward or 0.0) < 0.5)
    return {name: EndRate(len(ones), float(np.mean(ones))) for name, ones in sorted(failed.items())}


def learn(runs: Sequence[RecordedRun], seed: int) -> dict[str, EndRow]:
    """Return what the runs of each model with more than `SEEN_AT[0]` steps teach; each is predicted before it is
    learned, in a random order."""
    rng = np.random.default_rng(seed)
    models = sorted({run.model for run in runs})
    tiers = {model: number for number, model in enumerate(models, 1)}
    table = LearnedEnds()
    for index in rng.permutation(len(runs)):
        run = runs[index]
        steps = [step for step in SEEN_AT if step < len(run.steps)]
        if not steps or run.reward is None:
            continue
        situation = _situation(run, int(rng.choice(steps)))
        table.observe(tiers[run.model], "", situation, bad=run.reward < 0.5)
    rows = {}
    for model, tier in tiers.items():
        seen = table.evidence(tier, "")
        if seen.labels:
            rows[model] = EndRow(
                int(seen.labels), seen.bad / seen.labels, seen.gain, seen.standard_error, seen.is_active
            )
    return rows


def _situation(run: RecordedRun, step: int) -> EndSituation:
    counters = counters_of(run.steps[:step])
    last = next((code for vector in reversed(run.steps[:step]) if (code := vector[2]) is not None and code != -1), None)
    last_exit: LastExit = "unknown" if last is None else "failed" if last else "passed"
    return EndSituation(step, bool(trouble_signs(counters)), last_exit)
