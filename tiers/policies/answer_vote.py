"""Majority voting: which prompts ask for a short answer that samples can vote on, and which sample wins."""

import re
from collections import Counter
from collections.abc import Sequence, Set
from typing import Literal

from tiers.final_answer.choices import asks_yes_or_no, choice_letter, names_yes_and_no, options, yes_or_no
from tiers.final_answer.quantities import asks_for_number, likely_number

AnswerKind = Literal["number", "choice", "yes-no"]

WINDOW = 8192
_CREATIVE = re.compile(
    r"\b(write|draft|compose|implement|translate|summari[sz]e|rewrite|paraphrase|essay|poem|story|code|function)\b",
    re.I,
)


def answer_kind(prompt: str) -> AnswerKind | None:
    """Return the kind of short answer that `prompt` asks for, or None. In doubt None.

    In a long prompt only the first and last `WINDOW` characters are searched, which bounds the work.
    """
    if len(prompt) > 2 * WINDOW:
        prompt = f"{prompt[:WINDOW]}\n{prompt[-WINDOW:]}"
    if options(prompt):
        return "choice"
    if _CREATIVE.search(prompt):
        return None
    if names_yes_and_no(prompt):
        return "yes-no"
    if asks_for_number(prompt):
        return "number"
    return "yes-no" if asks_yes_or_no(prompt) else None


def extract_answer(prompt: str, kind: AnswerKind, text: str) -> str | None:
    """Return the answer to `prompt` in `text`, normalised so that equal answers compare equal; None without one."""
    if kind == "number":
        number = likely_number(text)
        return None if number is None else str(number)
    return choice_letter(text, options(prompt)) if kind == "choice" else yes_or_no(text)


def majority(answers: Sequence[str | None]) -> int:
    """Return the index of the first sample with the most frequent answer; the earlier answer wins a tie.

    Samples without an answer do not vote; if none has one, the first sample wins.
    """
    votes = Counter(answer for answer in answers if answer is not None)
    if not votes:
        return 0
    most = max(votes.values())
    return next(i for i, answer in enumerate(answers) if answer is not None and votes[answer] == most)


def still_needed(answers: Sequence[str | None], running: Set[int]) -> set[int]:
    """Return which of the `running` samples, whose answers are unknown, can still change the result of `majority`.

    None can once an answer leads by more votes than there are samples left, except samples before the first one that
    gave it: they may give it too, and would then be shown instead.
    """
    votes = Counter(answer for i, answer in enumerate(answers) if answer is not None and i not in running)
    ranked = votes.most_common(2)
    second = ranked[1][1] if len(ranked) > 1 else 0
    if not ranked or ranked[0][1] <= second + len(running):
        return set(running)
    first = next(i for i, answer in enumerate(answers) if answer == ranked[0][0] and i not in running)
    return {i for i in running if i < first}
