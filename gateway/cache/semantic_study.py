"""What a semantic cache would do: how often the answer to a prompt near enough to another would answer that one too."""

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from classifier.outcome_model import OutcomeModel
from classifier.routing_input import routing_input_of_text
from quality.estimates import Share, wilson_interval

THRESHOLDS = (0.8, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995)
Vectors = npt.NDArray[np.float32]
# Of the shorter prompt's words to the longer one's.
MIN_LENGTH_RATIO = 0.8
ROWS_AT_ONCE = 512

_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)?")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_NUMBER_WORDS = frozenset(
    [
        "zero",
        "one",
        "two",
        "three",
        "four",
        "five",
        "six",
        "seven",
        "eight",
        "nine",
        "ten",
        "eleven",
        "twelve",
        "dozen",
        "hundred",
        "thousand",
        "million",
        "half",
        "third",
        "quarter",
        "twice",
        "double",
        "triple",
        "first",
        "second",
        "fourth",
        "fifth",
        "last",
        "once",
        "both",
    ]
)
_NEGATIONS = frozenset(
    ["no", "not", "never", "nor", "neither", "without", "none", "cannot", "except", "nobody", "nothing"]
)
_QUESTION_WORDS = frozenset(["what", "who", "whom", "whose", "when", "where", "why", "which", "how"])
# A capital after a lower-case letter or a comma: not the beginning of a sentence.
_NAME = re.compile(r"(?<=[a-z,] )[A-Z][^\W_]*")
_QUOTED = re.compile(r"[\"“]([^\"“”]+)[\"”]")


class PromptPair(msgspec.Struct, frozen=True):
    """Two prompts that are alike."""

    id: str
    a: str
    b: str


class ThresholdRow(msgspec.Struct, frozen=True, kw_only=True):
    """Of all pairs of a kind, those that a cosine of `threshold` or more would answer from each other; `_guarded`:
    where the guards have to pass besides."""

    threshold: float
    same: Share
    same_guarded: Share
    different: Share
    different_guarded: Share
    others: Share
    others_guarded: Share


class GuardRow(msgspec.Struct, frozen=True, kw_only=True):
    """How many pairs `guard` alone would refuse."""

    guard: str
    same: Share
    different: Share


class SemanticStudy(msgspec.Struct, frozen=True, kw_only=True):
    """`same` and `different`: pairs by whether one answer does for both. `others`: prompts of which none stands for
    another, each beside the one that would be found for it."""

    classifier: str
    thresholds: list[ThresholdRow]
    guards: list[GuardRow]


def numbers(text: str) -> list[str]:
    """The numbers of a text in their order, figures and words."""
    return _NUMBER.findall(text) + [word for word in _words(text) if word in _NUMBER_WORDS]


def negations(text: str) -> list[str]:
    """The words that deny something, in their order."""
    return [word for word in _words(text) if word in _NEGATIONS or word.endswith("n't")]


def names(text: str) -> set[str]:
    """Capitalised words inside sentences, and what stands between double quotes."""
    return {*_NAME.findall(text), *(" ".join(_words(quoted)) for quoted in _QUOTED.findall(text))}


def question_words(text: str) -> list[str]:
    """The question words of a text, in their order."""
    return [word for word in _words(text) if word in _QUESTION_WORDS]


def _alike_in(of: Callable[[str], Collection[str]]) -> Callable[[str, str], bool]:
    return lambda a, b: of(a) == of(b)


def similar_length(a: str, b: str) -> bool:
    """Whether neither text says much that the other does not."""
    shorter, longer = sorted((len(_words(a)), len(_words(b))))
    return shorter >= MIN_LENGTH_RATIO * longer


GUARDS: dict[str, Callable[[str, str], bool]] = {
    "numbers": _alike_in(numbers),
    "negations": _alike_in(negations),
    "names and quotations": _alike_in(names),
    "question words": _alike_in(question_words),
    "length": similar_length,
}


def guards_pass(a: str, b: str) -> bool:
    """Whether nothing that the guards look at differs."""
    return all(guard(a, b) for guard in GUARDS.values())


def read_pairs(path: Path) -> list[PromptPair]:
    """JSON lines with `id`, `a` and `b`, without those whose prompts are equal: they need no semantic cache. Raises
    `msgspec.MsgspecError` for other lines."""
    pairs = msgspec.json.Decoder(PromptPair).decode_lines(path.read_bytes())
    return [pair for pair in pairs if pair.a != pair.b]


def semantic_study(
    model: OutcomeModel,
    pairs: Sequence[PromptPair],
    different: Collection[str],
    others: Sequence[str] = (),
    thresholds: Iterable[float] = THRESHOLDS,
) -> SemanticStudy:
    """`different`: ids of pairs of which each prompt wants an answer of its own."""
    same_pairs = [(pair.a, pair.b) for pair in pairs if pair.id not in different]
    other_pairs = [(pair.a, pair.b) for pair in pairs if pair.id in different]
    same, near = _judged(model, same_pairs), _judged(model, other_pairs)
    apart = _nearest(_vectors(model, others), others)
    rows = [
        ThresholdRow(
            threshold=threshold,
            same=_found(same, threshold),
            same_guarded=_found(same, threshold, guarded=True),
            different=_found(near, threshold),
            different_guarded=_found(near, threshold, guarded=True),
            others=_found(apart, threshold),
            others_guarded=_found(apart, threshold, guarded=True),
        )
        for threshold in thresholds
    ]
    guards = [
        GuardRow(guard=name, same=_refused(guard, same_pairs), different=_refused(guard, other_pairs))
        for name, guard in GUARDS.items()
    ]
    return SemanticStudy(classifier=model.version, thresholds=rows, guards=guards)


# Cosine of two prompts, and whether the guards pass.
_Judged = tuple[float, bool]


def _judged(model: OutcomeModel, pairs: Sequence[tuple[str, str]]) -> list[_Judged]:
    return [(float(np.prod(_vectors(model, pair), axis=0).sum()), guards_pass(*pair)) for pair in pairs]


def _nearest(vectors: Vectors, prompts: Sequence[str]) -> list[_Judged]:
    """Each prompt beside the nearest one of all others, whichever came first."""
    found: list[_Judged] = []
    for start in range(0, len(prompts), ROWS_AT_ONCE):
        cosines = vectors[start : start + ROWS_AT_ONCE] @ vectors.T
        rows = np.arange(len(cosines))
        cosines[rows, start + rows] = -1.0
        for row, nearest in enumerate(cosines.argmax(axis=1).tolist()):
            passes = guards_pass(prompts[start + row], prompts[nearest])
            found.append((float(cosines[row, nearest]), passes))
    return found


def _vectors(model: OutcomeModel, prompts: Sequence[str]) -> Vectors:
    """Unit vectors [n, d] of what the classifier sees of the prompts."""
    vectors = [model.encode(routing_input_of_text(prompt)).embedding for prompt in prompts]
    if not vectors:
        return np.empty((0, 0), np.float32)
    found = np.stack(vectors).astype(np.float32)
    unit: Vectors = found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    return unit


def _found(judged: Sequence[_Judged], threshold: float, *, guarded: bool = False) -> Share:
    hits = sum(cosine >= threshold and (passes or not guarded) for cosine, passes in judged)
    return wilson_interval(hits, len(judged))


def _refused(guard: Callable[[str, str], bool], pairs: Sequence[tuple[str, str]]) -> Share:
    return wilson_interval(sum(not guard(a, b) for a, b in pairs), len(pairs))


def _words(text: str) -> list[str]:
    return [word.lower().replace("’", "'") for word in _WORD.findall(text)]
