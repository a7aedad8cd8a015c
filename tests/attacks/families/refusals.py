"""Attacks by what a server refuses: words of a request that it repeats, and values that it does not take."""

import json
from collections.abc import Iterator
from random import Random
from typing import Any

from tests.attacks.echo_upstream import REFUSED, TOLD
from tests.attacks.exchange import Answer
from tests.attacks.families.framing import outcome_of
from tests.attacks.targets import CHAT, HELLO, Target
from tests.hostile.target import Outcome, attack_class
from tests.tiers.remote.scripted_refusals import refusal

NUMBERS = 10_000
FIELDS: dict[str, Any] = {
    "model": "tier-1", "max_tokens": 300, "temperature": 0.7, "top_p": 0.9, "seed": 7, "stop": ["END"],
    "metadata": {"a": "b"}, "presence_penalty": 0.5, "reasoning_effort": "high",
}  # fmt: skip


@attack_class("refusals of upstreams", 600, "keyed")
def refusals(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Refusals in many words, forms, codes and envelopes, of requests of two keys of a team: another tenant's requests
    reach the same tier with all their fields and limits."""
    usual = _fields_of(_told(target))
    for _ in range(count // 2):
        number = draw.randrange(NUMBERS)
        found = refusal(number)
        body = FIELDS | {"messages": [{"role": "user", "content": found.said}], "user": f"{REFUSED}{number}"}
        # What is given besides may be repeated as well.
        body |= draw.choice([{}, {"stop": [found.said[:64]]}, {"metadata": {"a": found.said}}, {"n": 2}])
        answer = target.ask("POST", CHAT, body, key=target.keys[draw.choice(["ada", "ann"])], headers=_UNCACHED)
        # An error within an answer is the server's failure.
        yield outcome_of(answer, f"refusal {number}")._replace(expected=found.status == 200)
        told = _told(target)
        is_same = _fields_of(told) == usual is not None
        changed = "" if is_same else f"another tenant's request changed: {told.headers.get('x-aio-tier')} {told.text}"
        yield outcome_of(told, f"another tenant after refusal {number}", changed[:400])


_UNCACHED = {"x-aio-cache": "off"}


def _told(target: Target) -> Answer:
    """The answer to bob, which says what the server got of bob's request."""
    return target.ask("POST", CHAT, FIELDS | {"messages": HELLO, "user": TOLD}, headers=_UNCACHED)


def _fields_of(answer: Answer) -> Any:
    """None where there is no answer of the tier that was asked."""
    if answer.status != 200 or answer.headers.get("x-aio-tier") not in ("1", "tier-1"):
        return None
    return json.loads(bytes.fromhex(answer.json["choices"][0]["message"]["content"]))
