"""Find the final answer of a text, normalised so that equal answers compare equal, and whether two agree.

Which kind of final answer a request asks for is known before any answer is seen. None never agrees, and where it is in
doubt neither does anything else.
"""

import re
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from tiers.conversation import Call, Turn
from tiers.final_answer.quantities import (
    Quantity,
    asks_for_number,
    final_quantity,
    last_formula,
    normalised_latex,
    quantity,
)
from tiers.final_answer.short_answers import (
    asks_for_entity,
    choice_letter,
    key_words,
    options,
    same_entity,
    stated_label,
    stated_labels,
)
from tiers.final_answer.structured import (
    canonical_calls,
    canonical_json,
    checked_fields,
    has_checkable_field,
    last_literal,
    python_literal,
    spelt_json,
)
from tiers.final_answer.text import ending, excerpt, marks, mentions, normalised, refuses
from tiers.response_format import is_object, schema_of


def question_of(messages: Sequence[Turn]) -> str:
    system = [message.text for message in messages[:-1] if message.role in ("system", "developer")]
    return "\n\n".join([*system, *(message.text for message in messages[-1:])])


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


def expected_kind(prompt: str, response_format: dict[str, Any] | None = None) -> AnswerKind | None:
    """Return the kind of checkable answer that a request asks for, or None; in doubt None.

    `prompt` is the last user turn, after the system prompt where that gives rules. Of a long one the beginning and the
    end are read. A schema of free text alone has nothing to check. An answer may turn out as another kind: a formula
    that is a number is a number, and a call of a tool is one.
    """
    if (schema := schema_of(response_format)) is not None:
        return "fields" if has_checkable_field(schema) else None
    if is_object(response_format):
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


_SHORT_JSON_CHARS = 500
_MOST_STRING_CHARS = 1000
_SHORT_STRING_WORDS = 40
_PERCENT_ASKED = re.compile(r"\bpercent|\bper cent\b|%\s*\)?\s*\?|\bin %|\bas a %", re.IGNORECASE)
_UNCLOSED = re.compile(r"\\f?boxed|</?(?:final_)?answer>|\[/?answer\]", re.IGNORECASE)  # an empty or broken mark
_MATHS_DELIMITERS = re.compile(r"^(?:\$+|\\\(|\\\[)|(?:\$+|\\\)|\\\])$")


class FinalAnswer(msgspec.Struct, frozen=True):
    """What a text answers."""

    kind: AnswerKind
    value: str
    """A letter, a number with its unit, a formula, a literal, canonical JSON, or words in lower case; equal ones agree,
    and see `tiers.final_answer.extract.agree`.
    """


def final_answer(
    prompt: str, text: str, response_format: dict[str, Any] | None = None, tool_calls: Sequence[Call] = ()
) -> FinalAnswer | None:
    """Return the final answer of `text` to `prompt` (see `expected_kind`), or None if it gives none clearly.

    Without an expected kind, a boxed or tagged answer counts, and a text that is short JSON. Read are the last
    `CHECKABLE_CHARS` of the text.
    """
    if tool_calls:
        return _made("tool_calls", canonical_calls(tool_calls))
    kind = expected_kind(prompt, response_format)
    if kind == "fields":
        fields = checked_fields(schema_of(response_format) or {}, text)
        return _made("fields", spelt_json(fields) if fields else None)
    if kind is None and response_format is not None and schema_of(response_format) is not None:
        return None
    if kind == "json":
        inside = next((mark.content for mark in marks(text) if mark.strict and mark.content[:1] in "{["), text)
        return _made("json", canonical_json(text) or canonical_json(inside))
    prompt, end = excerpt(prompt), ending(text)
    brackets = _BRACKETS.search(prompt) is not None
    match kind:
        case "choice":
            return _made("choice", choice_letter(end, options(prompt), brackets=brackets))
        case "label":
            label = _made("label", stated_label(end, stated_labels(prompt), brackets=brackets))
            return label or _strictly_marked(prompt, end, brackets)
        case "number" | "latex":
            return _computed(prompt, end, kind, brackets)
        case "literal":
            return _literal(end, brackets)
        case "string" | "entity" if marked := _marked(prompt, end, kind, brackets):
            return marked
        case "string":
            is_alone = len(end.split()) <= _SHORT_STRING_WORDS and not _UNCLOSED.search(end)
            return _by_shape(prompt, end) if is_alone else None
        case "entity":
            return _made("entity", key_words(prompt, text))
    return _unasked(prompt, text, end)


