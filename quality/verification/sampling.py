"""Which answers are verified: reproducible draws by request id, under ceilings and within a budget."""

import hashlib
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Literal, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from classifier.decision import tier_novelty
from quality.records.record import TRIED_OUT, Record

_PERSON = b"aio-sampling-v1"
_DAY = 86_400.0
# Rate for prompts without labels; half of it with 20 labels of such prompts, a fifth with 80.
COLD_START_RATE = 0.25
# The share of what routing saves that verification may cost, that of draws that go on for ever, and the first requests
# of a family that all tiers answer.
SAVING_SHARE, STEADY_SHARE, FIRST_PROBES = 0.2, 0.04, 30
# The share of a cold start's dollars of a day that the verification of one tenant's answers may cost beyond its own
# budget, once: enough for the first labels.
START_SHARE = 0.25
# The alarms are stated in verified answers: 2,000 between two false ones. More than so many a day tell of a change no
# day sooner.
STEADY_A_DAY = 400.0

Purpose = Literal["sample", "downgrade", "probe", "shadow"]
"""Is a cheap answer good enough; would a cheaper tier have done; what does every tier say; while routing is observed,
is the answer of the tier that it would have taken as good as the given one?"""

# The settings that are shares.
_SHARES = (
    "least_attention",
    "probe_rate",
    "shadow_rate",
    "probe_share",
    "cold_start_rate",
    "least_probe_rate",
    "least_rate",
)
Number = TypeVar("Number", float, npt.NDArray[np.floating])


class SamplingSettings(msgspec.Struct, frozen=True, kw_only=True, cache_hash=True):
    """How answers are drawn for checking (SPEC QM-01, QM-08, QM-10), fixed at the start but for `shadow_rate`, which
    follows a live knob of routing. Raises `ValueError`.

    The budget of the trailing day is `budget_share` of its serving cost, or `saving_share` of what its settled requests
    saved against the strongest tier if that is more. A cold start needs labels sooner, so that it may spend more. The
    first requests of a family (`quality.verification.families`) are drawn from the same money. The other draws go on
    for ever and have a smaller part of it. The answers of a tenant (a team, else a key) are verified for the same
    shares of its own cost and saving.
    """

    rates: tuple[float, ...] = (0.05, 0.05, 0.01, 0.01)
    """By tier, the ceiling for its answers."""
    downgrade_from: int = 3
    """Answers of tiers below this one are checked for being good enough; for the others the tier below is checked."""
    least_attention: float = 0.25
    """The part of their ceiling that answers of the most certain decisions get; the most doubtful ones get all of it.
    """
    probe_rate: float = 0.01
    """Ceiling for requests that every tier answers."""
    shadow_rate: float = 0.05
    """Ceiling for observed requests that routing would have sent to another tier, the same for all of them. The knobs
    of routing replace it while it serves.
    """
    budget_share: float = 0.05
    probe_share: float = 0.5
    """The share of the budget that is for probes, and of what a cold start may spend."""
    window_seconds: float = 86_400.0
    cold_start_rate: float = 0.0
    """The most of the answers to unfamiliar prompts that a cold start verifies; it falls as labels of such prompts
    arrive.
    """
    cold_start_usd: float = 0.0
    """What a cold start may spend per window beyond the budget."""
    saving_share: float = 0.0
    most_usd: float = math.inf
    """The most of the budget, a cold start included."""
    first_probes: int = 0
    """How many requests of a family are probes; 0 where there are no families."""
    least_probe_rate: float = 0.0
    """The least rate at which the first requests of a family are drawn as probes."""
    least_rate: float = 0.0
    """The least rate at which the first requests of a family are drawn as samples."""
    steady_share: float = 0.0
    """The share of what was saved that the other draws have, in place of `saving_share`."""
    steady_a_day: float = math.inf
    """The most of these draws per day, for each of the two shares of the budget."""
    start_usd: float = math.inf
    """What a tenant may spend once beyond its own budget; infinite if a tenant has no bound of its own."""
    key: str = ""
    """A secret per deployment, so that callers cannot choose request ids that are never sampled."""

    def __post_init__(self) -> None:
        for name, value in (("rates", rate) for rate in self.rates):
            if not 0.0 <= value <= 1.0:
                raise ValueError(f"{name} has {value}; a sampling rate must lie between 0 and 1")
        for name in _SHARES:
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must lie between 0 and 1")
        if self.budget_share < 0.0:
            raise ValueError(f"verification budget share is {self.budget_share}; it must not be negative")
        for name in ("cold_start_usd", "start_usd"):
            if getattr(self, name) < 0.0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must not be negative")
        if self.window_seconds <= 0.0:
            raise ValueError(f"budget window is {self.window_seconds} seconds; it must be positive")

    def rate(self, tier: int) -> float:
        """Return the ceiling for the answers of `tier`."""
        return self.rates[tier - 1] if tier <= len(self.rates) else 0.0

    def purpose(self, tier: int) -> Purpose:
        return "downgrade" if tier >= self.downgrade_from else "sample"

    def budget(self, spending: "Spending") -> float:
        """Return the US dollars of the window, without those of a cold start."""
        return self._money(spending, max(self.saving_share, self.steady_share))

    def steady(self, purpose: Purpose, spending: "Spending") -> float:
        """Return the US dollars of the window for draws for `purpose` that are no first ones of a family."""
        return self._part(purpose) * self._money(spending, self.steady_share)

    def _money(self, spending: "Spending", of_saving: float) -> float:
        return min(max(self.budget_share * spending.serving_usd, of_saving * spending.saved_usd), self.most_usd)

    def budget_for(self, purpose: Purpose, spending: "Spending") -> float:
        """Return the US dollars of the window for `purpose`, without those of a cold start; probes have their own."""
        return self._part(purpose) * self.budget(spending)

    def beyond(self, purpose: Purpose, spending: "Spending") -> float:
        """Return the US dollars that a cold start may spend on `purpose` beyond the budget."""
        return self._part(purpose) * min(self.cold_start_usd, self.most_usd - self.budget(spending))

    def _part(self, purpose: Purpose) -> float:
        return self.probe_share if purpose == "probe" else 1.0 - self.probe_share


