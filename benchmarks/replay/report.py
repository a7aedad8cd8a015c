"""The replay's figures as plain text: against requests served, and against other routers."""

from collections.abc import Sequence

import numpy as np

from benchmarks.replay.baselines import at_equal_cost, by_length, fixed, mixing, nearest_labels, shuffled
from benchmarks.replay.checks import Check
from benchmarks.replay.deployment import Spent
from benchmarks.replay.figures import Figure, Float, Worth, chosen, gain, oracle, worth
from benchmarks.replay.ladder import Ladder
from benchmarks.replay.timeline import RETRAINED, Life, Look

_WIDTHS = (9, 8, 26, 26, 7, 8, 14)
_COURSE = """Held-out prompts against requests served. Cost: share of always the strongest tier's. Saving: share of the
oracle's. Verification: what it cost so far, as a share of serving. Intervals: 95%, bootstrapped over the prompts.
"""
_BESIDE = """After the last retraining, {} held-out prompts. Utility: share no worse, less 0.3 of the cost. Last column:
by how much the gateway's utility is above the line's, paired.
"""


def report(lives: Sequence[Life], checked: Sequence[Sequence[Check]]) -> str:
    """Of one life per fold: each is held out other prompts, and all of them together make the figures."""
    parts = [_course(lives), _beside(lives), _events(lives), _checked(checked)]
    return "\n\n".join(parts)


def pooled(looks: Sequence[Look]) -> tuple[Ladder, Float]:
    """The held-out prompts of all folds, and how each was routed by the deployment that was never asked it."""
    ladder = looks[0].ladder.of([prompt for look in looks for prompt in look.ladder.prompts])
    return ladder, np.vstack([look.served for look in looks])


def _course(lives: Sequence[Life]) -> str:
    """A line per look; deployments that ended a phase earlier stand with their last look of it."""
    lines = [_COURSE, _row("phase", "requests", "labels", "cost", "no worse", "mark", "saving", "verification")]
    for phase in dict.fromkeys(look.phase for look in lives[0].looks):
        by_life = [[look for look in life.looks if look.phase == phase] for life in lives]
        if not all(by_life):
            continue
        for step in range(max(map(len, by_life))):
            looks = [looks[min(step, len(looks) - 1)] for looks in by_life]
            figures = worth(phase, *pooled(looks))
            lines.append(_line(phase, looks, figures))
    return "\n".join(lines)


def _line(phase: str, looks: Sequence[Look], figures: Worth) -> str:
    spent: list[Spent] = [look.spent for look in looks]
    serving, verifying = (sum(x) for x in zip(*((s.serving_usd, s.verification_usd) for s in spent), strict=True))
    requests, labels = (sum(x) / len(spent) for x in zip(*((s.requests, s.labels) for s in spent), strict=True))
    share = verifying / serving if serving else 0.0
    return _row(
        phase, f"{requests:.0f}", f"{labels:.0f}", figures.cost.percent, figures.quality.percent,
        f"{figures.mark.value:.2f}", f"{figures.saving:.2f}", f"{share:.0%}",
    )  # fmt: skip


def _row(phase: str, *cells: str) -> str:
    return f"{phase:<17}" + "".join(f"{cell:>{width}}" for cell, width in zip(cells, _WIDTHS, strict=True))


def _beside(lives: Sequence[Life]) -> str:
    """After the last retraining, before any tier changed."""
    looks = [look for life in lives if (look := life.last(RETRAINED)) is not None]
    ladder, ours = pooled(looks)
    count = len(ladder.tiers)
    nearest = [nearest_labels(look.ladder, life.experience) for look, life in zip(looks, lives, strict=True)]
    cold, served = pooled([life.looks[0] for life in lives])
    assert len(cold.prompts) == len(ladder.prompts)
    routings: dict[str, Float] = {
        "the gateway": ours,
        "  on its first day": served,
        **{f"always {terms.model}": fixed(ladder, tier) for tier, terms in enumerate(ladder.tiers, start=1)},
        "  that, at equal cost": at_equal_cost(ladder, served, ours),
        "random mixing, equal cost": mixing(ladder, ours),
        "its choices, shuffled": shuffled(ours),
        "by length, same shares": by_length(ladder, ours),
        "kNN on the same labels": chosen(np.concatenate(nearest), count),
        "oracle": oracle(ladder),
    }
    lines = [
        _BESIDE.format(len(ladder.prompts)),
        f"{'':<34}{'cost':>26}{'no worse':>26}{'mark':>7}{'saving':>8}{'utility':>9}{'gateway is better by':>26}",
    ]
    for name, routing in routings.items():
        figures = worth(name, ladder, routing)
        ahead = "" if routing is ours else _signed(gain(ladder, ours, routing))
        lines.append(
            f"{name:<34}{figures.cost.percent:>26}{figures.quality.percent:>26}{figures.mark.value:>7.2f}{figures.saving:>8.2f}"
            f"{figures.utility.value:>9.3f}{ahead:>26}"
        )
    return "\n".join(lines)


def _events(lives: Sequence[Life]) -> str:
    lines = ["What the gateway wrote down"]
    for number, life in enumerate(lives, start=1):
        for run in life.retrainings:
            fate = f"promoted {run.version}" if run.accepted else "not promoted"
            lines.append(f"  {number}: retraining ({run.trigger}), {fate}: {run.reason}")
        lines += [f"  {number}: alarm, {alarm.stream}: {alarm.reason}" for alarm in life.alarms]
        if life.worse_at is not None:
            seen = "never" if life.noticed_at is None else f"after {life.noticed_at - life.worse_at} requests"
            lines.append(f"  {number}: tier {life.worse_tier} got worse after {life.worse_at} requests, noticed {seen}")
    return "\n".join(lines)


def _checked(checked: Sequence[Sequence[Check]]) -> str:
    return "\n".join(
        ["Checks", *(f"  {number}: {check.line}" for number, fold in enumerate(checked, 1) for check in fold)]
    )


def _signed(figure: Figure) -> str:
    return f"{figure.value:+.3f} [{figure.low:+.3f}, {figure.high:+.3f}]"
