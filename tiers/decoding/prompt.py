"""A Prompt: the tokens of one request as a model reads it, rendered and encoded when first asked for, each once."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from inference_core.errors import InvalidRequestError
from inference_core.tokenization.tokenizer import Piece, Tokenizer
from tiers.errors import TierRequestError


class Prompt(ABC):
    """Of one thread at a time. All methods raise `TierRequestError` for what the model cannot read."""

    @property
    @abstractmethod
    def is_encoded(self) -> bool:
        """Whether `ids` and `count` take no time; else as long as the text is long."""

    @abstractmethod
    def ids(self) -> list[int]:
        """The tokens; at least one."""

    @abstractmethod
    def count(self, most: int) -> int:
        """How many tokens; of more than `most` perhaps some lower number above `most`."""

    @abstractmethod
    def give_up(self) -> None:
        """The request has ended before the prompt was encoded: it counts no tokens, since no model has read it."""


class TokenPrompt(Prompt):
    """Token ids that the caller gave, which must be below `vocabulary`."""

    is_encoded = True

    def __init__(self, ids: list[int], vocabulary: int) -> None:
        self._ids, self._vocabulary = ids, vocabulary

    def ids(self) -> list[int]:
        """See `Prompt`."""
        bad = [token for token in self._ids if not 0 <= token < self._vocabulary]
        if bad:
            raise TierRequestError(
                f"prompt: token ids {bad[:5]} are not below the vocabulary size {self._vocabulary}", "prompt"
            )
        return _some(self._ids)

    def count(self, most: int) -> int:
        """See `Prompt`."""
        return len(self._ids) if len(self._ids) > most else len(self.ids())

    def give_up(self) -> None:
        """See `Prompt`: there is nothing to encode."""


class TextPrompt(Prompt):
    """What `render` gives: text, and the control tokens in it. `marked`: the tokens that the model's file asks for are
    put before it. `param`: what the caller calls it."""

    def __init__(
        self, tokenizer: Tokenizer, render: Callable[[], Sequence[Piece]], *, marked: bool, param: str
    ) -> None:
        self._tokenizer, self._render, self._marked, self._param = tokenizer, render, marked, param
        self._pieces: Sequence[Piece] | None = None
        self._least: int | None = None
        self._length: int | None = None
        self._ids: list[int] | None = None
        self._refusal: tuple[str, str] | None = None

    @property
    def is_encoded(self) -> bool:
        """See `Prompt`."""
        return self._ids is not None or self._refusal is not None

    def ids(self) -> list[int]:
        """See `Prompt`."""
        if self._ids is None:
            self._attempt(self._encode)
        return _some(self._ids or [])

    def count(self, most: int) -> int:
        """See `Prompt`. What cannot be `most` tokens by its bytes is not encoded."""
        if self._length is None and (self._least is None or self._least <= most):
            self._attempt(lambda: self._count(most))
        return (self._least or 0) if self._length is None else self._length

    def give_up(self) -> None:
        """See `Prompt`."""
        if not self.is_encoded:
            self._length = 0

    def _count(self, most: int) -> None:
        if self._least is None:
            self._least = self._tokenizer.least_tokens(self._rendered())
        if self._least <= most:
            self._encode(most)

    def _encode(self, most: int | None = None) -> None:
        encoded = self._tokenizer.encode_pieces(self._rendered(), add_special_tokens=self._marked)
        self._length = len(encoded)
        # Nobody needs a list of what is too long.
        if most is None or self._length <= most:
            self._ids, self._pieces = encoded.ids(), None

    def _rendered(self) -> Sequence[Piece]:
        if self._pieces is None:
            self._pieces = self._render()
        return self._pieces

    def _attempt(self, work: Callable[[], None]) -> None:
        """What was refused once is refused again without any work."""
        if self._refusal is None:
            try:
                return work()
            except InvalidRequestError as error:
                self._refusal = str(error), error.param or self._param
        raise TierRequestError(*self._refusal)


def _some(ids: list[int]) -> list[int]:
    if not ids:
        raise TierRequestError("prompt: must not be empty", "prompt")
    return ids
