"""Where an answer that could not end valid is left, when it is made again."""

import json
from collections.abc import Sequence
from json.decoder import scanstring  # type: ignore[attr-defined]

from llguidance import LLTokenizer

from inference_core.grammar.matcher import GrammarMatcher
from inference_core.grammar.validation import AnswerValidator

_DECODER = json.JSONDecoder()
_SPACE = " \t\n\r"


def turning_point(
    matcher: GrammarMatcher, tokenizer: LLTokenizer, validator: AnswerValidator, answer: Sequence[int]
) -> tuple[list[int], int] | None:
    """Return the tokens of `answer` before its first choice from the value that does not hold on, and the one drawn
    there; of an answer without such a choice its last one; None if it has none.

    `matcher`: in its initial state, without validation.
    """
    if not answer:
        return None
    text = tokenizer.decode_bytes(list(answer)).decode("utf-8", "replace")
    path = validator.failing_path(text)
    begin = 0 if path is None else len(text[: value_start(text, path)].encode())
    reached, choice = 0, None
    for place, token in enumerate(answer):
        reached += len(tokenizer.decode_bytes([token]))
        if not matcher.forced_tokens():
            matcher.ask_masks(())
            if int.from_bytes(matcher.masks()[0], "little").bit_count() > 1:
                choice = place
                if reached > begin:
                    break
        matcher.accept(token)
    return None if choice is None else (list(answer[:choice]), answer[choice])


def value_start(text: str, path: Sequence[str | int]) -> int:
    """Return where in a JSON text the value at `path` begins; of a value that is not there, that of the last part."""
    place = _skipped(text, 0)
    for step in path:
        inner = _members(text, place).get(step)
        if inner is None:
            break
        place = inner
    return place


def _members(text: str, place: int) -> dict[str | int, int]:
    """The starts of the values in the object or array at `place`."""
    starts: dict[str | int, int] = {}
    closing = {"{": "}", "[": "]"}.get(text[place : place + 1])
    if closing is None:
        return starts
    place = _skipped(text, place + 1)
    while text[place : place + 1] not in (closing, ""):
        name: str | int = len(starts)
        if closing == "}":
            name, place = scanstring(text, place + 1)
            place = _skipped(text, _skipped(text, place) + 1)
        starts[name] = place
        _, place = _DECODER.raw_decode(text, place)
        place = _skipped(text, place)
        if text[place : place + 1] == ",":
            place = _skipped(text, place + 1)
    return starts


def _skipped(text: str, place: int) -> int:
    while text[place : place + 1] and text[place] in _SPACE:
        place += 1
    return place
