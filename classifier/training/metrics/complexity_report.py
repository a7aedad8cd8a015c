"""Evaluate complexity classes: agreement of raters, tiers within the accepted range, and a length-only baseline."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from classifier.complexity.classes import Complexity
from classifier.complexity.prior import adequacy
from classifier.errors import TrainingDataError
from classifier.policy.utility import first_day_choice
from classifier.training.fitting.complexity import FOLDS, LabelledPrompt

Float = npt.NDArray[np.floating]


class ClassScores(msgspec.Struct, frozen=True, kw_only=True):
    """`macro_f1` of the likeliest class against the raters' median. The others concern the tier chosen by the default
    setting: the share `within` the accepted range, SIMPLE prompts at tier 1 and at 1 or 2, EXPERT ones at 3 or 4, and
    the share of prompts `by_tier`."""

    macro_f1: float
    within: float
    simple_at_1: float
    simple_at_1_2: float
    expert_at_3_4: float
    by_tier: list[float]


class ComplexityReport(msgspec.Struct, frozen=True, kw_only=True):
    """`agreement`: share of prompts with several raters who all agree on the class; None without any."""

    rows: int
    agreement: float | None
    model: ClassScores
    length: ClassScores

    def lines(self) -> list[tuple[str, str, str]]:
        """Return table rows: metric, model, length alone."""
        named = {
            "macro-F1": "macro_f1",
            "tier within the range": "within",
            "SIMPLE at tier 1": "simple_at_1",
            "SIMPLE at tier 1 or 2": "simple_at_1_2",
            "EXPERT at tier 3 or 4": "expert_at_3_4",
        }
        found = [(n, f"{getattr(self.model, f):.3f}", f"{getattr(self.length, f):.3f}") for n, f in named.items()]
        mine, by_length = (" / ".join(f"{share:.2f}" for share in one.by_tier) for one in (self.model, self.length))
        agreement = "-" if self.agreement is None else f"{self.agreement:.3f}"
        return [
            *found,
            ("share of tiers 1 to 4", mine, by_length),
            ("rows; agreement of raters", str(self.rows), agreement),
        ]


class _Line(msgspec.Struct):
    prompt: str
    classes: list[int]
    range: tuple[int, int] | None = None


def read_labelled(path: Path) -> list[LabelledPrompt]:
    """Return the rows of a file of JSON lines. Raises `TrainingDataError` naming the line."""
    found = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = msgspec.json.decode(line, type=_Line)
        except msgspec.MsgspecError as error:
            raise TrainingDataError(f"{path}, line {number}: {error}") from error
        if not row.classes or not all(1 <= one <= 4 for one in row.classes):
            raise TrainingDataError(f"{path}, line {number}: classes are {row.classes}; each is 1 to 4.")
        found.append(LabelledPrompt(row.prompt, row.classes, row.range))
    return found


def measured(rows: Sequence[LabelledPrompt], classes: Float) -> ComplexityReport:
    """Return the report for P(class) `classes` [n, 4] of `rows`."""
    rated = [row for row in rows if len(row.classes) > 1]
    agree = [len(set(row.classes)) == 1 for row in rated]
    return ComplexityReport(
        rows=len(rows),
        agreement=float(np.mean(agree)) if agree else None,
        model=_scores(rows, classes),
        length=_scores(rows, _by_length(rows)),
    )


def _scores(rows: Sequence[LabelledPrompt], classes: Float) -> ClassScores:
    truth = np.array([_median(row) for row in rows])
    least, most = np.array([row.range or (min(row.classes), max(row.classes)) for row in rows]).T
    p_ok = np.array([adequacy(one, tuple(Complexity)) for one in classes.tolist()])
    tier = 1 + first_day_choice(p_ok)
    simple, expert = tier[truth == Complexity.SIMPLE], tier[truth == Complexity.EXPERT]
    return ClassScores(
        macro_f1=_macro_f1(truth, 1 + classes.argmax(axis=1)),
        within=float(np.mean((tier >= least) & (tier <= most))),
        simple_at_1=_share(simple == 1),
        simple_at_1_2=_share(simple <= 2),
        expert_at_3_4=_share(expert >= 3),
        by_tier=[float(np.mean(tier == k)) for k in Complexity],
    )


def _median(row: LabelledPrompt) -> int:
    return sorted(row.classes)[len(row.classes) // 2]


def _share(hits: npt.NDArray[np.bool_]) -> float:
    return float(hits.mean()) if len(hits) else float("nan")


def _macro_f1(truth: npt.NDArray[np.integer], found: npt.NDArray[np.integer]) -> float:
    from sklearn.metrics import f1_score

    return float(f1_score(truth, found, labels=list(Complexity), average="macro", zero_division=0))


def _by_length(rows: Sequence[LabelledPrompt]) -> Float:
    """Return out-of-fold P(class) by the logarithm of the length alone."""
    from sklearn.linear_model import LogisticRegression

    x = np.log1p([[len(row.prompt)] for row in rows])
    y, fold = np.array([_median(row) for row in rows]), np.arange(len(rows)) % FOLDS
    found = np.zeros((len(rows), len(Complexity)))
    for k in range(FOLDS):
        known = fold != k
        if not known.any() or len(np.unique(y[known])) < 2:
            found[fold == k] = 1 / len(Complexity)
            continue
        model = LogisticRegression(C=1.0, max_iter=500).fit(x[known], y[known])
        found[np.ix_(fold == k, model.classes_ - 1)] = model.predict_proba(x[fold == k])
    return found
