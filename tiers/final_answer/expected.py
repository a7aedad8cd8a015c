"""Which kind of final answer a request asks for, known before any answer is seen."""

import re
from typing import Any, Literal

from tiers.final_answer.choices import options, stated_labels
from tiers.final_answer.entities import asks_for_entity
from tiers.final_answer.quantities import asks_for_number
from tiers.final_answer.structured import has_checkable_field, schema_of
from tiers.final_answer.text import excerpt, mentions

AnswerKind = Literal[
    "choice", "label", "number", "latex", "literal", "string", "entity", "json", "fields", "tool_calls"
]

_CREATIVE = re.compile(
    r"(?:^|[.!?:]\s|\n)\s{0,4}(?:please |can you |could you )?(?:draft|compose|implement|translate|summari[sz]e|rewrite"
    r"|paraphrase|create|generate|develop|design|refactor|brainstorm|explain|describe|discuss|suggest|edit)\b"
    r"|\b(?:write|implement|create|compose|complete|fix) (?:a|an|me|some|the following|code|python|sql)\b",
    re.IGNORECASE,
)
_KEYED = re.compile(r"[\"']answer[\"']\s{0,3}:", re.IGNORECASE)
_MARK_ASKED = re.compile(
    r"\\boxed|</?(?:final_)?answer>|\[/?ANSWER\]|\bdouble (?:square )?brackets\b"
    r"|\[\[\s?(?:your|final|answer|insert|the)\b"
    r"|^####|#### ?[<[{]",
    re.IGNORECASE | re.MULTILINE,
)
_BRACKETS = re.compile(
    r"\bdouble (?:square )?brackets\b|\[\[\s?(?:your|final|answer|insert|the)\b|\[\[\s?\]\]", re.IGNORECASE
)
_ONLY_ASKED = re.compile(
    r"\b(?:answer|reply|respond|output|return|give|provide)\b[^.?!\n]{0,40}\b(?:only|just|nothing else|exactly)"
    r"|\b(?:only|just)\b[^.?!\n]{0,20}\b(?:answer|reply|respond|return|output|give|provide)\b"
    r"|\b(?:as|is|in|for) (?:your|the) final answer\b|\bfinal answer\b[^.\n]{0,40}\b(?:be|format|just)\b"
    r"|\b(?:one|single) word\b",
    re.IGNORECASE,
)
_ONLY_WORDS = ("only", "just", "nothing else", "exactly", "final answer", "word")
_JSON = re.compile(r"\b(?:as|in|return|valid|output|reply with|respond with|only)\b[^.\n]{0,40}\bJSON\b", re.IGNORECASE)
_CODE = re.compile(r"^[ \t]{0,40}def \w+\(|\bprint\(|```(?:python|py)\b|\bassert \w+\(|>>> ", re.MULTILINE)
_EXECUTED = re.compile(
    r"\b(?:what|predict|determine|complete the assertion|execute|evaluate)\b[^\n]{0,80}\b(?:outputs?|returns?"
    r"|returned|print|prints|printed|evaluates?|result|assertion|literal|value)\b",
    re.IGNORECASE,
)
_MATHS = re.compile(
    r"\\(?:frac|sqrt|int|sum|cdot|times|log|sin|cos|tan|pi)\b|[a-zA-Z0-9)]\s?(?:\^|\*\*)\s?[({]?\d|∫|\$[^$\n]{1,200}\$",
    re.IGNORECASE,
)
_MATHS_ASKED = re.compile(
    r"\b(?:simplify|factor|expand|solve|evaluate|calculate|compute|integral|integrate|derivative|differentiate|find|determine"
    r"|what is|express|how many)\b",
    re.IGNORECASE,
)


def asks_for_brackets(prompt: str) -> bool:
    """Return whether `prompt` wants its answer in `[[ ]]`."""
    return _BRACKETS.search(prompt) is not None


def expected_kind(prompt: str, response_format: dict[str, Any] | None = None) -> AnswerKind | None:
    """Return the kind of checkable answer that a request asks for, or None; in doubt None.

    `prompt` is the last user turn, after the system prompt where that gives rules. Of a long one the beginning and the
    end are read. A schema of free text alone has nothing to check. An answer may turn out as another kind: a formula
    that is a number is a number, and a call of a tool is one.
    """
    if (schema := schema_of(response_format)) is not None:
        return "fields" if has_checkable_field(schema) else None
    if response_format is not None and response_format.get("type") == "json_object":
        return "json"
    prompt = excerpt(prompt)
    folded = prompt.casefold()
    keyed = mentions(folded, "answer") and _KEYED.search(prompt) is not None
    marked = keyed or (
        mentions(folded, "boxed", "answer", "brackets", "[[", "####") and _MARK_ASKED.search(prompt) is not None
    )
    if options(prompt):
        return "choice"
    kind = _kind_of(prompt, folded, keyed=keyed, marked=marked)
    # The slowest pattern comes last: most prompts have no checkable answer anyway.
    return None if kind is None or (not marked and _CREATIVE.search(prompt)) else kind


def _kind_of(prompt: str, folded: str, *, keyed: bool, marked: bool) -> AnswerKind | None:
    if stated_labels(prompt):
        return "label"
    if mentions(folded, "(", "```", ">>> ") and _CODE.search(prompt) and _EXECUTED.search(prompt):
        return "literal"
    if mentions(folded, "json") and not keyed and _JSON.search(prompt):
        return "json"
    if asks_for_number(prompt):
        return "number"
    if mentions(folded, "\\", "^", "**", "∫", "$") and _MATHS.search(prompt) and _MATHS_ASKED.search(prompt):
        return "latex"
    if marked or (mentions(folded, *_ONLY_WORDS) and _ONLY_ASKED.search(prompt)):
        return "string"
    return "entity" if asks_for_entity(prompt) else None
