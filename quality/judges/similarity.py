"""Similarity of two answers: a signal that never makes a label."""

import re
from collections import Counter
from collections.abc import Awaitable, Callable
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quality.judges.judge import Judge, JudgeVerdict
from tiers.final_answer.text import normalised

Embed = Callable[[str], Awaitable[NDArray[np.float32]]]

_WORD = re.compile(r"[^\W\d_]+|\d+(?:[.,:]\d+)*")


class SimilarityJudge(Judge):
    """Cosine of two embeddings, or of word and letter-trigram counts without an encoder; a signal (SPEC QM-03).

    Embeddings hardly represent numbers, so texts with different numbers score 0.
    """

    name = "similarity"

    def __init__(self, embed: Embed | None = None, threshold: float = 0.85) -> None:
        self._embed = embed
        self.threshold = threshold

    async def judge(
        self, *, prompt: str, answer: str, reference_answer: str, response_format: dict[str, Any] | None = None
    ) -> JudgeVerdict:
        """Abstain; `score` is the similarity in [0, 1]."""
        if _numbers(answer) != _numbers(reference_answer):
            return JudgeVerdict(no_worse=None, score=0.0, reason="the answers hold different numbers")
        similarity = await self._similarity(answer, reference_answer)
        relation = "at least" if similarity >= self.threshold else "below"
        return JudgeVerdict(
            no_worse=None,
            score=similarity,
            reason=f"similarity {similarity:.3f} is {relation} {self.threshold}: a signal, no label",
        )

    def may_decide(self, prompt: str, response_format: dict[str, Any] | None) -> bool:
        """Never."""
        return False

    async def _similarity(self, answer: str, reference: str) -> float:
        if self._embed is None:
            return _cosine_of_counts(_terms(answer), _terms(reference))
        a, b = [(await self._embed(text)).astype(np.float64) for text in (answer, reference)]
        norm = float(np.linalg.norm(a) * np.linalg.norm(b))
        return max(0.0, float(a @ b) / norm) if norm > 0 else 0.0


def _numbers(text: str) -> Counter[str]:
    return Counter(word for word in _WORD.findall(normalised(text)) if word[0].isdigit())


def _terms(text: str) -> Counter[str]:
    words = _WORD.findall(normalised(text))
    trigrams = (f"^{word}$"[i : i + 3] for word in words for i in range(len(word)))
    return Counter(words) + Counter(trigrams)


def _cosine_of_counts(a: Counter[str], b: Counter[str]) -> float:
    norm = sqrt(sum(n * n for n in a.values()) * sum(n * n for n in b.values()))
    return sum(n * b[term] for term, n in a.items()) / norm if norm else 0.0
