"""The limit of an answer under a budget. Where its caller sets none, it follows from how long the answers of its tier
are, hidden thoughts included. It is lowered to what is left; what it may cost is held, and where that is too much,
another tier answers. A caller's own limit is an upper bound: it is lowered where no tier may answer with it as it is.
"""

import asyncio
import math
import re
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import msgspec
from sqlalchemy import Select, or_, select
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.decision import Decision, Exclusion
from classifier.errors import NoTierAllowedError
from classifier.policy.decide import decide
from gateway.base.inference_request import AnswerLimits, InferenceRequest, effort_at
from gateway.inference.routing_knobs import RoutingKnobs
from gateway.inference.served_catalogue import ServedCatalogue
from gateway.tenancy.admission import Admission, HoldRefusedError, max_cost_usd, most_tokens, require_bounded
from gateway.tenancy.budgets.lease_book import MICRO, microusd_at_least
from migrations.tables.requests import requests
from quality.records.record import Attempt, Record
from tiers.catalog.tier_spec import ChainOfThoughtSpec, TierSpec
from tiers.tier import Tier

KEPT = 1000
"""The newest answers of a tier that count."""
LEARNED_FROM = 100
"""With fewer answers the limit is at least the one to start with."""
SHARE, MARGIN = 0.99, 1.25
"""The limit is so much longer than that share of the answers."""
LEAST, LEAST_OF_THOUGHTS = 1024, 4096
"""The least limits that are learned; of models that think, the second."""
THOUGHTS = 4
"""Models that think start with so many times the limit of others."""
CUT = 2
"""An answer that a limit of ours has cut counts as so many times as long: the limit grows until few are cut."""
STEP = 64
"""Limits are multiples of it, so that they change seldom."""
NEWS = 16
"""After so many further answers a limit is computed again."""
IGNORED_SECONDS = 3600.0
"""For how long a server that has answered beyond its limit is believed to ignore limits."""
_BEYOND, _BEYOND_TOKENS = 1.1, 32
# Of what makers publish, read 2026-11: models that think unless a request says no.
_THINKS = re.compile(
    r"(^|/)(o[134](-|$)|gpt-5|gpt-oss|gemini-(2\.5|3)|grok-[4-9]|glm-[4-9]\.[5-9]|minimax-m|magistral|qwen3(?!.*instruct))"
    r"|deepseek-?(r|v3\.[12]|v[4-9])|\bqwq|thinking|reason",
    re.IGNORECASE,
)
_NEWEST_STORED = 2000


