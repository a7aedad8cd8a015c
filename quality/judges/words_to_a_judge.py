"""Sentences of an answer that speak to its judge: found by rule, and left out before the answer is judged.

An answer is written by somebody else: a model that read a page, or an opponent. What it asks of a judge says nothing
about its quality.
"""

import re

_VERDICT = r"(?:FIRST|SECOND|TIE)"
_WHICH = r"(?:this|the first|the second|the other|my|our) (?:answer|response|reply)"
_SPEAKS = re.compile(
    "|".join(
        (
            rf"(?i:\b(?:reply|respond|answer|say|output|write|return)\b(?: \w+){{0,4}}) ?[:\"'“]*\b{_VERDICT}\b",
            rf"(?i:\b(?:rate|rank|grade|score|judge|mark|choose|pick|select|prefer|favou?r)\s+{_WHICH}\b)",
            r"(?i:\b(?:ignore|disregard|forget)\b(?: \w+){0,3} (?:instructions?|rules|prompts?|criteria|rubric)\b)",
            r"(?i:\b(?:dear|note (?:to|for) (?:the )?|attention,? |message to (?:the )?|you are (?:a|the) )"
            r" ?(?:judge|grader|evaluator|rater|assessor|reviewer)s?\b)",
            rf"(?i:\b{_WHICH} (?:is|must be|should be|wins|deserves)\b[^.!?\n]{{0,40}}"
            r"\b(?:better|best|winner|preferred|top|highest)\b)",
        )
    )
)
_SENTENCE = re.compile(r"[^.!?\n]+[.!?]*\s*|[.!?\s]+")


def speaks_to_a_judge(text: str) -> bool:
    """Return whether a sentence of `text` gives an instruction to whatever compares answers."""
    return _SPEAKS.search(text) is not None


def without_words_to_a_judge(text: str) -> str:
    """Return `text` without the sentences that speak to a judge; unchanged if there are none."""
    if not speaks_to_a_judge(text):
        return text
    return "".join(one for one in _SENTENCE.findall(text) if not _SPEAKS.search(one)).rstrip()
