"""The quality estimates as rows of one table, for spreadsheets."""

from collections.abc import Iterator

import msgspec

from quality.estimates.kinds import ALL
from quality.estimates.upgrade_rate import Share
from quality.learning.kind_names import plain_name
from quality.monitor.status import MonitorStatus


class EstimateRow(msgspec.Struct, frozen=True, kw_only=True):
    """An estimate, for a tier, a kind of prompts or another subject `of`, None for all of them.

    `count`: number of answers or prompts; [`low`, `high`] with 95%; `flagged`: an alarm, or drift.
    """

    estimate: str
    tier: int | None = None
    kind: str | None = None
    of: str | None = None
    count: int | None = None
    value: float | None = None
    low: float | None = None
    high: float | None = None
    flagged: bool | None = None
    reason: str | None = None


def estimate_rows(status: MonitorStatus) -> Iterator[EstimateRow]:
    """Return everything in `status`, one figure per row."""
    for tier, share in status.acceptance.items():
        yield _share("no worse, of the sample", share, tier=tier)
    for kind in status.acceptance_by_kind:
        yield EstimateRow(
            estimate="no worse, of all traffic",
            tier=kind.tier,
            kind=None if kind.kind == ALL else plain_name(kind.kind) + (f" {kind.kind.app}" if kind.kind.app else ""),
            count=kind.answers,
            value=kind.value,
            low=kind.low,
            high=kind.high,
        )
    for rate in status.upgrade_rates:
        needs = _share("needs an upgrade", rate.needs_upgrade, tier=rate.tier)
        yield msgspec.structs.replace(needs, flagged=rate.alarm, reason=rate.reason)
    for stream, evidence in status.evidence_of_shift.items():
        yield EstimateRow(estimate="evidence of shift (e-value)", of=stream, value=evidence)
    for drift in status.input_drift:
        yield EstimateRow(
            estimate="drift of prompts",
            of=drift.of,
            count=drift.prompts,
            value=drift.value,
            low=drift.low,
            high=drift.high,
            flagged=drift.drifted,
        )
    for one in status.calibration_drift:
        yield EstimateRow(
            estimate="verified less predicted",
            tier=one.tier,
            count=one.answers,
            value=one.verified - one.predicted,
            low=one.low,
            high=one.high,
            flagged=one.drifted,
        )
    for judge in status.calibrations:
        for name in ("sensitivity", "specificity"):
            yield EstimateRow(estimate=f"{name} on {judge.pairs} pairs", of=judge.judge, value=getattr(judge, name))
    for name in ("offered", "sampled", "dropped", "no_judge", "held"):
        yield EstimateRow(estimate="answers since start", of=name, count=getattr(status, name))
    for reason, count in sorted(status.not_sampled.items()):
        yield EstimateRow(estimate="answers not sampled since start", of=reason, count=count)
    for name in ("confirmed", "uncertain"):
        yield EstimateRow(estimate="second opinions since start", of=name, count=getattr(status.second_opinions, name))
    yield EstimateRow(estimate="second opinions since start", of="cost_usd", value=status.second_opinions.cost_usd)
    for name in status.queue.__struct_fields__:
        yield EstimateRow(estimate="verifications", of=name, count=getattr(status.queue, name))
    for name in ("serving_usd", "committed_usd", "probe_usd"):
        yield EstimateRow(estimate="spending", of=name, value=getattr(status.spending, name))
    yield EstimateRow(estimate="spending", of="budget_usd", value=status.budget_usd)


def _share(estimate: str, share: Share, tier: int | None) -> EstimateRow:
    return EstimateRow(
        estimate=estimate, tier=tier, count=share.total, value=share.value, low=share.low, high=share.high
    )
