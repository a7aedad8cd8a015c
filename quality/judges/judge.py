"""The seam of all judges: a prompt and two answers go in, a verdict comes out."""

from abc import ABC, abstractmethod
from typing import Any

import msgspec

from tiers.tier import Usage


class JudgeVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What one judge says. `no_worse` None is an abstention or a mere signal: no label can come of it.

    `score` in [0, 1] is the judge's own measure of agreement, None if it has none. `usage` is what asking models cost.
    `tie` marks a `no_worse` that rests on the judge seeing no difference.
    """

    no_worse: bool | None
    reason: str
    score: float | None = None
    tie: bool = False
    usage: tuple[Usage, ...] = ()


class Judge(ABC):
    """Contract: `judge` is a function of its arguments (and of a model, for judges that ask one), and never raises
    for odd texts: it abstains. Errors of a model it asks are passed on.
    """

    name: str

    @abstractmethod
    async def judge(
        self, *, prompt: str, answer: str, reference_answer: str, response_format: dict[str, Any] | None = None
    ) -> JudgeVerdict:
        """Compare `answer` with `reference_answer`, the strongest tier's (or the known right one), for `prompt`.

        `response_format`: the request's own, as OpenAI writes it, None where the answer was free.
        """
