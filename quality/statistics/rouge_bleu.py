"""Overlap of two texts: ROUGE-L and BLEU, as their papers define them (SPEC QZ-10)."""

import math
import re
from collections import Counter
from collections.abc import Sequence

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
    found, possible = [0] * _MAX_ORDER, [0] * _MAX_ORDER
    length = expected = 0
    for candidate, texts in zip(candidates, references, strict=True):
        words, others = bleu_words(candidate), [bleu_words(text) for text in texts]
        length += len(words)
        expected += min((abs(len(other) - len(words)), len(other)) for other in others)[1]
        for order in range(1, _MAX_ORDER + 1):
            common, total = clipped_matches(words, others, order)
            found[order - 1] += common
            possible[order - 1] += total
    if not all(found):
        return 0.0
    precision = sum(math.log(f / p) for f, p in zip(found, possible, strict=True)) / _MAX_ORDER
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
