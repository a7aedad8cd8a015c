"""The interface of drafters: they propose the next tokens of sequences."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

from inference_core.protocol import Knobs
from inference_core.scheduling.sequence import Sequence
from inference_core.step_plan import DraftLaw


@dataclass(slots=True, frozen=True)
class Draft:
    """Tokens proposed to follow a sequence. `laws`: the distribution [vocabulary] that each was drawn from, for
    rejection sampling; None if the tokens are deterministic, or drawn with the model's own random numbers."""

    token_ids: list[int]
    laws: list[DraftLaw] | None = None


class Reach(NamedTuple):
    """How many tokens can be proposed now, and their `promise`: a small class number by expected acceptance, which is
    measured per class."""

    most: int
    promise: int = 0


class Drafter(ABC):
    """Proposes continuations of running sequences whose tokens are all known (SPEC SD-12).

    A wrong proposal costs time and never changes the answer. Methods are called between steps, by one thread.
    """

    @abstractmethod
    def reach(self, sequence: Sequence, knobs: Knobs, most: int) -> Reach:
        """Return what could be proposed now, up to `most` tokens. Called in every step, so it must be cheap."""

    @abstractmethod
    def propose(self, wanted: list[tuple[Sequence, int]], knobs: Knobs) -> list[Draft]:
        """Propose up to so many tokens for each of these; a draft may be empty."""

    @abstractmethod
    def seconds(self, sequences: int) -> float:
        """Seconds to propose one more token for so many sequences."""

    @abstractmethod
    def forget(self, sequence: Sequence) -> None:
        """Free what is held for `sequence`, which stops running; it may be unknown."""

    def give_way(self) -> bool:
        """Free all arena memory held; return whether there was any."""
        return False

    def check_integrity(self) -> None:  # noqa: B027  most hold no memory
        """Raises `IntegrityError` if more or less memory is held than running sequences need."""
