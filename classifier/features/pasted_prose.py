"""Prose in a turn that a request is about: long, and led to or followed by a short request that names a text or asks
something; a quotation, a JSON value, or what follows a colon, within one line. Stories that end in a question, lists of
requirements and what speaks of what is to be done are no material but the request."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from classifier.features import request_words as words
from classifier.features.line_kinds import BLANK, FENCE, GAP, LIST, Line, Material, end_of

# Characters of a text that are looked at.
WINDOW = 4096
# Words of prose that may be a material, and of the request that leads to it or follows it.
LEAST_PROSE, MOST_ASKED = 40, 60
# Words of a request that does something to a text, whatever that says.
MOST_ON_TEXT = 25
# Characters of a JSON value within a line that are a material.
LEAST_JSON = 80
# Of a text so many characters are searched for what is to be done.
LOOKED_AT = 1024
# Characters of a text that say whether it is prose, and its author speaks of itself, or of what is to be made.
BEGINNING = 240
# Characters of marked prose that are a material.
LEAST_MARKED = 160

_WORD = re.compile(r"[a-z]+")
_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\u0e00-\u0e7f]")
_JSON_OBJECT = re.compile(r"\{\s?\"[^\"\n]{1,64}\"\s?:")
_ARRAY = re.compile(r"\[\s?\Z")
QUOTES = {'"': '"', "“": "”", "«": "»", "„": "“", "「": "」", "『": "』"}
_QUOTE = re.compile(r"[\"“«„「『](?=\S)")


def is_text(content: str, request: str) -> bool:
    """Return whether `content`, which is marked as a text, is what the rest of the turn, `request`, is about."""
    request = request.strip()
    if len(content) < LEAST_MARKED or not request or words.TASK.search(request) or not _is_prose(content):
        return False
    return names_text(request) or words.POINTS.search(request) is not None or request.endswith((":", "："))


class Paragraph(NamedTuple):
    """Lines without a blank one between them."""

    first: Line
    last: Line
    words: int
    lists: bool
    """Whether one of the lines is an item of a list."""


def _paragraphs(lines: Sequence[Line]) -> list[list[Paragraph]]:
    """Return the paragraphs of prose, in groups that materials or a gap part."""
    groups: list[list[Paragraph]] = [[]]
    block: list[Line] = []

    def close() -> None:
        if block:
            count = sum(LEAST_PROSE if line.kind == GAP else count_words(line.text) for line in block)
            groups[-1].append(Paragraph(block[0], block[-1], count, any(line.kind == LIST for line in block)))
            block.clear()

    for line in lines:
        if line.kind in (BLANK, FENCE):
            close()
            if line.kind == FENCE and groups[-1]:
                groups.append([])
        else:
            block.append(line)
    close()
    return groups


def count_words(text: str) -> int:
    return max(text.count(" ") + 1, len(_UNSPACED.findall(text)) // 2 if not text.isascii() else 0)


def prose_in(text: str, lines: Sequence[Line]) -> list[Material]:
    """Long prose that a short request leads to, or follows."""
    materials = []
    for group in _paragraphs(lines):
        if len(group) < 2:
            continue
        if (rest := _about(text, group[0], group[1:])) is not None or (
            rest := _about(text, group[-1], group[:-1])
        ) is not None:
            materials.append(Material("text", rest[0].first.start, end_of(rest[-1].last)))
    return materials


def _about(text: str, paragraph: Paragraph, rest: Sequence[Paragraph]) -> Sequence[Paragraph] | None:
    """Return the paragraphs that the request in `paragraph` is about, None where they are part of the request."""
    request = text[paragraph.first.start : end_of(paragraph.last)].strip()
    if paragraph.words > MOST_ASKED or sum(other.words for other in rest) < LEAST_PROSE:
        return None
    if words.TASK.search(request):
        return None
    if paragraph.words <= MOST_ON_TEXT and words.ON_TEXT.search(request) and _is_long(rest):
        return rest
    if any(other.lists for other in rest):
        return None
    content = text[rest[0].first.start : min(end_of(rest[-1].last), rest[0].first.start + LOOKED_AT)]
    if words.SALUTATION.match(content) is not None and "\n" in content:
        return rest
    points = words.POINTS.search(request) is not None
    if "?" in content or "？" in content or (words.MAKING.search(request) and not points):
        return None
    if (
        not words.DOING.isdisjoint(_WORD.findall(content.lower()))
        or words.MAKING.search(content[:BEGINNING])
        or not _is_prose(content)
    ):
        return None
    if names_text(request):
        return rest
    asks = points or "?" in request or request.endswith((":", "：", "؟", "？"))
    leads = asks and paragraph.first.start < rest[0].first.start
    return rest if leads and _is_long(rest) and not words.MYSELF.search(content[:BEGINNING]) else None


def _is_long(paragraphs: Sequence[Paragraph]) -> bool:
    return sum(paragraph.words for paragraph in paragraphs) >= 2 * LEAST_PROSE


def _is_prose(content: str) -> bool:
    """Return whether most of a text are words, as in no grid, board or matrix."""
    start = content[:BEGINNING]
    tokens = start.split()
    if not start.isascii():
        return 3 * sum(map(str.isalpha, start)) >= 2 * sum(map(len, tokens))
    return 3 * sum(len(word) > 1 and word.lstrip("\"'(")[:1].isalpha() for word in tokens) >= 2 * len(tokens)


def names_text(request: str) -> bool:
    return bool(words.TEXT.search(request)) or (not request.isascii() and bool(words.TEXT_ELSEWHERE.search(request)))


def material_in_one_line(text: str) -> list[Material]:
    """A quotation, a JSON value or what follows a colon within one line."""
    window = text[:WINDOW]
    unclosed = set()
    for opening in _QUOTE.finditer(window):
        before = text[opening.start() - 1 : opening.start()]
        if before and before != "(" and not before.isspace():
            continue
        mark = opening[0]
        end = -1 if mark in unclosed else text.find(QUOTES[mark], opening.end(), opening.end() + WINDOW)
        if end < 0:
            unclosed.add(mark)
        elif end - opening.start() >= LEAST_MARKED:
            request = f"{text[: opening.start()]} {text[end + 1 : end + 1 + WINDOW]}"
            is_about = is_text(text[opening.start() : end + 1], request)
            return [Material("text", opening.start(), end + 1)] if is_about else []
    json_match = _JSON_OBJECT.search(window)
    if json_match is not None:
        array = _ARRAY.search(window[max(json_match.start() - 2, 0) : json_match.start()])
        start = json_match.start() - (0 if array is None else len(array[0]))
        end = text.find("\n", start) % (len(text) + 1)
        end = max(text.rfind("}", json_match.end(), end), text.rfind("]", json_match.end(), end)) + 1
        if end - start >= LEAST_JSON:
            return [Material("data", start, end)]
    colon = window.find(": ", 0, WINDOW)
    if colon < 0 or "\n" in text:
        return []
    request, content = text[: colon + 1], text[colon + 2 : colon + 2 + WINDOW]
    is_about = bool(words.ON_TEXT.search(request)) and not words.TASK.search(request) and "?" not in content
    if is_about and count_words(request) <= MOST_ASKED // 2 and count_words(content) >= LEAST_PROSE:
        return [Material("text", colon + 2, len(text))]
    return []
