"""Verdicts of a guardrail's server that are none: nothing goes on that it did not let pass."""

from collections.abc import Iterator
from random import Random

from tests.attacks.families.framing import outcome_of
from tests.attacks.odd_guardrail import MASKED, RIGHT, SLOW, WRONG
from tests.attacks.targets import CHAT, Target
from tests.hostile.target import Outcome, attack_class

VERDICTS = (*RIGHT, "block", "replace")


@attack_class("answers of guardrails", 600, "guarded")
def odd_verdicts(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Answers that are nested, cut off, no UTF-8, of wrong types, endless or late, about a request or about its answer:
    no tier sees the request, and its caller sees nothing of the answer."""
    fixed = [(stage, name) for stage in ("request", "answer") for name in (*WRONG, *VERDICTS)]
    for number in range(count):
        stage, name = fixed[number] if number < len(fixed) else (draw.choice(("request", "answer")), _drawn(draw))
        text = f"number {number} guard:{stage}:{name}"
        body = {"model": "tier-1", "messages": [{"role": "user", "content": text}], "stream": draw.random() < 0.3}
        before = target.upstream.asked
        answer = target.ask("POST", CHAT, body, headers={"x-aio-cache": "off"})
        left, shown = target.upstream.asked != before, f"number {number} guard" in answer.text
        refused = answer.status == 503 or (body["stream"] and b"guardrail_failed" in answer.body)
        if name in RIGHT:
            bypass = "" if answer.status == 200 and shown else f"a verdict was not followed: {answer.text[:200]}"
        elif name == "replace":
            replaced = MASKED in (str(target.upstream.last) if stage == "request" else answer.text)
            bypass = "" if replaced and not shown else f"texts were not replaced: {answer.text[:200]}"
        else:
            bypass = (
                "a tier saw the request"
                if left and stage == "request"
                else "its caller saw the answer"
                if shown
                else ""
            )
            if name != "block" and not refused:
                bypass = bypass or f"no refusal: {answer.status} {answer.text[:200]}"
        failed = name not in VERDICTS and answer.code == "guardrail_failed"
        yield outcome_of(answer, f"{stage} {name} #{number}", bypass)._replace(expected=failed)


def _drawn(draw: Random) -> str:
    # Each of the late ones takes the guardrail's whole time.
    return draw.choice(SLOW) if draw.random() < 0.1 else draw.choice((*WRONG, *VERDICTS))
