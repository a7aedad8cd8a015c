"""Evaluate complexity classes: agreement of raters, tiers within the accepted range, and a length-only baseline.

Of conversations: is the tier for the last turn an accepted one, where that turn is read in context, alone, or by its
length?
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from classifier.complexity.classes import Complexity, adequacy
from classifier.complexity.model import ComplexityModel
from classifier.errors import TrainingDataError
from classifier.features.routing_input import routing_input, routing_input_of_text
from classifier.model.outcome_model import OutcomeModel
from classifier.policy.utility import first_day_choice
from classifier.training.fitting.complexity import FOLDS, LabelledPrompt, predicted
from inference_core.io.json_lines import json_lines

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
    """How well complexity classes are predicted."""

    rows: int
    agreement: float | None
    """Share of prompts with several raters who all agree on the class; None without any."""
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
        rows = [(n, f"{getattr(self.model, f):.3f}", f"{getattr(self.length, f):.3f}") for n, f in named.items()]
        mine, by_length = (
            " / ".join(f"{share:.2f}" for share in measure.by_tier) for measure in (self.model, self.length)
        )
        agreement = "-" if self.agreement is None else f"{self.agreement:.3f}"
        return [
            *rows,
            ("share of tiers 1 to 4", mine, by_length),
            ("rows; agreement of raters", str(self.rows), agreement),
        ]


def read_labelled(path: Path) -> list[LabelledPrompt]:
    """Return the rows of a file of JSON lines. Raises `TrainingDataError` naming the line."""
    rows = []
    for where, row in json_lines(path, LabelledPrompt, TrainingDataError):
        if not row.classes or not all(1 <= rating <= 4 for rating in row.classes):
            raise TrainingDataError(f"{where}: classes are {row.classes}; each is 1 to 4.")
        rows.append(row)
    return rows


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
    tier = first_day_tiers(classes)
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


def _macro_f1(truth: npt.NDArray[np.integer], estimated: npt.NDArray[np.integer]) -> float:
    from sklearn.metrics import f1_score

    return float(f1_score(truth, estimated, labels=list(Complexity), average="macro", zero_division=0))


def _by_length(rows: Sequence[LabelledPrompt]) -> Float:
    """Return out-of-fold P(class) by the logarithm of the length alone."""
    from sklearn.linear_model import LogisticRegression

    x = np.log1p([[len(row.prompt)] for row in rows])
    y, fold = np.array([_median(row) for row in rows]), np.arange(len(rows)) % FOLDS
    p_class = np.zeros((len(rows), len(Complexity)))
    for k in range(FOLDS):
        others = fold != k
        if not others.any() or len(np.unique(y[others])) < 2:
            p_class[fold == k] = 1 / len(Complexity)
            continue
        model = LogisticRegression(C=1.0, max_iter=500).fit(x[others], y[others])
        p_class[np.ix_(fold == k, model.classes_ - 1)] = model.predict_proba(x[fold == k])
    return p_class


Tiers = npt.NDArray[np.integer]
Tier = Annotated[int, Meta(ge=1, le=4)]


class Turn(msgspec.Struct, frozen=True):
    """One message."""

    role: str
    content: str


class RatedConversation(msgspec.Struct, frozen=True):
    """A conversation that ends with a turn of the user, and the tiers that raters accept for its answer."""

    turns: Annotated[list[Turn], Meta(min_length=1)]
    lo: Tier
    hi: Tier


class RangeScores(msgspec.Struct, frozen=True, kw_only=True):
    """Shares of conversations whose tier, at the default setting, is `within` the accepted range, `below` it and
    `above` it, and of those at each of the four tiers."""

    within: float
    below: float
    above: float
    by_tier: list[float]


class ConversationReport(msgspec.Struct, frozen=True, kw_only=True):
    """Ways to choose the tier of a conversation."""

    rows: int
    context: RangeScores
    """By what routing does."""
    alone: RangeScores
    """By the last turn without the ones before it."""
    length: RangeScores
    """By lengths of that turn that part the tiers, chosen on other rows."""
    constant: RangeScores
    """Always the best single tier, known in hindsight."""

    def lines(self) -> list[list[str]]:
        """Return table rows: measure, in context, last turn alone, length, constant."""
        every = (self.context, self.alone, self.length, self.constant)
        rows = [
            [named, *(f"{getattr(measure, field):.3f}" for measure in every)]
            for named, field in (("within the range", "within"), ("below it", "below"), ("above it", "above"))
        ]
        shares = [" / ".join(f"{share:.2f}" for share in measure.by_tier) for measure in every]
        return [*rows, ["share of tiers 1 to 4", *shares], ["rows", str(self.rows), "", "", ""]]


def holds_conversations(path: Path) -> bool:
    """Return whether the first line of a file of JSON lines is a conversation, not a prompt."""
    with path.open("rb") as file:
        first = next((line for line in file if line.strip()), b"")
    try:
        return "turns" in msgspec.json.decode(first, type=dict[str, msgspec.Raw])
    except msgspec.MsgspecError:
        return False


def read_conversations(path: Path) -> list[RatedConversation]:
    """Return the rows of a file of JSON lines. Raises `TrainingDataError` naming the line."""
    rows = []
    for where, row in json_lines(path, RatedConversation, TrainingDataError):
        if row.turns[-1].role != "user" or row.lo > row.hi:
            problem = "the last turn is the user's" if row.lo <= row.hi else "lo is at most hi"
            raise TrainingDataError(f"{where}: it must hold that {problem}.")
        rows.append(row)
    return rows


def measured_conversations(
    rows: Sequence[RatedConversation], model: ComplexityModel, outcome_model: OutcomeModel
) -> ConversationReport:
    """Return the report of `rows` by the classes of `model`, with the encoder of `outcome_model`."""
    whole = [routing_input([msgspec.to_builtins(turn) for turn in row.turns]) for row in rows]
    last = [routing_input_of_text(row.turns[-1].content) for row in rows]
    constant = max(Complexity, key=lambda tier: sum(row.lo <= tier <= row.hi for row in rows))
    return ConversationReport(
        rows=len(rows),
        context=_turn_scores(rows, first_day_tiers(predicted(model, whole, outcome_model))),
        alone=_turn_scores(rows, first_day_tiers(predicted(model, last, outcome_model))),
        length=_turn_scores(rows, _turns_by_length(rows)),
        constant=_turn_scores(rows, np.full(len(rows), int(constant))),
    )


def first_day_tiers(classes: npt.NDArray[np.floating]) -> Tiers:
    """Return the tier [n] of the default setting for P(class) [n, 4]."""
    p_ok = np.array([adequacy(p_class, tuple(Complexity)) for p_class in classes.tolist()])
    tiers: Tiers = 1 + first_day_choice(p_ok)
    return tiers


def _turn_scores(rows: Sequence[RatedConversation], tier: Tiers) -> RangeScores:
    least, most = np.array([(row.lo, row.hi) for row in rows]).T
    return RangeScores(
        within=float(np.mean((tier >= least) & (tier <= most))),
        below=float(np.mean(tier < least)),
        above=float(np.mean(tier > most)),
        by_tier=[float(np.mean(tier == k)) for k in Complexity],
    )


def _turns_by_length(rows: Sequence[RatedConversation]) -> Tiers:
    """Return tiers by the length of the last turn alone: of each fold by the three lengths that part the others best,
    one after the other."""
    length = np.array([len(row.turns[-1].content) for row in rows])
    least, most = np.array([(row.lo, row.hi) for row in rows]).T
    fold, tiers = np.arange(len(rows)) % FOLDS, np.ones(len(rows), np.int64)
    for k in range(FOLDS):
        others = fold != k
        cuts: list[int] = []
        for _ in range(len(Complexity) - 1):
            candidates = sorted({0, *length[others].tolist(), 1 + int(length.max())})
            within = [
                np.mean((least[others] <= (tier := _parted(length[others], [*cuts, cut]))) & (tier <= most[others]))
                for cut in candidates
            ]
            cuts.append(candidates[int(np.argmax(within))])
        tiers[fold == k] = _parted(length[fold == k], cuts)
    return tiers


def _parted(length: npt.NDArray[np.integer], cuts: Sequence[int]) -> Tiers:
    tiers: Tiers = 1 + np.sum(length[:, None] >= np.array(cuts)[None, :], axis=1)
    return tiers
