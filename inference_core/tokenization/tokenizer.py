"""One model's tokeniser: text to token ids and back, safe against control tokens in untrusted text; and the stop
strings that end an answer's text.

Token ids that arrive one by one are decoded only in whole characters."""

import codecs
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from inference_core.errors import InvalidRequestError
from inference_core.tokenization.control_tokens import SPM_SPACE, ControlToken, ControlTokens, Marks, TextMask
from inference_core.tokenization.tokenizer_limits import unreadable

if TYPE_CHECKING:
    import tokenizers

    from inference_core.tokenization.chat_template import ChatTemplate
    from inference_core.tokenization.token_bound import TokenBound


class StopStrings:
    """Cuts the text before the first stop string that is completed, as if it arrived character by character; of
    several completed by the same character, before the one that starts first. The result does not depend on how the
    text is split into pieces. The stop string itself is included only with `include`.
    """

    def __init__(self, stops: Iterable[str], *, include: bool = False) -> None:
        self._stops = tuple(stops)
        self._include = include
        if "" in self._stops:
            raise InvalidRequestError("a stop string must not be empty", "stop")
        self._first_characters = frozenset(stop[0] for stop in self._stops)
        self._held = ""
        self._matched: str | None = None

    def passes(self, text: str) -> bool:
        """Whether `push` would return `text` unchanged and hold nothing back: no stop string can start in it."""
        return self._matched is None and not self._held and self._first_characters.isdisjoint(text)

    def push(self, text: str) -> tuple[str, str | None]:
        """Returns (text that no stop string can still include, the stop string that ended the generation or None)."""
        if self._matched is not None:
            return "", self._matched
        text = self._held + text
        # (end, start, stop): the smallest end is completed first, then the smallest start.
        matches = [(start + len(stop), start, stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        if matches:
            end, start, self._matched = min(matches)
            self._held = ""
            return text[: end if self._include else start], self._matched
        keep = possible_start(text, self._stops)
        self._held = text[keep:]
        return text[:keep], None

    def skip(self, text: str) -> None:
        """Take note of text in which no stop string counts, in place of `push`."""

    def flush(self) -> str:
        """The text held back, for when the generation ended for another reason."""
        held, self._held = self._held, ""
        return held


def possible_start(text: str, words: Collection[str]) -> int:
    """Return where in `text` the first of `words` may begin that its end cuts off; the length of `text` if none can."""
    longest = max(map(len, words), default=0)
    for position in range(max(0, len(text) - longest + 1), len(text)):
        tail = text[position:]
        if any(word.startswith(tail) for word in words):
            return position
    return len(text)


# Longer text takes milliseconds, during which other threads should run: the library's batch call encodes it, which
# releases the interpreter lock and costs a little more.
LONG_TEXT = 4096

# Plain text, and the id of a control token.
Piece = str | int
# What an assistant's turn says: its model has written it, so it may have marks of thoughts, and tokens that its
# template looks for.
_OWN_TEXTS = ("content", "reasoning_content", "reasoning", "thinking")
_THOUGHT = re.compile(r"think|thought|reasoning", re.IGNORECASE)
# Of tokens that stand for white space alone.
_BLANK = f" \t\r\n{SPM_SPACE}"
# Of processor time for two short chats, most of which take less than a millisecond: the event loop waits for no more.
SLOW_SECONDS = 0.02
_PROBE = [{"role": role, "content": "x"} for role in ("user", "assistant", "user")]
_PROBED_TOOLS = [{"type": "function", "function": {"name": "x", "description": "", "parameters": {"type": "object"}}}]


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """The contents of a tokeniser file of any format."""

    backend: "tokenizers.Tokenizer"
    """Encodes text at the start of a prompt."""
    continued: "tokenizers.Tokenizer"
    """Encodes text after a control token. It differs from `backend` only if a space is added before the start."""
    controls: Sequence[ControlToken]
    literals: Sequence[ControlToken]
    """Added tokens that stand for their own text."""
    to_bytes: Callable[[str], bytes]
    """Converts the printable form of any other token to bytes."""
    chat_template: "ChatTemplate | None"
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    bound: "TokenBound | None" = None
    """Lower bound on a text's tokens; None if unknown."""


class Tokenizer:
    """`encode` never produces control tokens; only a chat template can (`encode_chat`). In a chat only the template can
    produce the other added tokens that it writes. Thread-safe."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._controls = ControlTokens(vocabulary.controls)
        self._control_ids = frozenset(self._controls.ids.values())
        self._literals = {token.token_id: token.text for token in (*vocabulary.literals, *vocabulary.controls)}
        self._bytes: dict[int, bytes] = {}
        self._texts: dict[int, str | None] = {}
        written = [] if vocabulary.chat_template is None else _written_by(vocabulary.chat_template, vocabulary.literals)
        # Added tokens of the template's own turns: text in what users say, tokens in a prompt without a template.
        self._written = ControlTokens(written)
        self._of_template = ControlTokens([*vocabulary.controls, *written])
        if (template := vocabulary.chat_template) is not None:
            self._marks = Marks.of(self._of_template.texts, template.inspected, template.literals)
            thoughts = {text for text in self._of_template.texts if _THOUGHT.search(text)}
            self._own_marks = self._marks.without(thoughts | template.inspected.intersection(self._written.texts))
        for backend in {id(backend): backend for backend in (vocabulary.backend, vocabulary.continued)}.values():
            backend.encode_special_tokens = True  # Control tokens in text stay text, and so do these.
            backend.add_special_tokens([token.text for token in written])

    @property
    def vocab_size(self) -> int:
        """Number of token ids; a model's logits may be padded to more."""
        return self._vocabulary.backend.get_vocab_size(with_added_tokens=True)

    @property
    def vocabulary(self) -> dict[str, int]:
        """Token ids by their text in the tokeniser's own spelling, including control tokens."""
        return self._vocabulary.backend.get_vocab(with_added_tokens=True)

    @property
    def bos_token_id(self) -> int | None:
        return self._vocabulary.bos_token_id

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Ids that end a generation; the model's main one first."""
        return self._vocabulary.eos_token_ids

    @property
    def renders_slowly(self) -> bool:
        """Whether even short chats should be rendered on a thread."""
        return self._vocabulary.chat_template is not None and self._vocabulary.chat_template.is_slow

    @property
    def chat_template(self) -> "ChatTemplate | None":
        """The model's chat template, if its file has one."""
        return self._vocabulary.chat_template

    @property
    def control_tokens(self) -> Mapping[str, int]:
        """Control tokens, which are not part of any text: text to id."""
        return self._controls.ids

    def is_control(self, token_id: int) -> bool:
        return token_id in self._control_ids

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Encode `text` literally: `<|im_end|>` in it becomes the tokens of its characters.

        `add_special_tokens` adds the tokens before (and after) it that the model's file requires, usually the begin
        token. Other threads run while a long text is encoded.
        """
        return self.encode_pieces(self.text_pieces(text), add_special_tokens=add_special_tokens).ids()

    def encode_continued(self, text: str) -> list[int]:
        """Encode `text` literally, as text that continues other text."""
        pieces = self.text_pieces(text)
        for piece in pieces:
            if isinstance(piece, str):
                _require_unicode(piece)
        encoded = iter(_encoded(self._vocabulary.continued, [p for p in pieces if isinstance(p, str)], False))
        return [token for piece in pieces for token in ([piece] if isinstance(piece, int) else next(encoded).ids)]

    def text_pieces(self, text: str) -> list[Piece]:
        """Return `text` without a template, not yet encoded: added tokens not of control stand for themselves."""
        return list(self._written.split(text)) if self._written.ids and text else [text]

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **extra: Any
    ) -> list[int]:
        """Encode the rendered chat: control tokens and other added tokens that the template writes are parsed, the same
        in `messages` and `extra` are plain text, so that no caller can forge a turn or the result of a tool. In an
        assistant's own texts marks of thoughts stay tokens, and so do those other than control tokens that the template
        looks for.
        Raises InvalidRequestError(param="messages").
        """
        pieces = self.chat_pieces(messages, add_generation_prompt=add_generation_prompt, **extra)
        return self.encode_pieces(pieces).ids()

    def chat_pieces(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **extra: Any
    ) -> list[Piece]:
        """The rendered chat of `encode_chat`, not yet encoded."""
        template, tokens = self._template, self._of_template
        disguise = TextMask(self._marks, [messages, extra])
        turns, own = disguise.apply(messages), disguise.only(self._own_marks)
        for turn, masked in zip(messages, turns, strict=True):
            if turn.get("role") == "assistant":
                masked |= {name: own.apply(turn[name]) for name in _OWN_TEXTS if name in turn}
        masked_extra = {name: disguise.apply(value) for name, value in extra.items()}
        rendered = template.render(turns, add_generation_prompt=add_generation_prompt, extra=masked_extra)
        return [piece if isinstance(piece, int) else disguise.remove(piece) for piece in tokens.split(rendered)]

    def least_tokens(self, pieces: Iterable[Piece]) -> int:
        """A lower bound on the tokens of `pieces`, from their bytes; takes some milliseconds per MiB."""
        bound, least = self._vocabulary.bound, 0
        for piece in pieces:
            if isinstance(piece, int):
                least += 1
            else:
                _require_unicode(piece)
                least += 0 if bound is None else bound.least(piece)
        return least

    def encode_pieces(self, pieces: Sequence[Piece], *, add_special_tokens: bool = False) -> "EncodedPieces":
        """Encode `pieces`, the first of which starts a prompt."""
        if add_special_tokens and (len(pieces) > 1 or isinstance(pieces[0], int)):
            return self.encode_pieces(pieces).between(*self._around)
        texts = [piece for piece in pieces if not isinstance(piece, int)]
        for text in texts:
            _require_unicode(text)
        starts = bool(pieces) and isinstance(pieces[0], str)
        first, rest = (texts[:1], texts[1:]) if starts else ([], texts)
        encoded = _encoded(self._vocabulary.backend, first, add_special_tokens)
        encoded += _encoded(self._vocabulary.continued, rest, add_special_tokens)
        return EncodedPieces(pieces, encoded)

    @cached_property
    def _around(self) -> tuple[list[int], list[int]]:
        """The tokens that the model's file requires before and after a text."""
        bare, full = (self._vocabulary.backend.encode("a", add_special_tokens=added).ids for added in (False, True))
        start = next(at for at in range(len(full)) if full[at : at + len(bare)] == bare)
        return full[:start], full[start + len(bare) :]

    def render_chat(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **extra: Any
    ) -> str:
        """Render the chat as text for people; a model needs `encode_chat`, which marks the template's tokens."""
        return self._template.render(messages, add_generation_prompt=add_generation_prompt, extra=extra)

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes of one token, possibly part of a UTF-8 character; b"" for unknown ids."""
        cached = self._bytes.get(token_id)
        if cached is None:
            cached = self._bytes[token_id] = self._make_bytes(token_id)
        return cached

    def token_text(self, token_id: int) -> str | None:
        """What a token adds to whole characters: "" for control tokens; None if its bytes are not whole characters."""
        try:
            return self._texts[token_id]
        except KeyError:
            text = self._texts[token_id] = self._make_text(token_id)
            return text

    def _make_text(self, token_id: int) -> str | None:
        if token_id in self._control_ids:
            return ""
        try:
            return self.token_bytes(token_id).decode()
        except UnicodeDecodeError:
            return None

    def _make_bytes(self, token_id: int) -> bytes:
        literal = self._literals.get(token_id)
        if literal is not None:
            return literal.encode()
        text = self._vocabulary.backend.id_to_token(token_id) if token_id >= 0 else None
        return b"" if text is None else self._vocabulary.to_bytes(text)

    def decode(self, token_ids: Iterable[int]) -> str:
        """Decode the tokens, without control tokens, as text; invalid UTF-8 becomes U+FFFD.

        Nothing is trimmed: if a vocabulary puts a space before the first word, the text has it.
        """
        return b"".join(self.token_bytes(i) for i in token_ids if i not in self._control_ids).decode("utf-8", "replace")

    @property
    def _template(self) -> "ChatTemplate":
        if self._vocabulary.chat_template is None:
            raise InvalidRequestError(
                "this model has no chat template, so it cannot chat; use completions with a prompt", "messages"
            )
        return self._vocabulary.chat_template


class EncodedPieces:
    """Encoded pieces whose tokens can be counted without building a list, which is not needed if they do not fit."""

    def __init__(self, pieces: Sequence[Piece], encoded: "Sequence[tokenizers.Encoding]") -> None:
        self._pieces, self._encoded = pieces, encoded

    def __len__(self) -> int:
        return len(self._pieces) - len(self._encoded) + sum(map(len, self._encoded))

    def between(self, before: Sequence[int], after: Sequence[int]) -> "EncodedPieces":
        """These with other tokens around them."""
        return EncodedPieces([*before, *self._pieces, *after], self._encoded)

    def ids(self) -> list[int]:
        """All token ids, including control tokens."""
        encoded = iter(self._encoded)
        return list(chain.from_iterable([p] if isinstance(p, int) else next(encoded).ids for p in self._pieces))


def _encoded(
    backend: "tokenizers.Tokenizer", texts: list[str], add_special_tokens: bool
) -> "list[tokenizers.Encoding]":
    try:
        if sum(map(len, texts)) > LONG_TEXT:
            return backend.encode_batch_fast(texts, add_special_tokens=add_special_tokens)
        return [backend.encode(text, add_special_tokens=add_special_tokens) for text in texts]
    except BaseException as error:
        if (refusal := unreadable(error)) is not None:
            raise refusal from error
        raise


def _written_by(template: "ChatTemplate", tokens: Iterable[ControlToken]) -> list[ControlToken]:
    """Return those of `tokens` that `template` writes or compares with; white space marks no turn.

    It is rendered for the first time here, and its `is_slow` is set by how long that takes.
    """
    texts, began = list(template.literals), time.thread_time()
    for extra in ({}, {"tools": _PROBED_TOOLS}) if template.uses_tools else ({},):
        try:
            # Marks that it puts together, as in `'<|' + role + '|>'`.
            texts.append(template.render(_PROBE, add_generation_prompt=True, extra=extra))
        except InvalidRequestError:
            continue
    template.is_slow |= time.thread_time() - began > SLOW_SECONDS
    return [token for token in tokens if token.text.strip(_BLANK) and any(token.text in text for text in texts)]


def _require_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(f"the text is not valid Unicode: lone surrogate at position {error.start}") from error


_UTF8 = codecs.getincrementaldecoder("utf-8")


class IncrementalDetokenizer:
    """The texts of all `push` calls and one `flush` together equal `tokenizer.decode` of all ids.

    Works on bytes, so the cost of a token does not grow with the text. Bytes of an incomplete character are held back;
    invalid UTF-8 becomes U+FFFD, as in `bytes.decode("utf-8", "replace")`. Control tokens in `visible` become the
    texts there; others are dropped.
    """

    def __init__(self, tokenizer: Tokenizer, visible: Mapping[int, str] = MappingProxyType({})) -> None:
        self._tokenizer = tokenizer
        self._visible = visible
        self._decoder = _UTF8("replace")
        self._holds = False

    def push(self, token_ids: Iterable[int]) -> str:
        """The text completed by these tokens; control tokens have none."""
        return "".join([self.push_one(token_id) for token_id in token_ids])

    def push_one(self, token_id: int) -> str:
        """The same for a single token."""
        tokenizer = self._tokenizer
        if token_id in self._visible:
            text = self._decoder.decode(b"", final=True) + self._visible[token_id]
            self._holds = False
            return text
        if not self._holds:
            whole = tokenizer.token_text(token_id)
            if whole is not None:
                return whole
        elif tokenizer.is_control(token_id):
            return ""
        text = self._decoder.decode(tokenizer.token_bytes(token_id))
        self._holds = bool(self._decoder.getstate()[0])
        return text

    def flush(self) -> str:
        """The text of an incomplete character at the end: U+FFFD, or "" if there is none."""
        return self._decoder.decode(b"", final=True)
