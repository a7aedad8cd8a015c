"""What `aio quality compare` found out about a quantised model, and whether that is good enough for a use. No torch.

Reasoning loses first: one wrong step spoils all after it, where a chat hardly shows it. So its bounds are the
strictest, and without a score of final answers nothing is said for it (SPEC QZ-09 to QZ-11).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from inference_core.errors import ModelFileError
from inference_core.io.atomic_file import atomic_file
from inference_core.model_spec import QualityLimits

Use = Literal["chat", "extraction", "reasoning"]


class MeasuredModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model and how it was computed; `fingerprint` is the content hash of its files."""

    path: str
    fingerprint: str
    compute: str
    kv_dtype: str


class TextMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Over all positions of a text that both models read.

    `perplexity_rise` is the candidate's perplexity over the reference's, less one. `mean_kl`: divergence of its
    next-token law from the reference's, in nats. `top1`: share of positions with the same most likely token.
    `logit_cosine` and `hidden_cosine`: mean normalised dot products of the logits and of the hidden states behind the
    last norm; `lowest_hidden_cosine` is that of the worst position.
    """

    tokens: int
    sha256: str
    reference_perplexity: float
    perplexity: float
    perplexity_rise: float
    mean_kl: float
    top1: float
    logit_cosine: float
    hidden_cosine: float
    lowest_hidden_cosine: float


class FirstTokenMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """The most likely first token of an answer to short everyday questions, asked as chats.

    Both models find the same one for `same_first_token` of `short_questions`. Over a text most positions are easy; here
    many are nearly ties, and the whole answer follows from them.
    """

    short_questions: int
    same_first_token: int


class GenerationMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Greedy continuations of the same prompts, the candidate's against the reference's.

    `rouge_l` is the mean F-measure, `bleu` of the whole corpus, both 0 to 1. `same` is the share that agrees in every
    token, `first_difference` the mean number of tokens before they part.
    """

    prompts: int
    max_tokens: int
    rouge_l: float
    bleu: float
    same: float
    first_difference: float


class QuestionMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Greedy answers to questions with one right number.

    `loss` is the fall of the share of right answers. `p_value`: how likely so many answers are lost by chance, if the
    candidate is no worse (exact one-sided McNemar test).
    """

    questions: int
    max_tokens: int
    reference_right: int
    right: int
    only_reference_right: int
    only_candidate_right: int
    loss: float
    p_value: float


# Seed 002: FP8 costs 0.8 to 1.4 points of reasoning where chats lose nothing that a user notices.
DEFAULT_LIMITS: Mapping[Use, QualityLimits] = {
    "chat": QualityLimits(max_perplexity_rise=0.03, max_mean_kl=0.05),
    "extraction": QualityLimits(max_perplexity_rise=0.02, max_mean_kl=0.03, min_top1=0.9),
    "reasoning": QualityLimits(
        max_perplexity_rise=0.01, max_mean_kl=0.02, min_top1=0.93, max_exact_match_loss=0.008
    ),
}  # fmt: skip


class GateResult(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the candidate may stand in for the reference in one use; `reasons` say what speaks against it."""

    use: Use
    passes: bool
    reasons: list[str]


class QualityReport(msgspec.Struct, frozen=True, kw_only=True):
    """One comparison. It belongs to the exact weights that it names, computed as it says."""

    reference: MeasuredModel
    candidate: MeasuredModel
    text: TextMetrics
    first_tokens: FirstTokenMetrics | None = None
    generations: GenerationMetrics | None = None
    questions: QuestionMetrics | None = None
    limits: dict[Use, QualityLimits] = {}
    verdicts: list[GateResult] = []


def shortfalls(report: QualityReport, limits: QualityLimits) -> list[str]:
    """What of `limits` the report does not keep, a sentence each."""
    text, generations = report.text, report.generations
    rouge, bleu = (generations.rouge_l, generations.bleu) if generations is not None else (None, None)
    above = (("max_perplexity_rise", text.perplexity_rise), ("max_mean_kl", text.mean_kl))
    below = (
        ("min_hidden_cosine", text.hidden_cosine),
        ("min_top1", text.top1),
        ("min_rouge_l", rouge),
        ("min_bleu", bleu),
    )
    found: list[str] = []
    for name, value in above:
        bound = getattr(limits, name)
        # A figure that is not a number keeps no bound.
        if bound is not None and not value <= bound:
            found.append(f"{name.removeprefix('max_')} is {value:.4f}, at most {bound:g} is allowed")
    for name, figure in below:
        bound = getattr(limits, name)
        if bound is not None and (figure is None or not figure >= bound):
            measured = "was not measured" if figure is None else f"is {figure:.4f}"
            found.append(f"{name.removeprefix('min_')} {measured}, at least {bound:g} is needed")
    return found + _lost_answers(report.questions, limits)


def _lost_answers(questions: QuestionMetrics | None, limits: QualityLimits) -> list[str]:
    bound = limits.max_exact_match_loss
    if bound is None:
        return []
    if questions is None:
        return ["no questions were asked, so nothing is known of final answers"]
    if questions.reference_right < limits.min_reference_right:
        return [
            f"the reference itself has {questions.reference_right} of {questions.questions} answers right; "
            f"{limits.min_reference_right} are needed to see a loss"
        ]
    if not questions.loss <= bound:
        return [
            f"exact match falls by {questions.loss:.4f} ({questions.reference_right} to {questions.right} of "
            f"{questions.questions} right, p = {questions.p_value:.2g}), at most {bound:g} is allowed"
        ]
    return []


def judged(report: QualityReport, limits: Mapping[Use, QualityLimits]) -> QualityReport:
    """The report with a verdict for every use of `limits`."""
    found = {use: shortfalls(report, bounds) for use, bounds in limits.items()}
    verdicts = [GateResult(use=use, passes=not reasons, reasons=reasons) for use, reasons in found.items()]
    return msgspec.structs.replace(report, limits=dict(limits), verdicts=verdicts)


def write_report(report: QualityReport, path: Path) -> None:
    """As JSON, whole or not at all. Raises OSError."""
    with atomic_file(path) as file:
        file.write(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")


def read_report(path: Path) -> QualityReport:
    """Raises ModelFileError for a file that is missing or no report."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=QualityReport)
    except OSError as error:
        raise ModelFileError(f"quality report {path} cannot be read: {error.strerror or error}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ModelFileError(f"{path} is no quality report of `aio quality compare`: {error}") from error
