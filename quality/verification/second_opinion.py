"""Second opinions: the strongest tier's one answer is a reference, not the truth, so "worse" must be confirmed.

Where a trusted judge says "worse", the reference's tier is asked again and, for answers that can be compared for
agreement, one further tier. Where the reference's tier contradicts itself or the other tier agrees with the answer, the
verdict is "uncertain": nothing is learned from it, and people review it (SPEC QM-09). A tier that agrees with neither
contradicts nothing: what only the strongest tier knows has to be learned as such.
"""

from collections.abc import Awaitable, Callable

import msgspec

from quality.judges.judge import Basis, JudgeVerdict
from tiers.tier import ChatMessage, FinishReason, Usage
from tiers.tool_types import ToolCall

MOST_OPINIONS = 2
# The temperature of the second sample, and its seed: verification is repeatable.
SECOND_TEMPERATURE = 0.7
SECOND_SEED = 1


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """A tier's answer: a text, `calls` of tools, or both. `cost_usd`: what it cost the verification; None for the
    served one."""

    text: str
    calls: tuple[ToolCall, ...] = ()
    finish_reason: FinishReason | None
    cost_usd: float | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the answer is complete and not empty; only such answers are compared."""
        return self.finish_reason in ("stop", "tool_calls") and bool(self.calls or self.text.strip())

    @property
    def shown(self) -> str:
        """The answer as one text, as records have it."""
        return ChatMessage(role="assistant", content=self.text, tool_calls=self.calls).recorded_content()


class OpinionsGiven(msgspec.Struct, frozen=True, kw_only=True):
    """How many verdicts of "worse" were confirmed and how many ended as uncertain, and what asking cost in US dollars,
    judging included."""

    confirmed: int = 0
    uncertain: int = 0
    cost_usd: float = 0.0

    def with_one(self, *, uncertain: bool, cost_usd: float) -> "OpinionsGiven":
        """Return the counts after one more verdict."""
        return OpinionsGiven(
            confirmed=self.confirmed + (not uncertain),
            uncertain=self.uncertain + uncertain,
            cost_usd=self.cost_usd + cost_usd,
        )


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """The answers of which `answer` was called worse than `reference`, by `basis`. `tier` gave the reference; `other`,
    if there is one, is the strongest tier besides it and the judged one."""

    answer: Reply
    reference: Reply
    tier: int
    other: int | None
    basis: Basis


Compare = Callable[[Reply, Reply], Awaitable[JudgeVerdict]]
"""Return the verdict on an answer, against another one as the reference."""
AskAgain = Callable[[], Awaitable[Reply]]
AskOther = Callable[[int], Awaitable[Reply | None]]
"""Return that tier's answer; None from a tier that cannot answer."""


def other_tier(tiers: list[int], reference: int, judged: int) -> int | None:
    """Return the strongest of `tiers`, ascending, besides the reference's and the judged one; None without one."""
    others = [tier for tier in tiers if tier not in (reference, judged)]
    return others[-1] if others else None


async def objection(
    compare: Compare, compared: Compared, opinions: int, again: AskAgain, ask: AskOther
) -> tuple[str | None, tuple[Usage, ...]]:
    """Ask for up to `opinions` further answers; return what contradicts "worse", None for nothing, and the usage of
    judging.

    The first opinion is a second answer of the reference's tier: the answer must be worse than that one too, and where
    the verdict rests on agreement, the tier must agree with itself. The second, asked for in that case alone, is
    another tier's answer, which must not agree with the judged one. Errors of tiers and judges are propagated.
    """
    usage: list[Usage] = []

    async def verdict(answer: Reply, reference: Reply) -> JudgeVerdict:
        said = await compare(answer, reference)
        usage.extend(said.usage)
        return said

    async def found() -> str | None:
        second = await again()
        if not second.is_whole:
            return f"the second answer of tier {compared.tier} is empty or was cut off"
        said = await verdict(compared.answer, second)
        if said.no_worse is not False:
            return f"compared with a second answer of tier {compared.tier} it is not worse: {said.reason}"
        if compared.basis != "agreement":
            return None
        said = await verdict(second, compared.reference)
        if not said.no_worse:
            return f"tier {compared.tier} answered differently when asked again: {said.reason}"
        if opinions < MOST_OPINIONS or compared.other is None:
            return None
        other = await ask(compared.other)
        if other is None or not other.is_whole:
            return None
        said = await verdict(compared.answer, other)
        return f"tier {compared.other} agrees with it: {said.reason}" if said.no_worse else None

    # A check of the answer itself needs no opinion.
    because = await found() if opinions and compared.basis != "check" else None
    return because, tuple(usage)