def sampling_of(
    tiers: int, rate: float, budget_share: float, cold_start_usd: float = 0.0, most_usd: float = math.inf
) -> SamplingSettings:
    """Return settings for a ladder of `tiers`: `rate` for the cheaper half, the middle tier included, and a fifth of it
    for the rest. With four tiers these are tiers 1 and 2, and tiers 3 and 4 (SPEC QM-01). If `rate` or `budget_share`
    is 0, nothing is verified in a cold start either."""
    cheap = (tiers + 1) // 2
    rates = (*[rate] * cheap, *[rate / 5] * (tiers - cheap))
    is_on = rate > 0.0 and budget_share > 0.0
    cold_start_usd = cold_start_usd if is_on else 0.0
    return SamplingSettings(
        rates=rates,
        downgrade_from=cheap + 1,
        budget_share=budget_share,
        cold_start_rate=COLD_START_RATE if cold_start_usd else 0.0,
        cold_start_usd=cold_start_usd,
        saving_share=SAVING_SHARE if is_on else 0.0,
        most_usd=most_usd,
        first_probes=FIRST_PROBES if is_on else 0,
        steady_share=STEADY_SHARE if is_on else 0.0,
        steady_a_day=STEADY_A_DAY,
        start_usd=START_SHARE * cold_start_usd,
    )


class Spending(msgspec.Struct, frozen=True, kw_only=True):
    """US dollars and counts of the trailing window, of all tenants or of one. Probes are counted apart."""

    serving_usd: float = 0.0
    saved_usd: float = 0.0
    """What the settled requests cost less than the strongest tier would have."""
    answered: dict[int, int] = {}
    """Consenting answered chats by tier."""
    committed_usd: float = 0.0
    """Spent plus reserved, without probes; of one tenant with its probes."""
    verifications: int = 0
    """Verifications without probes."""
    probe_usd: float = 0.0
    """Committed for probes."""
    probes: int = 0
    """Number of probes."""
    attention: float = 1.0
    """The part of their ceilings that they get on average."""
    shadow_share: float = 0.0
    """The share of them that are observed ones which routing would have sent elsewhere."""
    start_usd: float = math.inf
    """Of one tenant, what is left of its start."""

    def committed(self, purpose: Purpose) -> float:
        return self.probe_usd if purpose == "probe" else self.committed_usd

    def price(self, purpose: Purpose) -> float | None:
        """Return the mean price of a verification from the budget of `purpose`; None before the first."""
        count = self.probes if purpose == "probe" else self.verifications
        return self.committed(purpose) / count if count else None


