"""Which answers are verified: a repeatable draw by request id, under a ceiling and a budget."""

import hashlib
from typing import Literal

import msgspec

from quality.record import Record

_PERSON = b"aio-sampling-v1"


class SamplingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Live knobs of sampling (SPEC QM-01, QM-10).

    `rate` is a ceiling; `budget_share` bounds what verification may cost as a share of the trailing day's serving
    cost. `key` separates deployments, so that nobody can choose request ids that are never sampled.
    """

    rate: float = 0.05
    tiers: tuple[int, ...] = (1, 2)
    budget_share: float = 0.05
    window_seconds: float = 86_400.0
    key: str = ""

    def __post_init__(self) -> None:
        if not 0.0 <= self.rate <= 1.0:
            raise ValueError(f"sampling rate is {self.rate}; it must lie between 0 and 1")
        if self.budget_share < 0.0:
            raise ValueError(f"verification budget share is {self.budget_share}; it must not be negative")
        if self.window_seconds <= 0.0:
            raise ValueError(f"budget window is {self.window_seconds} seconds; it must be positive")


class Spending(msgspec.Struct, frozen=True, kw_only=True):
    """US dollars and counts of the trailing window; `committed_usd` is spent plus reserved by what is under way."""

    serving_usd: float = 0.0
    eligible_requests: int = 0
    committed_usd: float = 0.0
    verifications: int = 0


class Draw(msgspec.Struct, frozen=True, kw_only=True):
    """The fate of one request. `probability` is the chance it had of being drawn, for weighting (Horvitz-Thompson)."""

    sampled: bool
    probability: float
    reason: Literal["drawn", "not drawn", "tier", "not a chat", "no consent", "not answered", "no budget"]


def uniform(request_id: str, key: str = "") -> float:
    """A number in [0, 1) that depends on `request_id` and `key` alone."""
    digest = hashlib.blake2b(
        request_id.encode(), digest_size=8, key=hashlib.blake2b(key.encode()).digest(), person=_PERSON
    )
    return int.from_bytes(digest.digest(), "big") / 2**64


def admits(spending: Spending, bound_usd: float, share: float) -> bool:
    """Whether a verification that costs at most `bound_usd` fits: what is committed never passes the budget."""
    return spending.committed_usd + bound_usd <= share * spending.serving_usd


def affordable_rate(spending: Spending, bound_usd: float, settings: SamplingSettings) -> float:
    """The rate at which verifying eligible requests would use the budget up and no more, at most the ceiling.

    The price of one verification is the window's mean, or `bound_usd` while nothing has been verified. Thinning the
    draw evenly keeps the sample representative; a bare cap would verify the first requests of each day only.
    """
    price = spending.committed_usd / spending.verifications if spending.verifications else bound_usd
    if price <= 0.0 or spending.eligible_requests == 0:
        return settings.rate
    budget = settings.budget_share * spending.serving_usd
    return min(settings.rate, budget / (spending.eligible_requests * price))


def eligible(record: Record, settings: SamplingSettings) -> Draw | None:
    """The reason why `record` can never be drawn, or None if it can."""
    if record.tier not in settings.tiers:
        return Draw(sampled=False, probability=0.0, reason="tier")
    if record.api != "chat":
        # A raw continuation has no question that another answer could be better at.
        return Draw(sampled=False, probability=0.0, reason="not a chat")
    if not record.messages or record.answer is None:
        return Draw(sampled=False, probability=0.0, reason="no consent")
    # An answer that was cut off says little about its tier, and an uncut one of the verifier would be no fair match.
    if record.status != "ok" or record.finish_reason != "stop" or not record.answer.strip():
        return Draw(sampled=False, probability=0.0, reason="not answered")
    return None


def draw(record: Record, spending: Spending, bound_usd: float, settings: SamplingSettings) -> Draw:
    """Decide on `record`; the same request id with the same spending always gets the same answer."""
    refused = eligible(record, settings)
    if refused is not None:
        return refused
    # The store lags behind serving: while it knows of no request yet, only the claim can tell what is affordable.
    if spending.eligible_requests and not admits(spending, bound_usd, settings.budget_share):
        return Draw(sampled=False, probability=0.0, reason="no budget")
    rate = affordable_rate(spending, bound_usd, settings)
    sampled = uniform(record.request_id, settings.key) < rate
    return Draw(sampled=sampled, probability=rate, reason="drawn" if sampled else "not drawn")
