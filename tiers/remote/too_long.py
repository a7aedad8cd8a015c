"""How servers say that a prompt is too long, or that a model cannot do what is asked: what the wordings of
`tiers/dialects/quirks/overflow.toml` tell."""

import re
from typing import NamedTuple

import msgspec

from tiers.dialects.quirks import Row, pattern_of, read_rows
from tiers.dialects.server_error import WireError
from tiers.errors import CONTEXT_CODE, TierContextError
from tiers.prompt_bounds import room_after
from tiers.server_words import MOST_CONTEXT

MOST_READ = 4096
"""Characters of a refusal: some servers repeat the request in it, whose texts are no wording of theirs."""


class TooLong(NamedTuple):
    """The tokens of a prompt that a server refuses, of the answer that was asked for, of both, and the most of both; 0
    for what it does not say. `in_bytes`: the request's size is what is refused."""

    prompt_tokens: int = 0
    answer_tokens: int = 0
    total_tokens: int = 0
    max_context: int = 0
    in_bytes: bool = False


class Wording(Row, frozen=True, kw_only=True):
    """One way to say it."""

    servers: str
    """Who says it so."""
    patterns: tuple[str, ...]
    """Regular expressions of the words, in which a name in braces stands for a count of tokens."""


class Wordings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file of rows."""

    codes: frozenset[str]
    """Codes and types of errors that say it whatever the words."""
    unable: tuple[str, ...]
    """Regular expressions of words that say that a model cannot do what is asked."""
    words: dict[str, str]
    """Regular expressions by the names that stand for them in the patterns of the wordings."""
    wordings: tuple[Wording, ...]

    def compiled(self) -> list[re.Pattern[str]]:
        """Return the patterns of all wordings, in their order."""
        return [pattern_of(text, self.words) for wording in self.wordings for text in wording.patterns]


WORDINGS = read_rows("overflow", Wordings)
_COMPILED = WORDINGS.compiled()
_TOO_LARGE = 413
_UNABLE = pattern_of(rf"\b(?:{'|'.join(WORDINGS.unable)})\b")


def too_long(error: WireError, status: int = 400) -> TooLong | None:
    """Return what a refusal with `status` tells of a prompt that is too long; None if that is not what it says."""
    text = error.words[:MOST_READ]
    for pattern in _COMPILED:
        if (said := pattern.search(text)) is not None:
            return _counts(said.groupdict())
    if str(error.code) in WORDINGS.codes or error.type in WORDINGS.codes or status == _TOO_LARGE:
        return TooLong(in_bytes=status == _TOO_LARGE and error.code != CONTEXT_CODE)
    return None


def room_left(error: TierContextError, prompt_tokens: int, asked: int) -> int:
    """Return the tokens that the context leaves for an answer, where a prompt of `prompt_tokens`, as estimated, was
    refused only because `asked` are more; 0 if there is no room, or the error tells no context."""
    context = error.max_context
    if error.total_tokens > asked:
        # Tools and the like may be in it, too.
        rooms = [context - (error.total_tokens - asked)]
    elif error.prompt_tokens in (0, context - error.answer_tokens + 1):
        # vLLM reads no more of a prompt than leaves room for the answer, and then says that it is one token too long.
        room = room_after(prompt_tokens, context)
        rooms = [room, room - prompt_tokens // 4, room - prompt_tokens]
    else:
        rooms = [context - error.prompt_tokens]
    return next((room for room in rooms if 0 < room < asked), 0)


def is_unable(error: WireError) -> bool:
    """Return whether a refusal says that the model, or its server, cannot do what is asked at all."""
    return _UNABLE.search(error.words[:MOST_READ]) is not None


def _counts(said: dict[str, str | None]) -> TooLong:
    prompt, answer, limit, total = (_count(said.get(name)) for name in ("prompt", "answer", "limit", "total"))
    if not prompt and total > answer:
        prompt = total - answer
    return TooLong(prompt, answer, total, limit)


def _count(text: str | None) -> int:
    digits = (text or "").replace(",", "")
    count = int(digits) if 0 < len(digits) < 12 else 0
    return count if count <= MOST_CONTEXT else 0