Reason = Literal[
    "drawn",
    "not drawn",
    "tier",
    "not a chat",
    "bound",
    "several choices",
    "no consent",
    "not kept",
    "too large",
    "unable",
    "not answered",
    "cut off",
    "guarded",
    "continued",
    "target",
    "cached",
    "tried out",
    "no budget",
    "no budget of its own",
    "no judge",
    "judges pause",
]
"""Why an answer is verified, or why it is not; `WHY_NOT` says it in words."""

WHY_NOT: Mapping[Reason, str] = {
    "not drawn": "chance did not pick it",
    "tier": "answers of its tier are not sampled",
    "not a chat": "a continuation has no question that answers could be compared on",
    "bound": "an adapter or a grammar of its own shapes it, which other tiers do not have",
    "several choices": "routing was only watched, and it has several choices, whose cost cannot be compared",
    "no consent": "its texts may not be stored, or not be shown to the tiers that would answer",
    "not kept": "it has tools or attachments that were not kept, as attachments are not where texts are redacted",
    "too large": "its messages, attachments or tools are too large to wait for a verification",
    "unable": "a tier that would answer or judge supports no such tools or attachments",
    "not answered": "it has no complete answer",
    "cut off": "the answer was cut off, and says little about its tier",
    "guarded": "a guardrail changed the answer, which says nothing about its tier",
    "continued": "it was broken off and went on, so that it says little about a tier",
    "target": "a target stood in for its tier, of which the answer says nothing",
    "cached": "it is a copy of another request's answer, which would count twice",
    "tried out": "an administrator tried it out on the dashboard, and is asked for the label",
    "no budget": "the budget of verification is spent",
    "no budget of its own": "what its team or key may cost verification is spent",
    "no judge": "no trusted judge can label such an answer",
    "judges pause": "the judges of such answers could decide on none of the last ones of its team or key, and pause",
}


class Draw(msgspec.Struct, frozen=True, kw_only=True):
    """The decision on one request."""

    sampled: bool
    probability: float
    """Its chance of being drawn for `purpose` (Horvitz-Thompson)."""
    reason: Reason
    purpose: Purpose = "sample"


def uniform(request_id: str, key: str = "") -> float:
    """Return a number in [0, 1) that depends only on `request_id` and `key`."""
    digest = _keyed(key).copy()
    digest.update(request_id.encode())
    return int.from_bytes(digest.digest(), "big") / 2**64


@lru_cache(maxsize=16)
def _keyed(key: str) -> "hashlib.blake2b":
    """Return the digest of nothing under the key of the draws, of which a setting has few."""
    return hashlib.blake2b(digest_size=8, key=hashlib.blake2b(key.encode()).digest(), person=_PERSON)


def is_eligible(record: Record, settings: SamplingSettings) -> bool:
    """Return whether the ceilings alone leave a chance, so that the rest must be looked at; takes microseconds."""
    rate = settings.shadow_rate if would_differ(record) else settings.rate(record.tier)
    uniform_draw = uniform(record.request_id, settings.key)
    # A prompt's novelty is at most 1, so that it is looked at only where it may decide.
    may_be_cold = settings.cold_start_usd > 0.0 and uniform_draw < settings.cold_start_rate
    if uniform_draw < max(rate, _cold_start_ceiling(record, settings) if may_be_cold else settings.least_rate):
        return True
    return uniform(record.request_id, f"{settings.key}/probe") < max(settings.probe_rate, settings.least_probe_rate)


def admits(spending: Spending, usd: float, purpose: Purpose, settings: SamplingSettings) -> bool:
    """Return whether a verification of about `usd` fits into the budget, with a cold start's extra."""
    whole = settings.budget_for(purpose, spending) + settings.beyond(purpose, spending)
    return spending.committed(purpose) + usd <= whole


