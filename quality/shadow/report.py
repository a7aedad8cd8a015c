"""The shadow report: the newest observed requests read, summarised and said in words, with the worst cases."""

import asyncio

import msgspec
from sqlalchemy.ext.asyncio import AsyncEngine

from quality.estimates.costs import judge_test_usd
from quality.shadow.cases import worst_cases
from quality.shadow.figures import Budget, ShadowReport, summarised
from quality.shadow.observed import NEWEST, ShadowAnswers, observed_requests, shadow_answers
from quality.shadow.wording import in_words
from quality.verification.queue import VerificationQueue
from quality.verification.sampling import SamplingSettings


async def budget_now(engine: AsyncEngine, sampling: SamplingSettings, now: float) -> Budget:
    """Return the budget that shadows share with other verification, except for probes."""
    spending = await VerificationQueue(engine, sampling, lease_seconds=0.0, max_attempts=1).spending(now)
    budget = sampling.budget_for("shadow", spending) + sampling.beyond("shadow", spending)
    return Budget(budget_usd=budget, spent_usd=spending.committed("shadow"))


async def shadow_report(engine: AsyncEngine, budget: Budget, since: float = 0.0, newest: int = NEWEST) -> ShadowReport:
    """Report on at most `newest` observed requests created at `since` (epoch seconds) or later."""
    observed = await observed_requests(engine, since, newest)
    if observed:
        shadows, verification_usd = await shadow_answers(engine, observed[-1].created_at)
        async with engine.connect() as connection:
            verification_usd += await judge_test_usd(connection, observed[-1].created_at)
    else:
        shadows, verification_usd = ShadowAnswers(), 0.0
    cases = await worst_cases(engine, observed)
    found = await asyncio.to_thread(summarised, observed, shadows, verification_usd, budget)
    return msgspec.structs.replace(found, sentences=in_words(found), cases=cases)
