"""A short turn that goes on with an earlier one ("now in Rust", "yes, do that") is read together with it.

A list of words, not a model: what is recognised must be short, and name or leave out what it speaks of. A turn that
stands for itself, or that only closes ("thanks!"), is read alone.
"""

import re
from collections.abc import Iterator, Sequence

from classifier.features.follow_up_words import (
    BROUGHT,
    CLOSING,
    CLOSING_TEXTS,
    COMMON,
    EARLY_WORDS,
    FILLERS,
    LONGEST_BEFORE,
    NAMED,
    REFERENCES,
    SHORT_WORDS,
    STANDS_ALONE,
    STARTS,
    STARTS_UNSPACED,
    THAT,
    TOPIC_LETTERS,
)

# Earlier turns of the user that count.
EARLIER_TURNS = 2
# Words of each earlier turn that are read, from its beginning and its end.
HEAD_WORDS, TAIL_WORDS = 96, 32
# A turn of so many words may need an earlier one if it refers to something; of so few it does without a sign of that.
MOST_WORDS, FEW_WORDS = 40, 4
# Scripts without spaces: so many characters count as a word.
CHARS_PER_WORD = 2

_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)?")
_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\u0e00-\u0e7f]")


def in_context(turns: Iterator[str]) -> str:
    """Return the newest of a user's `turns` (newest first), after those earlier ones that it goes on with, a line each.
    At most two of these count, and the second only where the first is a follow-up itself. "" without turns."""
    newest = next(turns, "")
    read, later = [newest], newest
    if is_closing(newest):
        return newest
    for text in turns:
        if is_closing(text):
            continue
        if not continues(later, text):
            break
        read.append(_cut(text))
        if len(read) > EARLIER_TURNS:
            break
        later = text
    return "\n".join(reversed(read))


def continues(turn: str, before: str) -> bool:
    """Return whether a turn is short and refers to something that it does not name, or names what the turn `before` it
    is about."""
    lower = turn.strip().lower()
    if len(lower) > 12 * MOST_WORDS:
        return False
    words = _WORD.findall(lower)
    unspaced = len(_UNSPACED.findall(lower))
    count = len(words) if not unspaced else max(len(words), unspaced // CHARS_PER_WORD)
    if count > MOST_WORDS:
        return False
    if count <= FEW_WORDS or _begins(words) or lower.startswith(STARTS_UNSPACED) or NAMED.search(lower):
        return True
    if BROUGHT.search(lower):
        return False
    early = words if count <= SHORT_WORDS else words[:EARLY_WORDS]
    if not REFERENCES.isdisjoint(early) or THAT.search(lower) is not None:
        return True
    if count <= SHORT_WORDS and not STANDS_ALONE.match(lower):
        return True
    about = {word for word in words if len(word) >= TOPIC_LETTERS} - COMMON
    return not about.isdisjoint(_WORD.findall(before[:LONGEST_BEFORE].lower()))


def is_closing(turn: str) -> bool:
    """Return whether a turn only thanks, praises or takes leave."""
    lower = turn.strip().lower()
    if len(lower) > 80:
        return False
    words = set(_WORD.findall(lower))
    closing = any(text in lower for text in CLOSING_TEXTS) or not words.isdisjoint(CLOSING)
    if not closing:
        return not words  # a mark or a smiley
    return "?" not in lower and (words <= CLOSING | FILLERS or bool(_UNSPACED.search(lower)))


def _begins(words: Sequence[str]) -> bool:
    return any(" ".join(words[:n]) in STARTS for n in (1, 2, 3))


def _cut(text: str) -> str:
    words = text.split(None, HEAD_WORDS + TAIL_WORDS)
    if len(words) <= HEAD_WORDS + TAIL_WORDS:
        return text
    head = " ".join(words[:HEAD_WORDS])
    return f"{head} {' '.join(text.rsplit(None, TAIL_WORDS)[1:])}"
