"""Text to token ids and back for one model, safe against control tokens in text from outside."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import tokenizers

from inference_core.errors import InvalidRequestError
from inference_core.tokenization.chat_template import ChatTemplate
from inference_core.tokenization.control_tokens import ControlToken, ControlTokens, TextMask
from inference_core.tokenization.token_bound import TokenBound

# Text of more characters takes milliseconds, in which others shall run: in one call for a batch the library releases
# the interpreter, which costs a little more.
LONG_TEXT = 4096

# Plain text, and the id of a control token.
Piece = str | int


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """What a tokeniser file says, whatever its format.

    `backend` encodes text at the start of a prompt and `continued` text after a control token; they differ only where
    the start alone gets a space put before it. `literal_tokens` are added tokens that stand for their own text.
    `to_bytes` turns the printable form of any other token into its bytes. `bound`: of the tokens of a text, by its
    bytes; None where none is known.
    """

    backend: tokenizers.Tokenizer
    continued: tokenizers.Tokenizer
    controls: Sequence[ControlToken]
    literal_tokens: Mapping[int, str]
    to_bytes: Callable[[str], bytes]
    chat_template: ChatTemplate | None
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    bound: TokenBound | None = None


class Tokenizer:
    """`encode` never makes a control token of text; only a chat template can (`encode_chat`). Thread-safe."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._controls = ControlTokens(vocabulary.controls)
        self._control_ids = frozenset(self._controls.ids.values())
        self._literals = dict(vocabulary.literal_tokens) | {token.token_id: token.text for token in vocabulary.controls}
        self._bytes: dict[int, bytes] = {}
        self._texts: dict[int, str | None] = {}
        for backend in (vocabulary.backend, vocabulary.continued):
            backend.encode_special_tokens = True  # Control tokens in text stay text.

    @property
    def vocab_size(self) -> int:
        """Number of token ids with a meaning; a model's output may be padded to more."""
        return self._vocabulary.backend.get_vocab_size(with_added_tokens=True)

    @property
    def vocabulary(self) -> dict[str, int]:
        """Token ids by their text in the tokeniser's own spelling, control tokens included."""
        return self._vocabulary.backend.get_vocab(with_added_tokens=True)

    @property
    def bos_token_id(self) -> int | None:
        return self._vocabulary.bos_token_id

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Ids after which a generation is over; the model's main one first."""
        return self._vocabulary.eos_token_ids

    @property
    def chat_template(self) -> ChatTemplate | None:
        """How conversations are written for the model, if its file says."""
        return self._vocabulary.chat_template

    @property
    def control_tokens(self) -> Mapping[str, int]:
        """Text to id of the tokens that steer the model and are no part of any text."""
        return self._controls.ids

    def is_control(self, token_id: int) -> bool:
        return token_id in self._control_ids

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Ids of `text` taken literally: `<|im_end|>` in it becomes the tokens of its characters.

        `add_special_tokens` puts before (and after) it what the model's file asks for, usually the begin token. Other
        threads run while a long text is encoded.
        """
        return self.encode_pieces([text], add_special_tokens=add_special_tokens).ids()

    def encode_continued(self, text: str) -> list[int]:
        """Ids of `text`, taken literally, where other text comes before it."""
        _require_unicode(text)
        return self._vocabulary.continued.encode(text, add_special_tokens=False).ids

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **extra: Any
    ) -> list[int]:
        """Ids of the rendered chat: control tokens that the template writes are parsed, those in `messages` and
        `extra` are plain text, so that nobody can forge a turn. Raises InvalidRequestError(param="messages").
        """
        pieces = self.chat_pieces(messages, add_generation_prompt=add_generation_prompt, **extra)
        return self.encode_pieces(pieces).ids()

    def chat_pieces(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **extra: Any
    ) -> list[Piece]:
        """The rendered chat as `encode_chat` reads it, not yet encoded."""
        disguise = TextMask(self._controls.texts, [messages, extra])
        rendered = self._template.render(
            disguise.apply(messages), add_generation_prompt=add_generation_prompt, extra=disguise.apply(extra)
        )
        return [piece if isinstance(piece, int) else disguise.remove(piece) for piece in self._controls.split(rendered)]

    def least_tokens(self, pieces: Iterable[Piece]) -> int:
        """No more than `pieces` have tokens, by their bytes alone; some milliseconds per MiB."""
        bound, least = self._vocabulary.bound, 0
        for piece in pieces:
            if isinstance(piece, int):
                least += 1
            else:
                _require_unicode(piece)
                least += 0 if bound is None else bound.least(piece)
        return least

    def encode_pieces(self, pieces: Sequence[Piece], *, add_special_tokens: bool = False) -> "EncodedPieces":
        """The tokens of `pieces`, the first of which begins a prompt."""
        texts = [piece for piece in pieces if not isinstance(piece, int)]
        for text in texts:
            _require_unicode(text)
        starts = bool(pieces) and isinstance(pieces[0], str)
        first, rest = (texts[:1], texts[1:]) if starts else ([], texts)
        encoded = _encoded(self._vocabulary.backend, first, add_special_tokens)
        encoded += _encoded(self._vocabulary.continued, rest, add_special_tokens)
        return EncodedPieces(pieces, encoded)

    def render_chat(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **extra: Any
    ) -> str:
        """The chat as the template writes it, for people to read; for the model use `encode_chat`, which knows which
        control tokens are the template's own.
        """
        return self._template.render(messages, add_generation_prompt=add_generation_prompt, extra=extra)

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes of one token, maybe a part of a UTF-8 character; b"" for ids without meaning."""
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self._make_bytes(token_id)
        return known

    def token_text(self, token_id: int) -> str | None:
        """What the token adds to a text that ends with a whole character: "" for control tokens; None where its bytes
        are no whole characters by themselves.
        """
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
        """The tokens' bytes, control tokens left out, as text; bytes that are no UTF-8 become U+FFFD.

        Nothing is trimmed: where a vocabulary writes the first word with a space before it, the text has that space.
        """
        return b"".join(self.token_bytes(i) for i in token_ids if i not in self._control_ids).decode("utf-8", "replace")

    @property
    def _template(self) -> ChatTemplate:
        if self._vocabulary.chat_template is None:
            raise InvalidRequestError(
                "this model has no chat template, so it cannot chat; use completions with a prompt", "messages"
            )
        return self._vocabulary.chat_template


class EncodedPieces:
    """Tokens that are counted before they are listed: a list of what fits no context need not be made."""

    def __init__(self, pieces: Sequence[Piece], encoded: Sequence[tokenizers.Encoding]) -> None:
        self._pieces, self._encoded = pieces, encoded

    def __len__(self) -> int:
        return len(self._pieces) - len(self._encoded) + sum(map(len, self._encoded))

    def ids(self) -> list[int]:
        """All of them, control tokens included."""
        encoded = iter(self._encoded)
        return list(chain.from_iterable([p] if isinstance(p, int) else next(encoded).ids for p in self._pieces))


def _encoded(backend: tokenizers.Tokenizer, texts: list[str], add_special_tokens: bool) -> list[tokenizers.Encoding]:
    if sum(map(len, texts)) > LONG_TEXT:
        return backend.encode_batch_fast(texts, add_special_tokens=add_special_tokens)
    return [backend.encode(text, add_special_tokens=add_special_tokens) for text in texts]


def _require_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(f"the text is not valid Unicode: lone surrogate at position {error.start}") from error
