"""What the judges say of one answer of a verification: calls of tools are compared with calls, texts with texts."""

from typing import NamedTuple

import msgspec

from quality.judges import tool_calls
from quality.judges.judge import NOTHING_ELSE, Basis, JudgeVerdict, Seen
from quality.judges.panel import Finding, Panel
from quality.verification.job import Label, VerificationJob
from quality.verification.second_opinion import Compare, Reply


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What is found on a tier's answer. `opinions_usd`: what further opinions cost; None if none was needed."""

    answer: Reply | None
    label: Label | None
    reason: str
    finding: Finding | None = None
    opinions_usd: float | None = None

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


def seen_with(job: VerificationJob) -> Seen:
    """Return what the answers rest on besides the question."""
    return NOTHING_ELSE if job.turn is None else job.turn.seen


def served_reply(job: VerificationJob) -> Reply:
    """Return the served answer."""
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
    return tool_calls.flaw_of(job.turn.calls, job.turn.tooling)


async def find(panel: Panel, job: VerificationJob, number: int, answer: Reply, reference: Reply) -> Finding:
    """Return what the judges find on the answer of tier `number`: the judge of calls where an answer has any or is
    malformed, else those of texts."""
    turn = job.turn
    if turn is not None:
        if tool_calls.flaw_of(reference.calls, turn.tooling) is not None:
            return panel.on_calls(JudgeVerdict(no_worse=None, reason="the reference itself is malformed"))
        if (flaw := _flaw(job, number, answer)) is not None:
            return panel.on_calls(JudgeVerdict(no_worse=False, score=0.0, reason=flaw))
        if answer.calls or reference.calls:
            return panel.on_calls(tool_calls.judge_calls(turn.tooling, answer.calls, reference.calls))
    return await panel.judge(
        prompt=prompt_text(job.messages),
        answer=answer.text,
        reference_answer=reference.text,
        response_format=job.response_format,
        seen=seen_with(job),
    )


def comparing_by(panel: Panel, job: VerificationJob, number: int, answer: Reply, finding: Finding) -> Comparing | None:
    """Return how the judge of `finding`, on the answer of tier `number`, compares further answers; None if it is not on
    the panel."""
    if finding.judge == tool_calls.NAME:
        tooling = None if job.turn is None else job.turn.tooling

        async def by_calls(one: Reply, other: Reply) -> JudgeVerdict:
            return tool_calls.judge_calls(tooling, one.calls, other.calls)

        return Comparing("agreement" if _flaw(job, number, answer) is None else "check", by_calls)
    known = panel.named(finding.judge)
    if known is None:
        return None
    judge = known.having_seen(seen_with(job))

    async def by_text(one: Reply, other: Reply) -> JudgeVerdict:
        return await judge.judge(
            prompt=prompt_text(job.messages),
            answer=one.text,
            reference_answer=other.text,
            response_format=job.response_format,
        )

    return Comparing(judge.basis, by_text)


def _flaw(job: VerificationJob, number: int, answer: Reply) -> str | None:
    served = flaw_of_served(job) if number == job.served_tier else None
    return served or tool_calls.flaw_of(answer.calls, None if job.turn is None else job.turn.tooling)
