"""The interface of all judges: a prompt and two answers in, a verdict out."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal

import msgspec

from tiers.conversation import Media
from tiers.tier import Usage

Basis = Literal["check", "agreement", "preference"]
"""What a verdict of "worse" rests on: a check of the answer itself, which needs no reference; that the answer differs
from the reference; or a model's preference."""


class JudgeVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """One judge's verdict."""

    no_worse: bool | None
    """None for an abstention or a mere signal, which makes no label."""
    reason: str
    score: float | None = None
    """The judge's own measure of agreement, in [0, 1]; None without one."""
    tie: bool = False
    """It says `no_worse` because the judge saw no difference."""
    place: Literal["first", "second"] | None = None
    """It abstained because it preferred that place in either order."""
    moved_to: Literal["answer", "reference"] | None = None
    """It abstained because it preferred that text also in a control, where it must lose."""
    usage: tuple[Usage, ...] = ()
    """Usage of the models it asked."""
    is_comparable: bool = True
    """False if the reference is not what was asked for, so that no rule can compare with it."""


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What an answer rests on besides the question: `text`, of calls and results of tools since then; `media`, images,
    audio and files."""

    text: str = ""
    media: tuple[Media, ...] = ()


NOTHING_ELSE = Seen()


class Judge(ABC):
    """Contract: `judge` is a function of its arguments (and of a model, for judges that ask one). It never raises for
    odd texts but abstains. Errors of a model it asks are propagated."""

    name: str
    # What its error rates are those of, for a judge that asks a model.
    fingerprint: str | None = None
    basis: ClassVar[Basis] = "preference"

    @abstractmethod
    async def judge(
        self, *, prompt: str, answer: str, reference_answer: str, response_format: dict[str, Any] | None = None
    ) -> JudgeVerdict:
        """Compare `answer` with `reference_answer`, the strongest tier's (or a known correct one), for `prompt`.

        `response_format`: as in the request, None if the answer was free text.
        """

    def having_seen(self, seen: Seen) -> "Judge":
        """Return this judge for answers that rest on `seen` as well; a rule reads the question alone."""
        return self

    def may_decide(self, prompt: str, response_format: dict[str, Any] | None) -> bool:
        """Return whether some answers to `prompt` exist on which it decides; False saves their cost."""
        return True