def _computed(prompt: str, end: str, kind: AnswerKind, brackets: bool) -> FinalAnswer | None:
    share = _PERCENT_ASKED.search(prompt) is None
    for mark in marks(end, brackets=brackets):
        amount = quantity(mark.content, whole=kind == "latex", percent_is_share=share)
        if amount is not None:
            return _number(amount)
        if (mark.strict or kind == "latex") and (formula := _formula(mark.content)) is not None:
            return FinalAnswer("latex", formula)
        if mark.strict:
            return _by_shape(prompt, mark.content)
    if kind == "latex":
        formula = last_formula(end) or (end if len(end) <= 100 else None)
        if formula is not None and "boxed" not in formula and (normal := normalised_latex(formula)) is not None:
            alone = quantity(formula, whole=True, percent_is_share=share)
            return FinalAnswer("latex", normal) if alone is None else _number(alone)
    return _number(final_quantity(end, percent_is_share=share))


def _literal(end: str, brackets: bool) -> FinalAnswer | None:
    for mark in marks(end, brackets=brackets):
        content = mark.content.strip().strip("`").strip()
        content = content.rpartition(" == ")[2] if content.startswith("assert") else content
        literal = python_literal(content if mark.strict else content.rstrip(".").rstrip("`*"))
        if literal is not None:
            return FinalAnswer("literal", literal)
        if mark.strict:
            is_bare = len(content) <= 300 and "\n" not in content and not refuses(content)
            return FinalAnswer("literal", repr(content)) if is_bare else None
    return _made("literal", last_literal(end))


def _marked(prompt: str, end: str, kind: AnswerKind, brackets: bool) -> FinalAnswer | None:
    for mark in marks(end, brackets=brackets, hashes="####" in prompt):
        if kind == "entity":
            return _made("entity", key_words(prompt, mark.content))
        if mark.strict or len(end.split()) <= _SHORT_STRING_WORDS:
            return _by_shape(prompt, mark.content)
    return None


def _unasked(prompt: str, text: str, end: str) -> FinalAnswer | None:
    """The answer of a text whose prompt asks for none that can be checked."""
    if marked := _strictly_marked(prompt, end, brackets=False):
        return marked
    return _made("json", canonical_json(text)) if len(text) <= _SHORT_JSON_CHARS else None


def _strictly_marked(prompt: str, end: str, brackets: bool) -> FinalAnswer | None:
    last = next((mark for mark in marks(end, brackets=brackets, hashes=False) if mark.strict), None)
    return None if last is None else _by_shape(prompt, last.content)


def _by_shape(prompt: str, content: str) -> FinalAnswer | None:
    """An answer that stands alone: a number, a literal, a formula, or else a string."""
    content = content.strip()
    if not content or len(content) > _MOST_STRING_CHARS or refuses(content):
        return None
    amount = quantity(content, whole=True, percent_is_share=_PERCENT_ASKED.search(prompt) is None)
    if amount is not None:
        return _number(amount)
    if content[0] in "[({\"'" and (literal := python_literal(content)) is not None:
        return FinalAnswer("literal", literal)
    if (formula := _formula(content)) is not None and "\\" in content:
        return FinalAnswer("latex", formula)
    words = re.sub(r"\\(?:text|textbf|mathrm|mathbf)\s?\{([^{}]*)\}", r"\1", _MATHS_DELIMITERS.sub("", content))
    return _made("string", re.sub(r"\s*([,;])\s*", r"\1 ", normalised(words)).strip() or None)


def _formula(content: str) -> str | None:
    return normalised_latex(_MATHS_DELIMITERS.sub("", content.strip()))


def _number(amount: Quantity | None) -> FinalAnswer | None:
    return None if amount is None else FinalAnswer("number", f"{amount.number} {amount.unit}".strip())


def _made(kind: AnswerKind, value: str | None) -> FinalAnswer | None:
    return None if value is None else FinalAnswer(kind, value)


def agree(answer: FinalAnswer | None, other: FinalAnswer | None) -> bool:
    """Return whether two final answers are the same.

    Entities agree by containment or token F1 of at least 0.5 (see `same_entity`), numbers if they are equal and their
    units too, or one has none; all others by equality.
    """
    if answer is None or other is None or answer.kind != other.kind:
        return False
    if answer.kind == "entity":
        return same_entity(answer.value, other.value)
    if answer.kind == "number":
        (number, _, unit), (number_too, _, unit_too) = answer.value.partition(" "), other.value.partition(" ")
        return number == number_too and (unit == unit_too or not unit or not unit_too)
    return answer.value == other.value


def agreement(prompt: str, text: str, other: str) -> float | None:
    """Return 1 if two answers to `prompt` have the same final answer, else 0; None if `text` has none to check."""
    own = final_answer(prompt, text)
    return None if own is None else float(agree(own, final_answer(prompt, other)))
