"""Which tiers cannot take a request, whatever it is worth: by the caller's key, its length, or the tier's state."""

import time
from collections.abc import Mapping

import msgspec

from classifier.decision import Exclusion
from gateway.answering.ask import Ask
from tiers.catalog import Catalog
from tiers.tier import Tier
from tiers.tier_spec import TierSpec

NOT_ALLOWED = "the key may not use it"
# No tokeniser makes more tokens than bytes; a chat template adds less than this per turn and at its ends.
TEMPLATE_TOKENS_PER_TURN = 16
TEMPLATE_TOKENS = 64
# Our own instructions, and those of the templates that have any, are shorter than this.
TEMPLATE_TOKENS_FOR_TOOLS = 2048


def exclusions(
    ask: Ask, pinned: int | None, tiers: Mapping[int, Tier], catalog: Catalog
) -> tuple[list[Exclusion], list[int]]:
    """Tiers that cannot take the request now, and those among them whose context is too short for it."""
    found: list[Exclusion] = []
    too_long: list[int] = []
    most = most_tokens(ask)
    for number, tier in tiers.items():
        if pinned is not None and number != pinned:
            continue
        if not ask.caller.may_use(number):
            reason: str | None = NOT_ALLOWED
        elif reason := _context_problem(ask, most, tier, catalog.tier(number)):
            too_long.append(number)
        else:
            reason = _load_problem(ask, tier)
        if reason:
            found.append(Exclusion(tier=number, reason=reason))
    return found, too_long


def most_tokens(ask: Ask) -> int:
    """A bound on the prompt's tokens from its bytes."""
    if ask.messages is not None:
        text = sum(len(message.recorded_content().encode()) for message in ask.messages)
        if ask.tooling is not None:
            text += TEMPLATE_TOKENS_FOR_TOOLS + sum(len(msgspec.json.encode(t.definition())) for t in ask.tooling.tools)
        return text + TEMPLATE_TOKENS_PER_TURN * len(ask.messages) + TEMPLATE_TOKENS
    longest = max((len(p) if isinstance(p, list) else len(p.encode()) for p in ask.prompts or ()), default=0)
    return longest + TEMPLATE_TOKENS


def _context_problem(ask: Ask, most: int, tier: Tier, spec: TierSpec) -> str | None:
    """Why the request, of at most `most` tokens, cannot fit the tier's context; they are counted only in doubt."""
    wanted = ask.max_tokens or 1
    if most + wanted <= tier.max_context:
        return None
    prompt = max(map(tier.count_prompt_tokens, ask.generations(spec)))
    if prompt + wanted <= tier.max_context:
        return None
    return f"{prompt} prompt tokens and {wanted} answer tokens exceed the context of {tier.max_context} tokens"


def _load_problem(ask: Ask, tier: Tier) -> str | None:
    load = tier.load()
    if not load.healthy:
        return "the tier is down"
    if ask.deadline_seconds is None:
        return None
    left = ask.arrival + ask.deadline_seconds - time.monotonic()
    if load.predicted_wait_seconds <= left:
        return None
    return (
        f"its queue takes {load.predicted_wait_seconds * 1e3:.0f} ms, the deadline leaves {max(left, 0) * 1e3:.0f} ms"
    )
