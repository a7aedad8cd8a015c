"""The seam between speculation and who guesses the next tokens."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

from inference_core.protocol import Knobs
from inference_core.scheduling.sequence import Sequence
from inference_core.step_plan import DraftLaw


@dataclass(slots=True, frozen=True)
class Draft:
    """Tokens proposed to follow a sequence. `laws`: the distribution [vocabulary] that each was drawn from, where it
    was drawn by rejection's rules; None if the tokens do not depend on chance, or share it with the model's draws."""

    token_ids: list[int]
    laws: list[DraftLaw] | None = None


class Reach(NamedTuple):
    """How many tokens can be proposed now, and what they promise: a class, small numbers, by how likely they are right.
    Acceptance is measured for each class apart."""

    most: int
    promise: int = 0


class Drafter(ABC):
    """Proposes what running sequences, whose tokens are all known, may go on with (SPEC SD-12).

    A wrong proposal costs time and never changes what is said. Methods are called between steps, by one thread.
    """

    @abstractmethod
    def reach(self, sequence: Sequence, knobs: Knobs, most: int) -> Reach:
        """What could be proposed now, up to `most` tokens. Cheap: asked for in every step."""

    @abstractmethod
    def propose(self, wanted: list[tuple[Sequence, int]], knobs: Knobs) -> list[Draft]:
        """Up to so many tokens for each of these; an empty draft where there is none after all."""

    @abstractmethod
    def seconds(self, sequences: int) -> float:
        """What one more token for so many sequences takes to propose."""

    @abstractmethod
    def forget(self, sequence: Sequence) -> None:
        """`sequence` gives up its seat: what is held for it is free on return. It may be unknown."""

    def give_way(self) -> bool:
        """Free whatever memory of the arena is held; whether there was any."""
        return False

    def check_integrity(self) -> None:  # noqa: B027  most hold nothing that could be wrong
        """Raises `IntegrityError` if memory is held that nobody needs, or the other way round."""
