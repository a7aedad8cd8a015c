"""What drawing and scheduling see of a grammar; the library behind it runs in processes of its own."""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from inference_core.errors import CoreError


class Matcher(Protocol):
    """Where one sequence is in its grammar: which tokens may come next, and which ones must.

    Questions are asked, sent, and their answers fetched later, so that those of many matchers are worked on together,
    beside the model. Answers depend on the accepted tokens alone. Not thread-safe: one thread at a time.
    """

    num_words: int
    """32-bit words of a mask."""

    @property
    def failure(self) -> CoreError | None:
        """Why the grammar cannot be followed any further; its masks allow nothing then."""

    def accept(self, token_id: int) -> None:
        """The sequence goes on with `token_id`, which its mask allowed."""

    def ask_forced(self) -> None:
        """`forced_tokens` will be fetched."""

    def ask_masks(self, drafts: Sequence[int]) -> None:
        """`masks` will be fetched, with these tokens drafted."""

    def send(self) -> None:
        """Have what was asked, of this matcher and others, worked on."""

    def forced_tokens(self) -> list[int]:
        """The next tokens, as far as the grammar leaves no choice; [] where there is one."""

    def masks(self) -> list[bytes]:
        """The masks of the next draws, one more than there are drafts: in words of 32 bits, bit `i % 32` of word
        `i // 32` is set if token `i` is allowed.

        The k-th is for the draw after the first k drafts; what follows a draft that is not allowed, or that ends the
        answer, will not be read.
        """


MatcherFactory = Callable[[], Matcher]


def ask_forced(matchers: Iterable[Matcher]) -> None:
    """Have the forced tokens of all of them worked out together."""
    asked = list(matchers)
    for matcher in asked:
        matcher.ask_forced()
    for matcher in asked:
        matcher.send()


def remaining_forced(forced: list[int], token_id: int) -> list[int] | None:
    """What is still forced after `token_id`; None if that has to be found out again."""
    return forced[1:] if len(forced) > 1 and forced[0] == token_id else None
