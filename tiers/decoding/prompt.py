"""A Prompt: the tokens of one request as a model reads it, rendered and encoded on first use and then cached."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from inference_core.errors import InvalidRequestError
from inference_core.tokenization.tokenizer import Piece, Tokenizer
from tiers.errors import TierRequestError


class Prompt(ABC):
    """For one thread at a time. All methods raise `TierRequestError` for what the model cannot read."""

    @property
    @abstractmethod
    def is_encoded(self) -> bool:
        """Whether `ids` and `count` are immediate; else they take time in proportion to the text."""

    @abstractmethod
    def ids(self) -> list[int]:
        """Return the tokens; at least one."""

    @abstractmethod
    def count(self, most: int) -> int:
        """Return the number of tokens; above `most` it may be any number between `most` and the true one."""

    @abstractmethod
    def give_up(self) -> None:
        """Mark the request as ended before encoding: it counts no tokens, because no model has read it."""


class TokenPrompt(Prompt):
    """Token ids given by the caller, which must be below `vocabulary`."""

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
    """The result of `render`: text, and the control tokens in it. `marked`: prepend the tokens that the model's file
    asks for. `param`: the caller's name for the text."""

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
        """See `Prompt`. Text with too many bytes for `most` tokens is not encoded."""
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
        # A list of tokens above the limit is of no use.
        if most is None or self._length <= most:
            self._ids, self._pieces = encoded.ids(), None

    def _rendered(self) -> Sequence[Piece]:
        if self._pieces is None:
            self._pieces = self._render()
        return self._pieces

    def _attempt(self, work: Callable[[], None]) -> None:
        """Encode once; a cached error is raised again without work."""
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
