"""The product's stage of agreement on recorded answers: its plan, its comparison and its counts, prompt by prompt.

A domain of the file stands for a system prompt, its source for the key, its format for the kind of answer.
"""

from collections import defaultdict
from collections.abc import Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from benchmarks.cascade.recorded import Asked, agree, kind_of
from classifier.complexity.classes import adequacies, like_of
from classifier.decision import PolicyInputs, Prediction
from classifier.local.estimator import N0_CONTEXT, N0_TENANT
from classifier.policy.agreement import AgreementSettings, agreed_tier, group_of, plan_agreement
from classifier.policy.agreement_counts import AgreementPlace, AgreementTable
from classifier.policy.decide import decide
from quality.verification.training_rows import without_errors

Float = npt.NDArray[np.float64]
Int = npt.NDArray[np.intp]
SETTINGS = AgreementSettings()


class Served:
    """What was sent for each of n rows. `cost` [n], in prices; `tier` [n], which answered; `asked` and `agreed` [n]:
    whether cheap answers were compared, and equal. `middle` and `higher` [n]: the tiers sent on each outcome; `alone`
    [n]: the tier that would have answered without the stage."""

    def __init__(self, n: int) -> None:
        self.cost = np.zeros(n)
        self.tier, self.middle, self.higher, self.alone = (np.zeros(n, np.intp) for _ in range(4))
        self.asked, self.agreed = (np.zeros(n, np.bool_) for _ in range(2))


class Known:
    """What verified rows say: `table` of comparisons, and P(no worse than the strongest) by source and domain. The
    judge's errors are corrected as the product does."""

    def __init__(self, rows: Sequence[Asked], prices: Sequence[float], judge: "Judge | None" = None) -> None:
        self.table, self.labels = AgreementTable(), len(rows)
        judge, tiers = judge or Judge(0.0, 0), len(prices)
        self._prior = adequacies(like_of(tiers)).mean(axis=0)[:-1].astype(np.float64)
        self._seen: dict[tuple[str, ...], Float] = defaultdict(lambda: np.zeros(tiers))
        group = group_of(prices, range(1, tiers + 1), tiers, SETTINGS)
        for row in rows:
            right = np.array([answer.right for answer in row.answers])
            said = judge.says(right[:-1] >= right[-1])
            weight = judge.informed**2
            for context in ((row.source,), (row.source, row.domain)):
                self._seen[context] += weight * np.append(judge.corrected(said), 1.0)
            if group is None:
                continue
            sent = agreed_tier(group, partial(_equal, row))
            self.table.compared(place_of(row), group.tiers, sent is not None)
            if sent is not None:
                self.table.verified(place_of(row), group.tiers, 1.0 - said[sent - 1], judge.informed)

    def prediction(self, row: Asked) -> Prediction:
        """Return P(no worse) of every tier: the prior's mean over classes, moved by the labels of the source, then of
        the domain."""
        p_ok = self._prior
        for context, n0 in (((row.source,), N0_TENANT), ((row.source, row.domain), N0_CONTEXT)):
            seen = self._seen.get(context)
            if seen is not None:
                p_ok = (n0 * p_ok + seen[:-1]) / (n0 + seen[-1])
        kind = "measured" if self.labels else "prior"
        p_by_tier = [*np.clip(p_ok, 0.0, 1.0).tolist(), 1.0]
        return Prediction(p_ok=p_by_tier, kind=kind, novelty=0.0, classifier_version="recorded")  # type: ignore[arg-type]


class Judge:
    """Errs in a share `error` of the verdicts of either kind."""

    def __init__(self, error: float, seed: int) -> None:
        self.informed, self._error, self._rng = 1.0 - 2.0 * error, error, np.random.default_rng(seed)

    def says(self, no_worse: npt.NDArray[np.bool_]) -> Float:
        """Return its verdicts, 1 or 0, on answers that are `no_worse` [n] or not."""
        wrong = self._rng.random(len(no_worse)) < self._error
        verdicts: Float = (no_worse ^ wrong).astype(np.float64)
        return verdicts

    def corrected(self, verdicts: Float) -> Float:
        """Return `verdicts` [n] without its errors, on average."""
        informed = np.full(len(verdicts), self.informed, np.float32)
        return without_errors(verdicts.astype(np.float32), informed).astype(np.float64)


def place_of(row: Asked) -> AgreementPlace:
    """Return whose answer the row is."""
    return AgreementPlace("", row.source, row.domain, row.kind)


def serve(
    rows: Sequence[Asked], prices: Sequence[float], learned: Known, target: float, order: Int, asked: bool
) -> Served:
    """Answer `rows` in this `order` [n]; `prices` are of the tiers, ascending. `asked`: every request asks for it."""
    served = Served(len(rows))
    costs, table = list(prices), learned.table
    inputs: dict[tuple[str, str], tuple[PolicyInputs, int]] = {}
    for at in order:
        row = rows[at]
        if (row.source, row.domain) not in inputs:
            policy_inputs = PolicyInputs(
                prediction=learned.prediction(row), costs=costs, quality_target=target, tau=target
            )
            inputs[row.source, row.domain] = policy_inputs, decide(policy_inputs).tier
        policy_inputs, chosen = inputs[row.source, row.domain]
        context = place_of(row)
        plan = plan_agreement(policy_inputs, chosen, kind_of(row.kind), partial(table.levels, context), SETTINGS, asked)
        group, served.alone[at] = plan.group, chosen
        if group is None:
            served.tier[at] = served.middle[at] = served.higher[at] = chosen
            served.cost[at] = costs[chosen - 1]
            continue
        sent = agreed_tier(group, partial(_equal, row))
        table.compared(context, group.tiers, sent is not None)
        served.asked[at], served.agreed[at] = True, sent is not None
        served.middle[at], served.higher[at] = group.middle, group.higher
        served.tier[at] = sent or group.higher
        served.cost[at] = sum(costs[k - 1] for k in group.tiers) + (0.0 if sent else costs[group.higher - 1])
    return served


def _equal(row: Asked, left: int, right: int) -> bool:
    return agree(row.answers[left - 1].value, row.answers[right - 1].value, row.kind)
