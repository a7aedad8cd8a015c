"""The report's part from a ledger and its catalogue: traffic and cost by tier, and the stages of answers."""

import msgspec
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.reporting.stages import Stage, recorded_stages
from quality.estimates.costs import CostReport, Part, cost_report
from quality.estimates.stage_timings import AnswerTimings, answer_timings
from tiers.catalog.catalog import Catalog
from tiers.catalog.pricing import cost_usd


class Live(msgspec.Struct, frozen=True, kw_only=True):
    """A period of a ledger. `models`: of the catalogue, by tier; `timings`: of those tiers that answered, and
    `all_timings` of all together."""

    models: dict[int, str]
    costs: CostReport
    timings: dict[int, AnswerTimings]
    all_timings: AnswerTimings | None

    @property
    def days(self) -> float:
        """Length of the period."""
        return (self.costs.until - self.costs.since) / 86_400

    def stages(self) -> dict[int, list[Stage]]:
        """The budget's stages by tier."""
        return {tier: recorded_stages(found) for tier, found in self.timings.items()}


async def read_live(engine: AsyncEngine, catalog: Catalog, since: float, until: float) -> Live:
    """Read the records from `since` to `until` (epoch seconds)."""
    numbers = [spec.number for spec in catalog.tiers]
    found = {number: await answer_timings(engine, since, until, number) for number in numbers}
    return Live(
        models={spec.number: spec.served_name for spec in catalog.tiers},
        costs=await cost_report(
            engine, since, until, lambda tier, usage: cost_usd(catalog.tier(min(tier, len(numbers))), usage)
        ),
        timings={number: timings for number, timings in found.items() if timings is not None},
        all_timings=await answer_timings(engine, since, until),
    )


def traffic_rows(live: Live) -> list[list[str]]:
    """Return tier, model, requests, share, p95 of an answer, cost per 1k tokens, cost, saving: for each tier,
    embeddings, and the total."""
    rows = []
    models = {str(number): model for number, model in live.models.items()}
    timings = {str(number): found for number, found in live.timings.items()}
    for part in live.costs.by_tier:
        name = part.name or ""
        rows.append([name, models.get(name, "–"), *_figures(part, timings.get(name))])
    return [*rows, ["all", "", *_figures(live.costs.total, live.all_timings)]]


def dollars(value: float | None) -> str:
    """Format to the hundredth of a cent."""
    return "–" if value is None else f"${value:,.4f}"


def _figures(part: Part, timings: AnswerTimings | None) -> list[str]:
    return [
        f"{part.spent.requests:,}",
        f"{part.share:.1%}",
        "–" if timings is None else f"{timings.e2e_p95_ms:,.0f}",
        dollars(part.cost_per_1k_tokens_usd),
        dollars(part.spent.cost_usd),
        "–" if part.saving is None else f"{part.saving:.1%}",
    ]
