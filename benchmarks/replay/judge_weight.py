"""What a judge's weight is said to be by planted pairs, and by real pairs in use, where the truth is recorded.

The answers and marks are recorded; the judge is simulated, with stated errors that are rarer the further two marks lie
apart. The estimator, the test on planted pairs and their counts are the product's own.
"""

import random
from collections.abc import Sequence
from typing import Any

import msgspec

from benchmarks.replay.ladder import Ladder
from quality.judges.calibration import InUse, RealPairs, Verdicts
from quality.judges.judge import Judge, JudgeVerdict
from quality.judges.planted_pairs import planted_pairs
from quality.judges.real_pairs import in_use
from quality.judges.self_calibration import calibrate_on_planted

# P of an error by how far the marks (1 to 10) of both answers lie apart, at most; planted errors are as plain as the
# last.
ERRORS = ((1.0, 0.3), (3.0, 0.15), (10.0, 0.03))
# Kinds with a checkable end: pairs of these are the ones that rules decide.
CHECKED = ("maths", "code")


class JudgedPair(msgspec.Struct, frozen=True):
    """A recorded pair: whether the answer is no worse by the marks, and the judge's error on it."""

    kind: str
    no_worse: bool
    error: float


class WeightOfJudge(msgspec.Struct, frozen=True, kw_only=True):
    """Means over draws of the balanced accuracy that planted pairs and real pairs say, against the truth on all
    recorded pairs; `covered`: of the draws, those whose interval by real pairs holds the truth; `trusted`: of the
    draws, those whose test on planted pairs opened the gate, which alone count."""

    truth: float
    planted: float
    in_use: float
    low: float
    high: float
    covered: int
    trusted: int
    draws: int


def judged_pairs(ladder: Ladder) -> list[JudgedPair]:
    """Return the pairs of every weaker tier's answer with the strongest's."""
    found = []
    for prompt in ladder.prompts:
        *weaker, strongest = (answer.mark for answer in prompt.answers)
        for tier, mark in enumerate(weaker, 1):
            error = next(rate for apart, rate in ERRORS if abs(mark - strongest) <= apart)
            found.append(JudgedPair(prompt.kind, prompt.no_worse(tier), error))
    return found


def true_accuracy(pairs: Sequence[JudgedPair]) -> float:
    """Return the judge's balanced accuracy on all pairs."""
    right = [[1 - pair.error for pair in pairs if pair.no_worse is truth] for truth in (True, False)]
    return sum(sum(side) / len(side) for side in right) / 2


class _SimulatedJudge(Judge):
    """Errs on planted pairs as on the plainest recorded ones."""

    name = "pairwise"

    def __init__(self, draws: random.Random) -> None:
        self._draws = draws

    async def judge(
        self, *, prompt: str, answer: str, reference_answer: str, response_format: dict[str, Any] | None = None
    ) -> JudgeVerdict:
        """Decide, without a score."""
        truth = _PLANTED[prompt, answer, reference_answer]
        return JudgeVerdict(no_worse=truth is not (self._draws.random() < ERRORS[-1][1]), reason="simulated")


_PLANTED = {
    (pair.prompt, pair.answer, pair.reference_answer): pair.no_worse
    for pairs in map(planted_pairs, range(200))
    for pair in pairs
}


async def weight_of_judge(
    ladder: Ladder, *, checked: int, reviewed: int, others: int, draws: int, seed: int = 0
) -> WeightOfJudge:
    """Draw a judge's use `draws` times: so many pairs of the `CHECKED` kinds, and of all pairs so many verdicts of
    "worse" that are `reviewed` and so many `others` of which only the verdict is known."""
    pairs = judged_pairs(ladder)
    found = list[InUse]()
    planted = list[float]()
    for number in range(draws):
        random_draws = random.Random(f"{seed}/{number}")
        tested = await calibrate_on_planted(_SimulatedJudge(random_draws))
        if tested.trusted:
            planted.append(tested.balanced_accuracy)
            found.append(in_use(tested, _drawn(pairs, random_draws, checked, reviewed, others)))
    truth, opened = true_accuracy(pairs), max(len(found), 1)
    return WeightOfJudge(
        truth=truth,
        planted=sum(planted) / opened,
        in_use=sum((one.sensitivity + one.specificity) / 2 for one in found) / opened,
        low=sum(one.low for one in found) / opened,
        high=sum(one.high for one in found) / opened,
        covered=sum(one.low <= truth <= one.high for one in found),
        trusted=len(found),
        draws=draws,
    )


def _drawn(pairs: Sequence[JudgedPair], draws: random.Random, checked: int, reviewed: int, others: int) -> RealPairs:
    by_rule, read, said = Verdicts(), Verdicts(), {True: 0, False: 0}
    for pair in draws.choices([pair for pair in pairs if pair.kind in CHECKED], k=checked):
        by_rule = by_rule.with_one(pair.no_worse, pair.no_worse is not (draws.random() < pair.error))
    for pair in draws.choices(pairs, k=reviewed + others):
        verdict = pair.no_worse is not (draws.random() < pair.error)
        if not verdict and read.total < reviewed:
            read = read.with_one(pair.no_worse, verdict)
        else:
            said[verdict] += 1
    return RealPairs(checked=by_rule, reviewed=read, said_no_worse=said[True], said_worse=said[False])
