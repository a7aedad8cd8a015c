"""One model's tokeniser: text to token ids and back, safe against control tokens in untrusted text."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from inference_core.errors import InvalidRequestError
from inference_core.tokenization.control_tokens import ControlToken, ControlTokens, TextMask

if TYPE_CHECKING:
    import tokenizers

    from inference_core.tokenization.chat_template import ChatTemplate
    from inference_core.tokenization.token_bound import TokenBound

# Longer text takes milliseconds, during which other threads should run: the library's batch call encodes it, which
# releases the interpreter lock and costs a little more.
LONG_TEXT = 4096

# Plain text, and the id of a control token.
Piece = str | int


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """The contents of a tokeniser file of any format.

    `backend` encodes text at the start of a prompt, `continued` text after a control token; they differ only if a space
    is added before the start. `literal_tokens`: added tokens that stand for their own text. `to_bytes` converts the
    printable form of any other token to bytes. `bound`: lower bound on a text's tokens; None if unknown.
    """

    backend: "tokenizers.Tokenizer"
    continued: "tokenizers.Tokenizer"
    controls: Sequence[ControlToken]
    literal_tokens: Mapping[int, str]
    to_bytes: Callable[[str], bytes]
    chat_template: "ChatTemplate | None"
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    bound: "TokenBound | None" = None


class Tokenizer:
    """`encode` never produces control tokens; only a chat template can (`encode_chat`). Thread-safe."""

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
        return self.encode_pieces([text], add_special_tokens=add_special_tokens).ids()

    def encode_continued(self, text: str) -> list[int]:
        """Encode `text` literally, as text that continues other text."""
        _require_unicode(text)
        return self._vocabulary.continued.encode(text, add_special_tokens=False).ids

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **extra: Any
    ) -> list[int]:
        """Encode the rendered chat: control tokens that the template writes are parsed, those in `messages` and
        `extra` are plain text, so that no caller can forge a turn. Raises InvalidRequestError(param="messages").
        """
        pieces = self.chat_pieces(messages, add_generation_prompt=add_generation_prompt, **extra)
        return self.encode_pieces(pieces).ids()

    def chat_pieces(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **extra: Any
    ) -> list[Piece]:
        """The rendered chat of `encode_chat`, not yet encoded."""
        disguise = TextMask(self._controls.texts, [messages, extra])
        rendered = self._template.render(
            disguise.apply(messages), add_generation_prompt=add_generation_prompt, extra=disguise.apply(extra)
        )
        return [piece if isinstance(piece, int) else disguise.remove(piece) for piece in self._controls.split(rendered)]

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
        """Render the chat as text for people; for the model use `encode_chat`, which distinguishes the template's own
        control tokens.
        """
        return self._template.render(messages, add_generation_prompt=add_generation_prompt, extra=extra)

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes of one token, possibly part of a UTF-8 character; b"" for unknown ids."""
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self._make_bytes(token_id)
        return known

    def token_text(self, token_id: int) -> str | None:
        """The text that a token adds to a text of whole characters: "" for control tokens; None if its bytes are not
        whole characters.
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

    def ids(self) -> list[int]:
        """All token ids, including control tokens."""
        encoded = iter(self._encoded)
        return list(chain.from_iterable([p] if isinstance(p, int) else next(encoded).ids for p in self._pieces))


def _encoded(
    backend: "tokenizers.Tokenizer", texts: list[str], add_special_tokens: bool
) -> "list[tokenizers.Encoding]":
    if sum(map(len, texts)) > LONG_TEXT:
        return backend.encode_batch_fast(texts, add_special_tokens=add_special_tokens)
    return [backend.encode(text, add_special_tokens=add_special_tokens) for text in texts]


def _require_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(f"the text is not valid Unicode: lone surrogate at position {error.start}") from error
