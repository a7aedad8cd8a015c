"""Find the final answer of a text, normalised so that equal answers compare equal."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from tiers.final_answer.choices import choice_letter, options, stated_label, stated_labels
from tiers.final_answer.entities import key_words
from tiers.final_answer.expected import AnswerKind, asks_for_brackets, expected_kind
from tiers.final_answer.latex import last_formula, normalised_latex
from tiers.final_answer.literals import canonical_calls, canonical_json, last_literal, python_literal, spelt_json
from tiers.final_answer.marks import marks
from tiers.final_answer.quantities import Quantity, final_quantity, quantity
from tiers.final_answer.structured import checked_fields, schema_of
from tiers.final_answer.text import ending, excerpt, normalised, refuses
from tiers.tool_types import ToolCall

_SHORT_JSON_CHARS = 500
_MOST_STRING_CHARS = 1000
_SHORT_STRING_WORDS = 40
_PERCENT_ASKED = re.compile(r"\bpercent|\bper cent\b|%\s*\)?\s*\?|\bin %|\bas a %", re.IGNORECASE)
_MATHS_DELIMITERS = re.compile(r"^(?:\$+|\\\(|\\\[)|(?:\$+|\\\)|\\\])$")


class FinalAnswer(msgspec.Struct, frozen=True):
    """What a text answers. `value`: a letter, a number with its unit, a formula, a literal, canonical JSON, or words in
    lower case; equal ones agree, and see `tiers.final_answer.agreement.agree`."""

    kind: AnswerKind
    value: str


def final_answer(
    prompt: str, text: str, response_format: dict[str, Any] | None = None, tool_calls: Sequence[ToolCall] = ()
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
        return _made("json", canonical_json(text))
    prompt, end = excerpt(prompt), ending(text)
    brackets = asks_for_brackets(prompt)
    match kind:
        case "choice":
            return _made("choice", choice_letter(end, options(prompt), brackets=brackets))
        case "label":
            return _made("label", stated_label(end, stated_labels(prompt), brackets=brackets))
        case "number" | "latex":
            return _computed(prompt, end, kind, brackets)
        case "literal":
            return _literal(end, brackets)
        case "string" | "entity" if found := _marked(prompt, end, kind, brackets):
            return found
        case "string":
            is_short = len(end.split()) <= _SHORT_STRING_WORDS and not refuses(end)
            return _by_shape(prompt, end) if is_short else None
        case "entity":
            return _made("entity", key_words(prompt, text))
    return _unasked(prompt, text, end)


def _computed(prompt: str, end: str, kind: AnswerKind, brackets: bool) -> FinalAnswer | None:
    share = _PERCENT_ASKED.search(prompt) is None
    for mark in marks(end, brackets=brackets):
        found = quantity(mark.content, whole=kind == "latex", percent_is_share=share)
        if found is not None:
            return _number(found)
        if (formula := _formula(mark.content)) is not None:
            return FinalAnswer("latex", formula)
        if mark.strict:
            return _by_shape(prompt, mark.content)
    if kind == "latex":
        formula = last_formula(end) or (end if len(end) <= 100 else None)
        if formula is not None and (normal := normalised_latex(formula)) is not None:
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
    for mark in marks(end, hashes=False):
        if mark.strict:
            return _by_shape(prompt, mark.content)
    return _made("json", canonical_json(text)) if len(text) <= _SHORT_JSON_CHARS else None


def _by_shape(prompt: str, content: str) -> FinalAnswer | None:
    """An answer that stands alone: a number, a literal, a formula, or else a string."""
    content = content.strip()
    if not content or len(content) > _MOST_STRING_CHARS or refuses(content):
        return None
    found = quantity(content, whole=True, percent_is_share=_PERCENT_ASKED.search(prompt) is None)
    if found is not None:
        return _number(found)
    if content[0] in "[({\"'" and (literal := python_literal(content)) is not None:
        return FinalAnswer("literal", literal)
    if (formula := _formula(content)) is not None and "\\" in content:
        return FinalAnswer("latex", formula)
    words = re.sub(r"\\(?:text|textbf|mathrm|mathbf)\s?\{([^{}]*)\}", r"\1", _MATHS_DELIMITERS.sub("", content))
    return _made("string", re.sub(r"\s*([,;])\s*", r"\1 ", normalised(words)).strip() or None)


def _formula(content: str) -> str | None:
    return normalised_latex(_MATHS_DELIMITERS.sub("", content.strip()))


def _number(found: Quantity | None) -> FinalAnswer | None:
    return None if found is None else FinalAnswer("number", f"{found.number} {found.unit}".strip())


def _made(kind: AnswerKind, value: str | None) -> FinalAnswer | None:
    return None if value is None else FinalAnswer(kind, value)
