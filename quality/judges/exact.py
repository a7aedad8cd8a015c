"""The judge for verifiable answers: letters, numbers, formulas, literals, labels, and texts requested verbatim."""

import re
from typing import Any

from quality.judges.judge import Judge, JudgeVerdict
from tiers.final_answer.agreement import agree
from tiers.final_answer.expected import expected_kind
from tiers.final_answer.extract import final_answer
from tiers.final_answer.text import mentions, normalised

_DIGITS = re.compile(r"\d+(?:[.,:]\d+)*")
_TO_THE_LETTER = re.compile(
    r"\b(?:answer|reply|respond|write|output|say|return|give)\b[^.?!\n]{0,60}\b(?:only|just|nothing else|exactly)\b"
    r"|\b(?:only|just|exactly)\b[^.?!\n]{0,30}\b(?:answer|reply|respond|write|output|say|return|repeat|copy)\b"
    r"|\b(?:repeat|copy|spell)\b[^.?!\n]{0,40}\b(?:exactly|word for word|verbatim|letters?)\b"
    r"|\bone word\b|\bsingle word\b|\byes or no\b|\btrue or false\b",
    re.IGNORECASE,
)
_TELLING = ("only", "just", "nothing else", "exactly", "repeat", "copy", "spell", "word", "yes or no", "true or false")
_CLOSED_WORDS = 40
_DECIDED = ("choice", "number", "latex", "literal", "label")  # an entity has too many names for a verdict
_UNCLEAR = {
    "choice": "an answer does not choose one of the options clearly",
    "number": "an answer gives no clear final number",
}


class ExactJudge(Judge):
    """Decides if the prompt has one correct answer and both texts state one clearly; otherwise it abstains.

    Whether it applies depends on the prompt and on both texts having an answer, not on their agreement: a judge that
    decided only on agreement would teach the classifier that open questions are always answered well.
    """

    name = "exact"
    basis = "agreement"

    async def judge(
        self, *, prompt: str, answer: str, reference_answer: str, response_format: dict[str, Any] | None = None
    ) -> JudgeVerdict:
        """Score 1 for agreement, 0 for disagreement, None for an abstention."""
        verdict = (
            self._final(prompt, answer, reference_answer)
            or self._same_words(answer, reference_answer)
            or self._to_the_letter(prompt, answer, reference_answer)
        )
        return verdict or JudgeVerdict(no_worse=None, reason="no single right answer to compare")

    def may_decide(self, prompt: str, response_format: dict[str, Any] | None) -> bool:
        """See `Judge.may_decide`; texts of equal words but for numbers, which are rare, are known afterwards alone."""
        return expected_kind(prompt) in _DECIDED or _is_to_the_letter(prompt)

    def _final(self, prompt: str, answer: str, reference: str) -> JudgeVerdict | None:
        kind = expected_kind(prompt)
        if kind not in _DECIDED:
            return None
        given, expected = final_answer(prompt, answer), final_answer(prompt, reference)
        if given is not None and expected is not None:
            return _compared(agree(given, expected), f"{given.kind} {given.value}", f"{expected.kind} {expected.value}")
        return JudgeVerdict(no_worse=None, reason=_UNCLEAR[kind]) if kind in _UNCLEAR else None

    def _same_words(self, answer: str, reference: str) -> JudgeVerdict | None:
        """Texts with the same words are compared by their numbers (SPEC QM-03)."""
        given, expected = _DIGITS.findall(normalised(answer)), _DIGITS.findall(normalised(reference))
        if not given or len(given) != len(expected):
            return None
        if _DIGITS.sub("#", normalised(answer)) != _DIGITS.sub("#", normalised(reference)):
            return None
        return _compared(given == expected, f"the same words with {given}", str(expected))

    def _to_the_letter(self, prompt: str, answer: str, reference: str) -> JudgeVerdict | None:
        if not _is_to_the_letter(prompt):
            return None
        given, expected = normalised(answer), normalised(reference)
        if not given or not expected or max(len(given.split()), len(expected.split())) > _CLOSED_WORDS:
            return None
        return _compared(given == expected, repr(given[:60]), repr(expected[:60]))


def _is_to_the_letter(prompt: str) -> bool:
    return mentions(prompt.casefold(), *_TELLING) and _TO_THE_LETTER.search(prompt) is not None


def _compared(equal: bool, given: str, expected: str) -> JudgeVerdict:
    relation = "agrees with" if equal else "differs from"
    return JudgeVerdict(no_worse=equal, score=float(equal), reason=f"{given} {relation} {expected}")
