"""Compare a quantised model with full precision on text, generations and questions; one gate result per use.

Overlap of two texts: ROUGE-L and BLEU, as their papers define them (SPEC QZ-10)."""

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from itertools import islice
from pathlib import Path

import msgspec

from inference_core.errors import InvalidRequestError
from inference_core.io.json_lines import json_lines
from inference_core.loaders.hub_model import resolve_model_path
from inference_core.loaders.model_file import file_fingerprint
from inference_core.loaders.open_checkpoint import open_checkpoint
from inference_core.loading.load_core import use_threads
from inference_core.model_spec import QualityLimits
from inference_core.quantization.calibration import prose, text_digest
from inference_core.quantization.quality_report import (
    FirstTokenMetrics,
    GenerationMetrics,
    MeasuredModel,
    QualityReport,
    QuestionMetrics,
    TextMetrics,
    Use,
    judged,
    read_quantization_record,
)
from inference_core.tokenization.tokenizer import Tokenizer
from quality.evaluation.effort import Effort
from quality.evaluation.model_outputs import Side, compare_on_text, greedy_continuations, same_ids
from quality.statistics import better_p_value
from tiers.final_answer.quantities import final_number

_MAX_ORDER = 4
_ROUGE_WORD = re.compile(r"[a-z0-9]+")
# The tokenisation of the WMT evaluations ("13a", mteval-v13a.pl): punctuation apart, but not inside numbers.
_SPLITS = (
    (re.compile(r"([{-~\[-` -&(-+:-@/])"), r" \1 "),
    (re.compile(r"([^0-9])([.,])"), r"\1 \2 "),
    (re.compile(r"([.,])([^0-9])"), r" \1 \2"),
    (re.compile(r"([0-9])(-)"), r"\1 \2 "),
)


def rouge_l(candidate: str, reference: str) -> float:
    """Return the F-measure of the longest common subsequence of lower-case words (Lin 2004, beta 1), 0 to 1.

    Two texts without words score 1; one against none scores 0.
    """
    a, b = (_ROUGE_WORD.findall(text.lower()) for text in (candidate, reference))
    if not a or not b:
        return float(a == b)
    common = _longest_common_subsequence(a, b)
    return 2 * common / (len(a) + len(b))