def covers(own: Spending, usd: float, settings: SamplingSettings) -> bool:
    """Return whether a verification that costs at most `usd` fits into what is left to one tenant."""
    return own.committed_usd + usd <= settings.budget(own) + own.start_usd


def thinning(spending: Spending, bound_usd: float, purpose: Purpose, settings: SamplingSettings) -> float:
    """Return the share of the ceilings, at most 1, at which the steady draws use exactly their money, or a day's most.

    The price of one verification is the window's mean, or `bound_usd` before the first. Thinning evenly keeps the
    sample representative; a bare cap would verify only the first requests of each day.
    """
    price = spending.price(purpose)
    if purpose == "probe":
        wanted = settings.probe_rate * sum(spending.answered.values())
    else:
        chats, shadowed = sum(spending.answered.values()), spending.shadow_share
        ordinary = spending.attention * sum(settings.rate(tier) * n for tier, n in spending.answered.items())
        wanted = (1.0 - shadowed) * ordinary + shadowed * settings.shadow_rate * chats
    budget, asked = settings.steady(purpose, spending), wanted * (bound_usd if price is None else price)
    paid = 1.0 if asked <= budget else budget / asked
    most = settings.steady_a_day * settings.window_seconds / _DAY
    return paid if wanted <= most else min(paid, most / wanted)


def affordable(spending: Spending, bound_usd: float, purpose: Purpose, settings: SamplingSettings) -> float:
    """Return the share of the ceilings at which requests are drawn now; 0 if no further verification fits."""
    # The store lags behind serving: while it has no request yet, only the claim can check the budget.
    budget = settings.budget_for(purpose, spending)
    if spending.answered and spending.committed(purpose) + bound_usd > budget:
        return 0.0
    return thinning(spending, bound_usd, purpose, settings)


def attention(record: Record, least: float) -> float:
    """Return the share of its tier's ceiling that an answer gets, from `least` to 1, rising with the decision's doubt.

    Doubt combines the variance of the predicted outcome, over its largest value, with the prompt's novelty.
    """
    p = record.decision.inputs.prediction.p_ok[_doubted(record) - 1]
    return least + (1.0 - least) * doubt(p, _novelty(record))


def _doubted(record: Record) -> int:
    """Return the tier that is verified: the one that served, or where it is the strongest, whose P is 1, the tier
    below, which might have been enough."""
    return min(record.tier, max(len(record.decision.inputs.prediction.p_ok) - 1, 1))


def _novelty(record: Record) -> float:
    """Return the prompt's novelty for the tier that is verified."""
    prediction = record.decision.inputs.prediction
    return min(max(tier_novelty(prediction.novelty, prediction.labels, _doubted(record)), 0.0), 1.0)


def doubt(p: Number, novelty: Number) -> Number:
    """Return the doubt, 0 to 1, of a predicted probability and a novelty, both in [0, 1]; arrays or numbers."""
    doubtful: Number = (4.0 * p * (1.0 - p) + novelty) / 2.0
    return doubtful


def would_differ(record: Record) -> bool:
    """Return whether `record` was only observed, and routing would have taken another tier than the one used."""
    return record.decision.would_be not in (None, record.tier)


def purpose_of(record: Record, settings: SamplingSettings) -> Purpose:
    """Return why `record` is verified, unless it is probed."""
    return "shadow" if would_differ(record) else settings.purpose(record.tier)


def cold_start_share(
    ceiling: float, spending: Spending, usd: float, purpose: Purpose, settings: SamplingSettings
) -> float:
    """Return the probability of drawing a request because there are few labels of such prompts, at most `ceiling`. It
    falls with the cold-start money spent in the window, so that the money lasts."""
    if ceiling == 0.0 or not admits(spending, usd, purpose, settings):
        return 0.0
    spent, beyond = spending.committed(purpose), settings.beyond(purpose, spending)
    over = spent - settings.budget_for(purpose, spending)
    # Without money of its own a cold start has what the budget leaves.
    return ceiling * min(1.0 - over / beyond, 1.0) if beyond > 0.0 else ceiling


