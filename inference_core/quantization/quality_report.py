"""How a quantised model was made, and its report of `aio quality compare`. No torch.

The report has a verdict per use. Reasoning degrades first: one wrong step invalidates all later ones, while a chat
hardly shows it. Its limits are therefore the strictest, and it never passes without a score of final answers (SPEC
QZ-09 to QZ-11).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from inference_core.errors import ModelFileError
from inference_core.io.files import JSON_ERRORS, atomic_file, prepare_types
from inference_core.loaders.model_file import MAX_SETTINGS, read_model_file
from inference_core.model_spec import QualityGate, QualityLimits

Use = Literal["chat", "extraction", "reasoning"]


class MeasuredModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model and how it was computed."""

    path: str
    fingerprint: str
    """Content hash of its files."""
    compute: str
    kv_dtype: str


class TextMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Averages over all positions of a text that both models read."""

    tokens: int
    sha256: str
    reference_perplexity: float
    perplexity: float
    perplexity_rise: float
    """The candidate's perplexity over the reference's, minus one."""
    mean_kl: float
    """Divergence of its next-token distribution from the reference's, in nats."""
    top1: float
    """Share of positions with the same most likely token."""
    logit_cosine: float
    """Mean cosine similarity of the logits."""
    hidden_cosine: float
    """Mean cosine similarity of the hidden states after the last norm."""
    lowest_hidden_cosine: float
    """Cosine similarity of the hidden states at the worst position."""


class FirstTokenMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """The most likely first token of answers to short everyday questions, asked as chats.

    Both models agree on `same_first_token` of `short_questions`. In a text most positions are easy; here many are
    nearly ties, and the whole answer depends on them.
    """

    short_questions: int
    same_first_token: int


class GenerationMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Greedy continuations of the same prompts, the candidate's against the reference's."""

    prompts: int
    max_tokens: int
    rouge_l: float
    """Mean F-measure, 0 to 1."""
    bleu: float
    """Of the whole corpus, 0 to 1."""
    same: float
    """Share of continuations that agree in every token."""
    first_difference: float
    """Mean number of tokens before the first difference."""


class QuestionMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Greedy answers to questions with one right number."""

    questions: int
    max_tokens: int
    reference_right: int
    right: int
    only_reference_right: int
    only_candidate_right: int
    loss: float
    """Decrease of the share of right answers."""
    p_value: float
    """Probability of losing this many answers by chance if the candidate is no worse (exact one-sided McNemar test)."""


# Seed 002: FP8 costs 0.8 to 1.4 points of reasoning where chats lose nothing that a user notices.
DEFAULT_LIMITS: Mapping[Use, QualityLimits] = {
    "chat": QualityLimits(max_perplexity_rise=0.03, max_mean_kl=0.05),
    "extraction": QualityLimits(max_perplexity_rise=0.02, max_mean_kl=0.03, min_top1=0.9),
    "reasoning": QualityLimits(
        max_perplexity_rise=0.01, max_mean_kl=0.02, min_top1=0.93, max_exact_match_loss=0.008
    ),
}  # fmt: skip


class GateResult(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the candidate may replace the reference in one use."""

    use: Use
    passes: bool
    reasons: list[str]
    """Why not."""


class QualityReport(msgspec.Struct, frozen=True, kw_only=True):
    """One comparison, valid only for the exact weights and computation that it names."""

    reference: MeasuredModel
    candidate: MeasuredModel
    text: TextMetrics
    first_tokens: FirstTokenMetrics | None = None
    generations: GenerationMetrics | None = None
    questions: QuestionMetrics | None = None
    limits: dict[Use, QualityLimits] = {}
    verdicts: list[GateResult] = []


def limits_of(gate: QualityGate, use: Use) -> QualityLimits:
    """Return the bounds of `use`, changed by those that `gate` sets."""
    usual, own = msgspec.structs.asdict(DEFAULT_LIMITS[use]), msgspec.structs.asdict(gate)
    return QualityLimits(**{name: value if own[name] is None else own[name] for name, value in usual.items()})


def usual_report(model: Path, compute: str) -> Path:
    """Return where the report of a model computed with `compute` is looked for: next to the model's file or folder."""
    return model.with_name(f"{model.name}.{compute}.quality.json")


def shortfalls(report: QualityReport, limits: QualityLimits) -> list[str]:
    """The `limits` that the report exceeds, one sentence each."""
    text, generations = report.text, report.generations
    rouge, bleu = (generations.rouge_l, generations.bleu) if generations is not None else (None, None)
    above = (("max_perplexity_rise", text.perplexity_rise), ("max_mean_kl", text.mean_kl))
    below = (
        ("min_hidden_cosine", text.hidden_cosine),
        ("min_top1", text.top1),
        ("min_rouge_l", rouge),
        ("min_bleu", bleu),
    )
    reasons: list[str] = []
    for name, value in above:
        bound = getattr(limits, name)
        # NaN exceeds every limit.
        if bound is not None and not value <= bound:
            reasons.append(f"{name.removeprefix('max_')} is {value:.4f}, at most {bound:g} is allowed")
    for name, figure in below:
        bound = getattr(limits, name)
        if bound is not None and (figure is None or not figure >= bound):
            measured = "was not measured" if figure is None else f"is {figure:.4f}"
            reasons.append(f"{name.removeprefix('min_')} {measured}, at least {bound:g} is needed")
    return reasons + _lost_answers(report.questions, limits)


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
    """Return the report with a verdict for every use of `limits`."""
    reasons_by_use = {use: shortfalls(report, bounds) for use, bounds in limits.items()}
    verdicts = [GateResult(use=use, passes=not reasons, reasons=reasons) for use, reasons in reasons_by_use.items()]
    return msgspec.structs.replace(report, limits=dict(limits), verdicts=verdicts)


def write_report(report: QualityReport, path: Path) -> None:
    """Write the report as JSON, atomically. Raises OSError."""
    with atomic_file(path) as file:
        file.write(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")


def read_report(path: Path) -> QualityReport:
    """Read a report. Raises ModelFileError for a file that is missing or not a report."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=QualityReport)
    except OSError as error:
        raise ModelFileError(f"quality report {path} cannot be read: {error.strerror or error}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ModelFileError(f"{path} is not a quality report of `aio quality compare`: {error}") from error


RECORD = "quantization.json"


class CalibrationRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The calibration text's name and SHA-256, how much of it was read, and whether as chats (`as_chats`)."""

    origin: str
    sha256: str
    windows: int
    tokens: int
    chats: bool = False


class QuantizationRecord(msgspec.Struct, frozen=True, kw_only=True):
    """How a model was quantised."""

    method: str
    settings: dict[str, Any]
    dtype: str
    source: str
    """Content hash of the unquantised model (`file_fingerprint`)."""
    calibration: CalibrationRecord | None = None


prepare_types(QualityReport, QuantizationRecord)


def read_quantization_record(model: Path) -> QuantizationRecord | None:
    """The record of a folder made by `aio quantize`; None for any other model. Raises ModelFileError."""
    file = model / RECORD
    if not file.is_file():
        return None
    try:
        return msgspec.json.decode(read_model_file(file, MAX_SETTINGS), type=QuantizationRecord)
    except JSON_ERRORS as error:
        raise ModelFileError(f"{file} is not a record of a quantisation: {error}") from error
