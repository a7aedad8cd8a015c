"""What a period of the ledger shows of served requests: traffic and cost by tier, and the stages of their answers."""

import msgspec
from sqlalchemy.ext.asyncio import AsyncEngine

from quality.estimates.costs import CostReport, Part, cost_report
from quality.estimates.stage_timings import AnswerTimings, StageTime, answer_timings, recorded_stages
from tiers.catalog.catalog import Catalog
from tiers.catalog.pricing import cost_usd


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """A period of a ledger. `models`: of the catalogue, by tier; `timings`: of those tiers that answered, and
    `all_timings` of all together."""

    models: dict[int, str]
    costs: CostReport
    timings: dict[int, AnswerTimings]
    all_timings: AnswerTimings | None

    def stages(self) -> dict[int, list[StageTime]]:
        """The budget's stages by tier."""
        return {tier: recorded_stages(timings) for tier, timings in self.timings.items()}


async def read_served(engine: AsyncEngine, catalog: Catalog, since: float, until: float) -> Served:
    """Read the records from `since` to `until` (epoch seconds)."""
    numbers = [spec.number for spec in catalog.tiers]
    timings = {number: await answer_timings(engine, since, until, number) for number in numbers}
    return Served(
        models={spec.number: spec.served_name for spec in catalog.tiers},
        costs=await cost_report(
            engine, since, until, lambda tier, usage: cost_usd(catalog.tier(min(tier, len(numbers))), usage)
        ),
        timings={number: found for number, found in timings.items() if found is not None},
        all_timings=await answer_timings(engine, since, until),
    )


def traffic_rows(served: Served) -> list[list[str]]:
    """Return tier, model, requests, share, p95 of an answer, cost per 1k tokens, cost, saving: for each tier,
    embeddings, and the total."""
    rows = []
    models = {str(number): model for number, model in served.models.items()}
    timings = {str(number): found for number, found in served.timings.items()}
    for part in served.costs.by_tier:
        name = part.name or ""
        rows.append([name, models.get(name, "–"), *_figures(part, timings.get(name))])
    return [*rows, ["all", "", *_figures(served.costs.total, served.all_timings)]]


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
