"""The interface of grammars for sampling and scheduling; the library behind it runs in other processes."""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from inference_core.errors import CoreError


class Matcher(Protocol):
    """One sequence's state in its grammar: which tokens are allowed next, and which are forced.

    Questions are queued, sent, and their answers fetched later, so that many matchers are processed together and in
    parallel with the model. Answers depend only on the accepted tokens. Not thread-safe.
    """

    num_words: int
    """32-bit words of a mask."""

    @property
    def failure(self) -> CoreError | None:
        """Why the grammar can no longer be followed; its masks then allow nothing."""

    def accept(self, token_id: int) -> None:
        """Advance by `token_id`, which the mask allowed."""

    def ask_forced(self) -> None:
        """Queue the question for `forced_tokens`."""

    def ask_masks(self, drafts: Sequence[int]) -> None:
        """Queue the question for `masks`, with these drafted tokens."""

    def send(self) -> None:
        """Send the queued questions of this matcher and of others of its grammar."""

    def forced_tokens(self) -> list[int]:
        """The next tokens as far as the grammar leaves no choice; [] if there is a choice."""

    def masks(self) -> list[bytes]:
        """The masks of the next draws, one more than there are drafts, in words of 32 bits: bit `i % 32` of word
        `i // 32` is set if token `i` is allowed.

        The k-th is for the draw after the first k drafts. Masks after a draft that is not allowed, or that ends the
        answer, are not read.
        """


MatcherFactory = Callable[[], Matcher]


def ask_forced(matchers: Iterable[Matcher]) -> None:
    """Request the forced tokens of all matchers together."""
    asked = list(matchers)
    for matcher in asked:
        matcher.ask_forced()
    for matcher in asked:
        matcher.send()


def remaining_forced(forced: list[int], token_id: int) -> list[int] | None:
    """The tokens still forced after `token_id`; None if they must be requested again."""
    return forced[1:] if len(forced) > 1 and forced[0] == token_id else None
