"""The words that are looked for before a pattern is tried are words that the pattern cannot match without."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from quality.judges import rules
from quality.judges.rules import CodeJudge, ExactJudge
from tiers.final_answer import extract, quantities, short_answers
from tiers.final_answer.extract import AnswerKind, expected_kind
from tiers.final_answer.quantities import asks_for_number
from tiers.final_answer.short_answers import names_yes_and_no, stated_labels
from tiers.final_answer.text import word_set

# What the patterns are made of, one piece after another.
PIECES = word_set(
    "answer reply respond return output print say give provide write repeat copy spell explain find solve compute "
    "calculate count how what which is the a an of one word single only just exactly nothing else yes or no True false "
    "as into either classify label labels categorise categories classes sentiments choices positive negative final "
    "json python function assert code def number integer digit many much "
    "total value with double square brackets determine evaluate prints result 12 3 "
    "+ * your for in to be possible verbatim simplify "
    ", : . ? ( ) / | ' \" [[ ]] #### \\boxed{} <answer> [ANSWER] $x$ ∫ x^2 2**3 \\frac print( >>> ```python 'answer':"
)
CASED = sorted({*PIECES, *map(str.upper, PIECES), *map(str.capitalize, PIECES), "\n", "A) one B) two", "def f("})
PROMPTS = st.lists(st.sampled_from(CASED), max_size=14).map(" ".join)

Found = tuple[AnswerKind | None, tuple[str, ...], bool, bool, list[bool]]


def found(prompt: str) -> Found:
    may_decide = [judge.may_decide(prompt, None) for judge in (ExactJudge(), CodeJudge())]
    return expected_kind(prompt), stated_labels(prompt), asks_for_number(prompt), names_yes_and_no(prompt), may_decide


@given(PROMPTS)
@example("Classify the review as positive or negative.")
@example("Sort it into sentiments: good, bad, mixed")
@example("Categorize this as either spam, ham")
@example("Reply 'red' or 'blue'.")
@example("Return True if x holds and No or False if not.")
@example("COPY THE LINE WORD FOR WORD")
@example("Which value has f(x) = x**2 at 3?")
@example("Provide valid JSON.")
@example("Find ∫ x dx")
@example("Write a FUNCTION for it:\n  assert f(1)")
@example("Complete the function def f(x)")
@example("Reply with a digit.")
@example("Put it in double brackets.")
def test_no_prompt_is_read_otherwise_than_by_all_patterns(prompt: str) -> None:
    quick = found(prompt)
    with pytest.MonkeyPatch.context() as patched:
        for module in (short_answers, extract, quantities, rules, rules):
            patched.setattr(module, "mentions", lambda text, *words: True)
        assert found(prompt) == quick