def _cold_start_ceiling(record: Record, settings: SamplingSettings) -> float:
    by_novelty = settings.cold_start_rate * _novelty(record) if settings.cold_start_usd else 0.0
    return max(by_novelty, settings.least_rate)


def refusal(record: Record, *, has_turn: bool = False) -> Reason | None:
    """Return why `record` can never be drawn, or None if it can. `has_turn`: its tools and attachments are at hand,
    which the record itself does not hold."""
    if record.api != "chat":
        return "not a chat"
    if not record.messages or record.answer is None:
        return "no consent"
    if record.tags is not None and TRIED_OUT in record.tags:
        return "tried out"
    for attempt in record.attempts:
        if attempt.guarded:
            return "guarded"
    if record.is_continued:
        return "continued"
    if record.status == "ok" and record.finish_reason == "length":
        # It cannot be compared fairly with a complete one.
        return "cut off"
    if not has_turn and (
        record.finish_reason == "tool_calls" or any("attachments" in message for message in record.messages)
    ):
        return "not kept"
    if record.status != "ok" or record.finish_reason not in ("stop", "tool_calls") or not record.answer.strip():
        return "not answered"
    if record.target is not None:
        return "target"
    # Only the original answer may be drawn: copies would give frequent prompts more weight.
    return None if record.is_made else "cached"


def why_not_sampled(record: Record) -> str | None:
    """Return in words why `record` can never be verified, as far as it says so itself; None if it could be."""
    reason = refusal(record, has_turn=True)
    return None if reason is None else WHY_NOT[reason]


def draw(
    record: Record,
    spending: Spending,
    bound_usd: float,
    settings: SamplingSettings,
    probe_usd: float | None = None,
    *,
    own: Spending | None = None,
    has_turn: bool = False,
) -> Draw:
    """Decide on `record`; the same request id with the same spending always gets the same result.

    `bound_usd` and `probe_usd`: about what verifying it, or probing the request, costs. `own`: the spending of its
    tenant, None for one without a bound of its own. `has_turn`: see `refusal`.
    """
    refused = refusal(record, has_turn=has_turn)
    if refused is not None:
        return Draw(sampled=False, probability=0.0, reason=refused)
    usd = probe_usd or bound_usd
    least = cold_start_share(settings.least_probe_rate, spending, usd, "probe", settings)
    probe = _drawn(record, "probe", settings.probe_rate, spending, usd, settings, least, own)
    if probe.sampled:
        return probe
    purpose = purpose_of(record, settings)
    if purpose == "shadow":
        # All alike: they are to say what routing would do to the whole traffic.
        ceiling = settings.shadow_rate
    else:
        ceiling = settings.rate(record.tier) * attention(record, settings.least_attention)
    if ceiling <= 0.0:
        return Draw(sampled=False, probability=0.0, reason="tier")
    least = cold_start_share(_cold_start_ceiling(record, settings), spending, bound_usd, purpose, settings)
    return _drawn(record, purpose, ceiling, spending, bound_usd, settings, least, own)


def _drawn(
    record: Record,
    purpose: Purpose,
    ceiling: float,
    spending: Spending,
    bound_usd: float,
    settings: SamplingSettings,
    least: float,
    own: Spending | None,
) -> Draw:
    share = affordable(spending, bound_usd, purpose, settings)
    if own is not None:
        if not covers(own, bound_usd, settings):
            return Draw(sampled=False, probability=0.0, reason="no budget of its own", purpose=purpose)
        # Its steady draws are thinned to its own money, at the price that the window of all tenants knows.
        alike = msgspec.structs.replace(own, attention=spending.attention, shadow_share=spending.shadow_share)
        share = min(share, thinning(alike, spending.price(purpose) or bound_usd, purpose, settings))
    rate = max(ceiling * share, least)
    if share == 0.0 and rate == 0.0:
        return Draw(sampled=False, probability=0.0, reason="no budget", purpose=purpose)
    # Probes are uniformly random and independent of everything else, including the other draws.
    key = f"{settings.key}/probe" if purpose == "probe" else settings.key
    sampled = uniform(record.request_id, key) < rate
    return Draw(sampled=sampled, probability=rate, reason="drawn" if sampled else "not drawn", purpose=purpose)