def bleu(candidates: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Return BLEU-4 of a corpus (Papineni et al. 2002), 0 to 1: `references[i]` are those of `candidates[i]`.

    Tokenised as in the WMT evaluations, case-sensitive, without smoothing: without a common 4-gram it is 0.
    """
    matched, possible = [0] * _MAX_ORDER, [0] * _MAX_ORDER
    length = expected = 0
    for candidate, texts in zip(candidates, references, strict=True):
        words, others = bleu_words(candidate), [bleu_words(text) for text in texts]
        length += len(words)
        expected += min((abs(len(other) - len(words)), len(other)) for other in others)[1]
        for order in range(1, _MAX_ORDER + 1):
            common, total = clipped_matches(words, others, order)
            matched[order - 1] += common
            possible[order - 1] += total
    if not all(matched):
        return 0.0
    precision = sum(math.log(f / p) for f, p in zip(matched, possible, strict=True)) / _MAX_ORDER
    return math.exp(precision + min(0.0, 1 - expected / length))


def clipped_matches(words: Sequence[str], references: Sequence[Sequence[str]], order: int) -> tuple[int, int]:
    """Return the number of n-grams of length `order` that a reference has too, each clipped to its largest count in one
    reference, and the number of all n-grams."""
    runs = _runs(words, order)
    allowed: Counter[tuple[str, ...]] = Counter()
    for reference in references:
        allowed |= _runs(reference, order)
    return (runs & allowed).total(), runs.total()


def bleu_words(text: str) -> list[str]:
    """Return the words and punctuation marks of a text."""
    spaced = f" {text} "
    for pattern, replacement in _SPLITS:
        spaced = pattern.sub(replacement, spaced)
    return spaced.split()


def _runs(words: Sequence[str], order: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[i : i + order]) for i in range(len(words) - order + 1))


def _longest_common_subsequence(a: Sequence[str], b: Sequence[str]) -> int:
    best = [0] * (len(b) + 1)
    for word in a:
        diagonal = 0
        for j, other in enumerate(b, 1):
            diagonal, best[j] = best[j], diagonal + 1 if word == other else max(best[j], best[j - 1])
    return best[-1]


Progress = Callable[[str, float], None]
PROMPT_TOKENS = 48


class ComparisonError(ValueError):
    """The comparison would not be valid; the message says what would be."""


class Question(msgspec.Struct, frozen=True):
    """A row of a JSON-lines file: a prompt whose correct answer is one number."""

    prompt: str
    answer: str


def compare_models(
    reference: Side,
    candidate: Side,
    cache_dir: Path,
    *,
    limits: Mapping[Use, QualityLimits],
    text: str | None = None,
    questions: Sequence[Question] = (),
    effort: Effort | None = None,
    progress: Progress = lambda stage, share: None,
) -> QualityReport:
    """Measure and compare with `limits`. Without `text` the prose shipped with the package is used.

    Raises ComparisonError for a text that is too short or was used for calibration, and ModelFileError.
    """
    use_threads(None)
    effort = effort or Effort()
    read = prose() if text is None else text
    _refuse_calibration_text(candidate, read)
    ids = same_ids(reference, candidate, read)[: effort.text_tokens]
    longest = min(
        open_checkpoint(resolve_model_path(side.path), cache_dir).config.max_position for side in (reference, candidate)
    )
    window = min(effort.window, longest)
    report = QualityReport(
        reference=_measured(reference, cache_dir),
        candidate=_measured(candidate, cache_dir),
        text=_on_text(reference, candidate, cache_dir, ids, read, window, progress),
        first_tokens=_first_tokens(reference, candidate, cache_dir, effort.first_tokens, progress),
        generations=_generations(reference, candidate, cache_dir, ids, effort, progress),
        questions=_answers(reference, candidate, cache_dir, questions, effort.answer_tokens, progress),
    )
    return judged(report, limits)


def read_questions(path: Path, limit: int | None = None) -> list[Question]:
    """Read the first `limit` rows of a JSON-lines file with `prompt` and `answer`. Raises ComparisonError."""
    lines = json_lines(path, Question, ComparisonError, "; a line is an object with prompt and answer")
    rows = [row for _, row in islice(lines, limit)]
    unclear = next((row for row in rows if final_number(row.answer) is None), None)
    if unclear is not None:
        raise ComparisonError(f"{path}: the answer {unclear.answer!r} is no number; only numbers can be compared")
    return rows


def _refuse_calibration_text(candidate: Side, text: str) -> None:
    """Refuse a text that the model was calibrated on: it says nothing about other text."""
    record = read_quantization_record(resolve_model_path(candidate.path))
    if record is not None and record.calibration is not None and record.calibration.sha256 == text_digest(text):
        raise ComparisonError(
            f"{candidate.path} was calibrated on this very text ({record.calibration.origin}); "
            "give another one with --text, or calibrate on another"
        )


def _measured(side: Side, cache_dir: Path) -> MeasuredModel:
    return MeasuredModel(
        path=side.path,
        fingerprint=file_fingerprint(resolve_model_path(side.path), cache_dir),
        compute=side.variant.compute,
        kv_dtype=side.variant.kv_dtype,
    )


def _on_text(
    reference: Side, candidate: Side, cache_dir: Path, ids: list[int], text: str, window: int, progress: Progress
) -> TextMetrics:
    pieces = [ids[begin : begin + window] for begin in range(0, len(ids), window)]
    windows = [piece for piece in pieces if len(piece) > 1]
    if not windows:
        raise ComparisonError(f"the text has {len(ids)} tokens in windows of {window}; at least 2 are needed")
    measured, cosines = compare_on_text(reference, candidate, cache_dir, windows, lambda share: progress("text", share))
    return TextMetrics(
        tokens=sum(map(len, windows)),
        sha256=text_digest(text),
        reference_perplexity=measured.perplexity / measured.perplexity_ratio,
        perplexity=measured.perplexity,
        perplexity_rise=measured.perplexity_ratio - 1,
        mean_kl=measured.mean_kl,
        top1=measured.top1,
        logit_cosine=measured.cosine,
        hidden_cosine=float(cosines.mean()),
        lowest_hidden_cosine=float(cosines.min()),
    )


def short_questions() -> list[str]:
    """Everyday questions of a few words, one line each, written for this project."""
    return files("quality.evaluation").joinpath("short_questions.txt").read_text("utf-8").splitlines()


def _first_tokens(
    reference: Side, candidate: Side, cache_dir: Path, count: int, progress: Progress
) -> FirstTokenMetrics | None:
    tokenizer = reference.tokenizer()
    prompts = [_prompt(tokenizer, question) for question in short_questions()[:count]]
    if not prompts:
        return None
    expected, said = _both(reference, candidate, cache_dir, prompts, 1, "first tokens", progress)
    same = sum(a == b for a, b in zip(expected, said, strict=True))
    return FirstTokenMetrics(short_questions=len(prompts), same_first_token=same)


def _generations(
    reference: Side, candidate: Side, cache_dir: Path, ids: list[int], effort: Effort, progress: Progress
) -> GenerationMetrics | None:
    """Return continuations of pieces of the text, spaced evenly over it."""
    starts = range(0, len(ids) - PROMPT_TOKENS + 1, max(PROMPT_TOKENS, len(ids) // max(effort.generations, 1)))
    prompts = [ids[begin : begin + PROMPT_TOKENS] for begin in starts][: effort.generations]
    if not prompts:
        return None
    expected, said = _both(reference, candidate, cache_dir, prompts, effort.generation_tokens, "generations", progress)
    tokenizer = reference.tokenizer()
    texts, others = ([tokenizer.decode(tokens) for tokens in answers] for answers in (said, expected))
    return GenerationMetrics(
        prompts=len(prompts),
        max_tokens=effort.generation_tokens,
        rouge_l=sum(map(rouge_l, texts, others)) / len(prompts),
        bleu=bleu(texts, [[other] for other in others]),
        same=sum(a == b for a, b in zip(said, expected, strict=True)) / len(prompts),
        first_difference=sum(map(_agreeing, said, expected)) / len(prompts),
    )


def _answers(
    reference: Side,
    candidate: Side,
    cache_dir: Path,
    questions: Sequence[Question],
    max_tokens: int,
    progress: Progress,
) -> QuestionMetrics | None:
    if not questions:
        return None
    tokenizer = reference.tokenizer()
    prompts = [_prompt(tokenizer, question.prompt) for question in questions]
    answered = _both(reference, candidate, cache_dir, prompts, max_tokens, "questions", progress)
    expected, right = (
        [final_number(tokenizer.decode(tokens)) == final_number(question.answer)
         for tokens, question in zip(answers, questions, strict=True)]
        for answers in answered
    )  # fmt: skip
    lost = sum(a and not b for a, b in zip(expected, right, strict=True))
    won = sum(b and not a for a, b in zip(expected, right, strict=True))
    return QuestionMetrics(
        questions=len(questions),
        max_tokens=max_tokens,
        reference_right=sum(expected),
        right=sum(right),
        only_reference_right=lost,
        only_candidate_right=won,
        loss=(lost - won) / len(questions),
        p_value=better_p_value(lost, won),
    )


def _both(
    reference: Side,
    candidate: Side,
    cache_dir: Path,
    prompts: list[list[int]],
    max_tokens: int,
    stage: str,
    progress: Progress,
) -> tuple[list[list[int]], list[list[int]]]:
    """Return the output of the reference and of the candidate."""
    first = greedy_continuations(
        reference, cache_dir, prompts, max_tokens, lambda share: progress(f"{stage} of the reference", share)
    )
    second = greedy_continuations(
        candidate, cache_dir, prompts, max_tokens, lambda share: progress(f"{stage} of the candidate", share)
    )
    return first, second


def _prompt(tokenizer: Tokenizer, question: str) -> list[int]:
    """Format as a chat if the model has a chat template."""
    try:
        return tokenizer.encode_chat([{"role": "user", "content": question}])
    except InvalidRequestError:
        return tokenizer.encode(f"Question: {question}\nAnswer:", add_special_tokens=True)


def _agreeing(a: list[int], b: list[int]) -> int:
    """Count the leading tokens that two texts share."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
