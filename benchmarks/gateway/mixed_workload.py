"""A workload of a given mix: prompts that routing sends to the tiers in the shares that were asked for (RT-10)."""

import random
from collections.abc import Iterable, Sequence

import msgspec

from gateway.inference.routing.router import RoutingService
from gateway.planning.backtests.backtest import dry_request
from tiers.tier import ChatMessage


class MixError(ValueError):
    """The mix cannot be made of these prompts; the message says what is missing."""


class MixedPrompt(msgspec.Struct, frozen=True):
    """One prompt and the tier that it goes to, in the form of a back-test's log."""

    id: str
    messages: list[dict[str, str]]
    tier: int


def counts_of(mix: Sequence[float], total: int) -> list[int]:
    """How many of `total` each share is, by largest remainders: each within one of its share.

    Raises `MixError` unless the shares are non-negative and sum to 1.
    """
    if min(mix) < 0 or abs(sum(mix) - 1) > 1e-6:
        raise MixError(f"the mix {list(mix)} must be shares that sum to 1")
    counts = [int(share * total) for share in mix]
    by_remainder = sorted(range(len(mix)), key=lambda k: counts[k] - mix[k] * total)
    for k in by_remainder[: total - sum(counts)]:
        counts[k] += 1
    return counts


def mixed_workload(
    routing: RoutingService, prompts: Iterable[str], mix: Sequence[float], total: int, seed: int = 0
) -> list[MixedPrompt]:
    """`total` prompts, each once, in an order that `seed` draws; every prompt is decided as a request for `auto` is.

    Raises `MixError` if a tier gets too few of `prompts`: another quality target moves them.
    """
    if len(mix) != routing.served.strongest:
        raise MixError(f"the mix has {len(mix)} shares and the catalogue {routing.served.strongest} tiers")
    wanted = counts_of(mix, total)
    found: list[list[MixedPrompt]] = [[] for _ in wanted]
    given = list(dict.fromkeys(prompts))
    random.Random(seed).shuffle(given)
    for number, prompt in enumerate(given):
        tier = routing.route(dry_request([ChatMessage(role="user", content=prompt)])).tier
        if len(found[tier - 1]) < wanted[tier - 1]:
            turn = {"role": "user", "content": prompt}
            found[tier - 1].append(MixedPrompt(f"mix-{number}", [turn], tier))
        if all(len(got) == want for got, want in zip(found, wanted, strict=True)):
            break
    for tier, (got, want) in enumerate(zip(found, wanted, strict=True), start=1):
        if len(got) < want:
            raise MixError(
                f"of {len(given)} prompts only {len(got)} go to tier {tier} and {want} are wanted; ask for fewer "
                "rows or another quality target"
            )
    made = [one for got in found for one in got]
    random.Random(seed).shuffle(made)
    return made
