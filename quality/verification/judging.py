"""What the judges say of one answer of a verification: calls of tools are compared with calls, texts with texts; and
second opinions, since the strongest tier's one answer is a reference, not the truth, and "worse" must be confirmed.

Where a trusted judge says "worse", the reference's tier is asked again and, for answers that can be compared for
agreement, one further tier. Where the reference's tier contradicts itself or the other tier agrees with the answer, the
verdict is "uncertain": nothing is learned from it, and people review it (SPEC QM-09). A tier that agrees with neither
contradicts nothing: what only the strongest tier knows has to be learned as such."""

from collections.abc import Awaitable, Callable
from typing import NamedTuple

import msgspec

from quality.judges import json_answers
from quality.judges.judge import NOTHING_ELSE, Basis, JudgeVerdict, Seen
from quality.judges.panel import Finding, Panel
from quality.verification.job import Label, VerificationJob
from tiers.conversation import Call, Turn
from tiers.tier import FinishReason, Usage

MOST_OPINIONS = 2
# The temperature of the second sample, and its seed: verification is repeatable.
SECOND_TEMPERATURE = 0.7
SECOND_SEED = 1


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """A tier's answer: a text, `calls` of tools, or both."""

    text: str
    calls: tuple[Call, ...] = ()
    finish_reason: FinishReason | None
    cost_usd: float | None = None
    """What it cost the check; None if served."""

    @property
    def is_whole(self) -> bool:
        """Whether the answer is complete and not empty; only such answers are compared."""
        return self.finish_reason in ("stop", "tool_calls") and bool(self.calls or self.text.strip())

    @property
    def shown(self) -> str:
        return Turn.of("assistant", self.text, calls=self.calls).recorded_content()


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
    """An answer that was called worse than a reference."""

    answer: Reply
    reference: Reply
    tier: int
    """The tier that gave the reference."""
    other: int | None
    """The strongest tier besides that one and the judged one, if there is one."""
    basis: Basis
    """By what it was called worse."""


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
    """Ask for up to `opinions` further answers; return what contradicts "worse", or None, and the usage of judging.

    The first opinion is a second answer of the reference's tier: the answer must be worse than that one too, and where
    the verdict rests on agreement, the tier must agree with itself. The second, asked for in that case alone, is
    another tier's answer, which must not agree with the judged one. Errors of tiers and judges are propagated.
    """
    usage: list[Usage] = []

    async def verdict(answer: Reply, reference: Reply) -> JudgeVerdict:
        said = await compare(answer, reference)
        usage.extend(said.usage)
        return said

    async def contradiction() -> str | None:
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
    because = await contradiction() if opinions and compared.basis != "check" else None
    return because, tuple(usage)


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What is found on a tier's answer."""

    answer: Reply | None
    label: Label | None
    reason: str
    finding: Finding | None = None
    opinions_usd: float | None = None
    """What further opinions cost; None if none was needed."""

    @classmethod
    def of(cls, answer: Reply, finding: Finding) -> "Verdict":
        """Return the verdict that a panel's finding comes to."""
        label: Label | None = None
        if finding.label is not None:
            label = "tie" if finding.tie else "no_worse" if finding.label else "worse"
        return cls(answer=answer, label=label, reason=finding.reason, finding=finding)


class Comparing(NamedTuple):
    """How a judge compares: what its verdict of "worse" rests on, and its verdicts on other answers."""

    basis: Basis
    compare: Compare


def prompt_text(messages: list[dict[str, str]]) -> str:
    """Return what was asked: the last user turn, or the last message without one."""
    asked = [message["content"] for message in messages if message["role"] == "user"]
    return asked[-1] if asked else messages[-1]["content"]


def turns_of(messages: list[dict[str, str]]) -> list[Turn]:
    """Return the turns of a record, which are texts."""
    return [Turn.of(message["role"], message["content"]) for message in messages]


def seen_with(job: VerificationJob) -> Seen:
    """Return what the answers rest on besides the question."""
    return NOTHING_ELSE if job.turn is None else job.turn.seen


def served_reply(job: VerificationJob) -> Reply:
    if job.turn is None:
        return Reply(text=job.answer, finish_reason="stop")
    return Reply(text=job.turn.text, calls=job.turn.calls, finish_reason="stop")


def flaw_of_served(job: VerificationJob) -> str | None:
    """Return why the served answer is no good whatever the strongest tier says, by the caller's next request or by its
    calls alone; None for a shadow, whose reference it is."""
    if job.turn is None or job.purpose == "shadow":
        return None
    if job.next_step == "failed":
        return "the next request says that the call failed"
    return json_answers.flaw_of(job.turn.calls, job.turn.tooling)


async def find(panel: Panel, job: VerificationJob, number: int, answer: Reply, reference: Reply) -> Finding:
    """Return what the judges find on the answer of tier `number`: the judge of calls where an answer has any or is
    malformed, else those of texts."""
    turn = job.turn
    if turn is not None:
        if json_answers.flaw_of(reference.calls, turn.tooling) is not None:
            return panel.on_calls(JudgeVerdict(no_worse=None, reason="the reference itself is malformed"))
        if (flaw := _flaw(job, number, answer)) is not None:
            return panel.on_calls(JudgeVerdict(no_worse=False, score=0.0, reason=flaw))
        if answer.calls or reference.calls:
            return panel.on_calls(json_answers.judge_calls(turn.tooling, answer.calls, reference.calls))
    return await panel.judge(
        prompt=prompt_text(job.messages),
        answer=answer.text,
        reference_answer=reference.text,
        response_format=job.response_format,
        seen=seen_with(job),
    )


def comparing_by(panel: Panel, job: VerificationJob, number: int, answer: Reply, finding: Finding) -> Comparing | None:
    """Return how the judge of `finding`, on tier `number`'s answer, compares further ones; None if not on the panel."""
    if finding.judge == json_answers.NAME:
        tooling = None if job.turn is None else job.turn.tooling

        async def by_calls(reply: Reply, reference: Reply) -> JudgeVerdict:
            return json_answers.judge_calls(tooling, reply.calls, reference.calls)

        return Comparing("agreement" if _flaw(job, number, answer) is None else "check", by_calls)
    panel_judge = panel.named(finding.judge)
    if panel_judge is None:
        return None
    judge = panel_judge.having_seen(seen_with(job))

    async def by_text(reply: Reply, reference: Reply) -> JudgeVerdict:
        return await judge.judge(
            prompt=prompt_text(job.messages),
            answer=reply.text,
            reference_answer=reference.text,
            response_format=job.response_format,
        )

    return Comparing(judge.basis, by_text)


def _flaw(job: VerificationJob, number: int, answer: Reply) -> str | None:
    served = flaw_of_served(job) if number == job.served_tier else None
    return served or json_answers.flaw_of(answer.calls, None if job.turn is None else job.turn.tooling)