class AnswerLengths:
    """The lengths of finished answers by entry of the catalogue and reasoning effort. `clock`: seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lengths: dict[tuple[str, str, str | None], _Lengths] = {}
        self._ignored: dict[tuple[str, str], float] = {}

    def limits(self, request: InferenceRequest, served: ServedCatalogue, knobs: RoutingKnobs) -> AnswerLimits | None:
        """Return the limits of an answer to `request`; None where `knobs` want none of ours. If the caller sets a
        limit, there is none of ours until that one is lowered."""
        asked = request.generation
        if knobs.budget_limit == "whole":
            return None
        tokens, unlimited, now = {}, set(), self._clock()
        for spec in (*served.catalog.tiers, *served.catalog.targets):
            if now < self._ignored.get((spec.name, spec.model_name), now):
                unlimited.add(spec.name)
            elif spec.default_max_tokens is None and asked.max_tokens is None:
                limit = self._limit(spec, effort_at(asked, spec), knobs.budget_limit_start)
                tokens[spec.name] = max(limit, (asked.reasoning_budget or 0) + LEAST)
        return AnswerLimits(tokens, frozenset(unlimited), knobs.budget_limit_least)

    def observe(self, request: InferenceRequest, record: Record, served: ServedCatalogue) -> None:
        """Count the finished answer to `request`, and note servers that have answered beyond their limit."""
        if record.cache in ("hit", "shared"):
            return
        for attempt in record.attempts:
            if (limit := attempt.max_tokens) is not None and attempt.claimed is not None:
                most = limit * request.drawn * len(request.prompts or [None])
                if attempt.claimed.completion_tokens > most * _BEYOND + _BEYOND_TOKENS:
                    spec = _named(attempt, served)
                    self._ignored[spec.name, spec.model_name] = self._clock() + IGNORED_SECONDS
        if record.status != "ok" or not record.attempts:
            return
        last = record.attempts[-1]
        spec = _named(last, served)
        tokens = math.ceil(last.completion_tokens / max(1, request.choices * _sequences(request, spec)))
        if record.finish_reason == "length":
            if request.generation.max_tokens is not None or spec.default_max_tokens is not None:
                return
            tokens *= CUT
        if tokens and last.status == "ok" and last.continued_at is None:
            self._of(spec, effort_at(request.generation, spec)).add(tokens)

    async def restore(self, database: AsyncEngine, served: ServedCatalogue) -> None:
        """Take the lengths of stored answers, where fewer are known here. Raises what the database raises."""
        async with database.connect() as connection:
            rows: Sequence[Any] = (await connection.execute(_newest())).all()
        stored: dict[tuple[str, str, str | None], _Lengths] = {}
        for tier, model, tokens in reversed(rows):
            if 1 <= tier <= served.strongest and model in ((spec := served.spec(tier)).model_name, spec.served_name):
                key: tuple[str, str, str | None] = (spec.name, spec.model_name, spec.effort)
                stored.setdefault(key, _Lengths()).add(math.ceil(tokens / spec.samples_per_choice))
        for key, lengths in stored.items():
            learned = self._lengths.get(key)
            if learned is None or len(learned.tokens) < len(lengths.tokens):
                self._lengths[key] = lengths

    def _of(self, spec: TierSpec, effort: str | None) -> "_Lengths":
        return self._lengths.setdefault((spec.name, spec.model_name, effort), _Lengths())

    def _limit(self, spec: TierSpec, effort: str | None, start: int) -> int:
        learned = self._lengths.get((spec.name, spec.model_name, effort))
        thinks = _thinks(spec, effort)
        limit = LEAST_OF_THOUGHTS if thinks else LEAST
        if learned is None or len(learned.tokens) < LEARNED_FROM:
            limit = max(limit, start * THOUGHTS if thinks else start)
        if learned is not None:
            limit = max(limit, math.ceil(learned.usual_most() * MARGIN))
        return math.ceil(limit / STEP) * STEP


class _Lengths:
    """The tokens of the newest answers."""

    def __init__(self) -> None:
        self.tokens: deque[int] = deque(maxlen=KEPT)
        self._most, self._news = 0, 0

    def add(self, tokens: int) -> None:
        self.tokens.append(tokens)
        self._news += 1

    def usual_most(self) -> int:
        """Return what `SHARE` of the answers do not exceed, by all but the last few answers."""
        if self._news >= NEWS or (self._news and len(self.tokens) < LEARNED_FROM + NEWS):
            self._news, ordered = 0, sorted(self.tokens)
            self._most = ordered[min(len(ordered) - 1, math.ceil(len(ordered) * SHARE) - 1)]
        return self._most


def _named(attempt: Attempt, served: ServedCatalogue) -> TierSpec:
    return served.entry(min(attempt.tier, served.strongest), attempt.target)


def _sequences(request: InferenceRequest, spec: TierSpec) -> int:
    """How many sequences each choice that the caller gets was drawn from."""
    return math.ceil(request.drawn / request.generation.n) * spec.samples_per_choice


def _thinks(spec: TierSpec, effort: str | None) -> bool:
    if effort is not None:
        return effort != "none"
    return isinstance(spec.policy, ChainOfThoughtSpec) or _thinks_by_itself(spec.model_name)


@lru_cache(maxsize=256)
def _thinks_by_itself(model: str) -> bool:
    return _THINKS.search(model) is not None


def _newest() -> Select[Any]:
    """The newest whole answers of tiers. One that was cut does not show how long it would have been."""
    columns = requests.c
    return (
        select(columns.tier, columns.model, columns.completion_tokens)
        .where(columns.status == "ok", columns.tier.is_not(None), columns.completion_tokens > 0)
        .where(or_(columns.cache.is_(None), columns.cache == "miss"))
        .where(columns.finish_reason.in_(("stop", "tool_calls")))
        .order_by(columns.created_at.desc())
        .limit(_NEWEST_STORED)
    )


LEAST_SHARE = 0.5
"""Of a usual limit: before it is lowered further, a request waits for others to release what they did not cost."""
# How often a limit is lowered for one tier: other requests may take what was left meanwhile, in each of its budgets.
_TIMES_LOWERED = 4


async def held(
    request: InferenceRequest, decision: Decision, served: ServedCatalogue, admission: Admission, seconds: float
) -> tuple[InferenceRequest, Decision]:
    """Hold what the answer may cost, and return the request with the limits that this counts on, and the decision, of
    another tier if the budgets do not cover the chosen one. Before that it waits up to `seconds` for other requests,
    which cost less than they hold. Raises `ApiError`: 429 `insufficient_quota`, 503."""
    if admission.admission_control is None:
        return request, decision
    until = time.monotonic() + seconds
    if request.generation.max_tokens is None or request.limits is None:
        return await _held_in_time(request, decision, served, admission, until)
    try:
        as_asked = msgspec.structs.replace(request, limits=None)
        held_request, decision = await _held_in_time(as_asked, decision, served, admission, until)
    except HoldRefusedError:
        return await _held_in_time(request, decision, served, admission, until)
    return msgspec.structs.replace(held_request, limits=request.limits), decision


async def _held_in_time(
    request: InferenceRequest, decision: Decision, served: ServedCatalogue, admission: Admission, until: float
) -> tuple[InferenceRequest, Decision]:
    """As `held`, with a limit of the caller as it is, unless `request` has limits of ours. `until`: monotonic seconds
    to which it waits."""
    caller, tier = request.caller, served.chosen(decision)
    spec = served.spec_of(tier)
    while True:
        try:
            return await _held_at(request, tier, spec, admission, LEAST_SHARE), decision
        except HoldRefusedError as error:
            passes = max_cost_usd(request, tier, spec) <= error.left_usd + error.held_usd
            release = admission.next_release(caller)
        if not passes or not await _comes(release, until):
            break
    while True:
        # Before it is tried, which waits for the database: another may end meanwhile.
        release = admission.next_release(caller)
        try:
            return await _held_anywhere(request, decision, served, admission)
        except HoldRefusedError as error:
            passes = lowered(request, tier, spec, error.left_usd + error.held_usd) is not None
            if not passes or not await _comes(release, until):
                raise


async def _comes(release: asyncio.Future[None], until: float) -> bool:
    """Wait for it until then, monotonic seconds; return whether it came."""
    done, _ = await asyncio.wait([release], timeout=max(0.0, until - time.monotonic()))
    if not done:
        release.cancel()
    return bool(done)


async def _held_anywhere(
    request: InferenceRequest, decision: Decision, served: ServedCatalogue, admission: Admission
) -> tuple[InferenceRequest, Decision]:
    """As `held`, without waiting, with any limit. Raises the refusal of the chosen tier."""
    refused: HoldRefusedError | None = None
    advice = ""
    while True:
        tier = served.chosen(decision)
        spec = served.spec_of(tier)
        try:
            return await _held_at(request, tier, spec, admission, 0.0), decision
        except HoldRefusedError as error:
            at = "" if refused is None else f" At {spec.name}:"
            refused = refused or error
            if not advice and (smaller := smaller_answer(request, tier, spec, error.left_usd)):
                advice = f"{at} {smaller}"
            other = _without(decision, tier.number, error.why)
        if other is None:
            raise refused.advised(advice) from refused
        decision = other


async def _held_at(
    request: InferenceRequest, tier: Tier, spec: TierSpec, admission: Admission, least_share: float
) -> InferenceRequest:
    """Hold what the answer of one tier may cost; return the request with the limit that is held, at least `least_share`
    of the usual one. Raises `ApiError`."""
    usual = most_tokens(request, tier, spec).choice
    for times in range(_TIMES_LOWERED + 1):
        most_usd = max_cost_usd(request, tier, spec)
        if most_usd == math.inf:
            require_bounded(request, spec)
        try:
            await admission.reserve(request.caller, most_usd)
            break
        except HoldRefusedError as error:
            smaller = lowered(request, tier, spec, error.left_usd)
            if smaller is None or times == _TIMES_LOWERED:
                raise
            if most_tokens(smaller, tier, spec).choice < usual * least_share:
                raise
            request = smaller
    return request


def _without(decision: Decision, tier: int, why: str) -> Decision | None:
    """Return the decision that is taken without `tier`; None if no other tier may answer."""
    inputs = decision.inputs
    try:
        return decide(
            msgspec.structs.replace(inputs, exclusions=[*inputs.exclusions, Exclusion(tier=tier, reason=why)])
        )
    except NoTierAllowedError:
        return None


def lowered(request: InferenceRequest, tier: Tier, spec: TierSpec, left_usd: float) -> InferenceRequest | None:
    """Return `request` with a lower limit at `tier`, which so many US dollars cover; None if they cover too few tokens,
    or if the server ignores limits."""
    limits = request.limits
    if limits is None or spec.name in limits.unlimited:
        return None
    tokens = affordable_tokens(request, tier, spec, left_usd)
    if tokens < limits.least + (request.generation.reasoning_budget or 0):
        return None
    return msgspec.structs.replace(request, limits=limits.with_limit(spec.name, tokens))


def smaller_answer(request: InferenceRequest, tier: Tier, spec: TierSpec, left_usd: float) -> str:
    """Return which `max_tokens` this many US dollars cover, in a sentence; "" where they cover no answer."""
    tokens = affordable_tokens(request, tier, spec, left_usd)
    return f"A max_tokens of at most {tokens} would pass." if tokens else ""


def affordable_tokens(request: InferenceRequest, tier: Tier, spec: TierSpec, left_usd: float) -> int:
    """Return the most tokens of a choice that so many US dollars cover, besides the prompt and what else is billed; 0
    where they cover none. A cost grows by the same for each token."""

    def usd_of(tokens: int) -> float:
        generation = msgspec.structs.replace(request.generation, max_tokens=tokens)
        asking = msgspec.structs.replace(request, generation=generation, usual_max_tokens=False, limits=None)
        return max_cost_usd(asking, tier, spec)

    most, least_usd = most_tokens(request, tier, spec), usd_of(1)
    if not math.isfinite(most.usd) or least_usd > left_usd:
        return 0
    each = (most.usd - least_usd) / max(1, most.choice - 1)
    tokens = most.choice if each <= 0 else min(most.choice, 1 + int((left_usd - least_usd) / each))
    # The last digits of a quotient may be wrong.
    for number in range(tokens, max(0, tokens - 2), -1):
        if microusd_at_least(usd_of(number)) <= round(left_usd * MICRO):
            return number
    return 0
