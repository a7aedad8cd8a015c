"""Costs of a period: by tier, by key, by day, and relative to the strongest tier (RT-08 to RT-10, OB-13).

Costs of requests are summed as whole nano-dollars, so every breakdown has the same total.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
from sqlalchemy import BigInteger, ColumnElement, Integer, cast, func, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from migrations.tables.quality import verifications
from migrations.tables.requests import requests, routing_decisions
from tiers.tier import Usage

SHOWN = 100
NANO = 1_000_000_000
_DAY = 86_400


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """Sums in US dollars, each request's exact to the nano-dollar. `baseline_usd`: what the strongest tier alone would
    have cost, plus the actual cost of embeddings. `saving` is a share of the baseline; None where the baseline is 0."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float = 0.0
    baseline_usd: float = 0.0

    @property
    def cost_per_1k_tokens_usd(self) -> float | None:
        """US dollars per thousand tokens, prompt and answer."""
        tokens = self.prompt_tokens + self.completion_tokens
        return self.cost_usd / tokens * 1e3 if tokens else None

    @property
    def saving(self) -> float | None:
        """Return the share of the baseline that was saved."""
        return 1 - self.cost_usd / self.baseline_usd if self.baseline_usd else None


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What one tier, embeddings, a key or a UTC day spent. A tier's part has the requests that it answered, with their
    failed attempts on other tiers. `share`: of the requests."""

    name: str | None
    spent: Spent
    share: float
    cost_per_1k_tokens_usd: float | None
    saving: float | None


class WouldBe(msgspec.Struct, frozen=True, kw_only=True):
    """The requests that observed routing would have sent to a tier, priced by the answers that were served."""

    tier: int
    requests: int
    share: float
    cost_usd: float


class CostReport(msgspec.Struct, frozen=True, kw_only=True):
    """Costs of requests that arrived from `since` to before `until` (epoch seconds).

    `by_key`: the keys with the highest cost; `other_keys` sums the rest. `by_tag` and `other_tags`: the same for the
    values of one tag of the requests' `metadata`, if one was asked for. `verification_usd`: the cost of verifying
    answers; `saving_with_checks`: the saving after that cost. `would_be`: requests while routing was only observed.
    """

    since: float
    until: float
    total: Part
    verification_usd: float
    saving_with_checks: float | None
    by_tier: list[Part]
    by_day: list[Part]
    by_key: list[Part]
    other_keys: Part | None
    by_tag: list[Part]
    other_tags: Part | None
    would_be: list[WouldBe]


async def cost_report(
    engine: AsyncEngine,
    since: float,
    until: float,
    price: Callable[[int, Usage], float],
    *,
    tag: str | None = None,
    shown: int = SHOWN,
) -> CostReport:
    """Sum the costs of a period. `price` gives the US dollars of a usage on a tier; `shown` limits the number of keys
    and of values of `tag`."""
    within = (requests.c.created_at >= since, requests.c.created_at < until)
    async with engine.connect() as connection:
        cells = await _grouped(connection, [requests.c.tier, _day(connection)], within)
        by_key = await _grouped(connection, [requests.c.key_id], within, shown)
        by_tag = [] if tag is None else await _grouped(connection, [requests.c.tags[tag].as_string()], within, shown)
        checked = verifications.c.created_at.between(since, until)
        checks = (await connection.execute(select(func.sum(verifications.c.cost_usd)).where(checked))).scalar_one()
        would_be = await _would_be(connection, within, price)
    total = _sum([spent for _, spent in cells])
    other_keys = _less(total, [spent for _, spent in by_key])
    other_tags = _less(total, [spent for _, spent in by_tag]) if tag is not None else Spent()
    verification = float(checks or 0.0)
    part = _parts(total)
    return CostReport(
        since=since,
        until=until,
        total=part(None, total),
        verification_usd=verification,
        saving_with_checks=1 - (total.cost_usd + verification) / total.baseline_usd if total.baseline_usd else None,
        by_tier=[
            part("embeddings" if tier is None else str(tier), _sum([s for k, s in cells if k[0] == tier]))
            for tier in sorted({k[0] for k, _ in cells}, key=lambda tier: (tier is None, tier))
        ],
        by_day=[
            part(_date(day), _sum([s for k, s in cells if k[1] == day])) for day in sorted({k[1] for k, _ in cells})
        ],
        by_key=[part(key, spent) for (key,), spent in by_key],
        other_keys=part("other", other_keys) if other_keys.requests else None,
        by_tag=[part(value, spent) for (value,), spent in by_tag],
        other_tags=part("other", other_tags) if other_tags.requests else None,
        would_be=would_be,
    )


async def _grouped(
    connection: AsyncConnection, by: list[ColumnElement[Any]], within: tuple[Any, ...], limit: int | None = None
) -> list[tuple[tuple[Any, ...], Spent]]:
    """Return (group, cost) pairs, the highest cost first."""
    used = requests.c
    figures = [used.prompt_tokens, used.completion_tokens, used.cost_usd, used.baseline_cost_usd]
    # Build each group expression once: PostgreSQL treats two equal expressions with parameters as different.
    rows = select(*(one.label(f"group_{i}") for i, one in enumerate(by)), *figures).where(*within).subquery()
    groups = [rows.c[f"group_{i}"] for i in range(len(by))]
    cost = _nano(rows.c.cost_usd)
    sums = [func.count(), func.sum(rows.c.prompt_tokens), func.sum(rows.c.completion_tokens)]
    query = select(*groups, *sums, cost, _nano(rows.c.baseline_cost_usd)).group_by(*groups)
    found = await connection.execute(query.order_by(cost.desc(), *groups).limit(limit))
    return [(tuple(row[: len(by)]), _spent(*map(int, row[len(by) :]))) for row in found]


def _nano(column: ColumnElement[float]) -> ColumnElement[int]:
    return func.sum(cast(func.round(column * NANO), BigInteger))


def _day(connection: AsyncConnection) -> ColumnElement[int]:
    """Days since 1970; a cast cuts off on SQLite and rounds on PostgreSQL, which has a floor."""
    days = requests.c.created_at / _DAY
    return cast(func.floor(days) if connection.dialect.name == "postgresql" else days, Integer)


async def _would_be(
    connection: AsyncConnection, within: tuple[Any, ...], price: Callable[[int, Usage], float]
) -> list[WouldBe]:
    tier = routing_decisions.c.would_be_tier
    used = requests.c
    tokens = func.sum(used.prompt_tokens), func.sum(used.completion_tokens), func.sum(used.cached_tokens)
    query = (
        select(tier, func.count(), *tokens)
        .join(requests, requests.c.request_id == routing_decisions.c.request_id)
        .where(*within, tier.is_not(None))
        .group_by(tier)
        .order_by(tier)
    )
    rows = [tuple(map(int, row)) for row in await connection.execute(query)]
    total = sum(count for _, count, *_ in rows)
    return [
        WouldBe(
            tier=number,
            requests=count,
            share=count / total,
            cost_usd=price(number, Usage(prompt_tokens=prompt, completion_tokens=answer, cached_tokens=cached)),
        )
        for number, count, prompt, answer, cached in rows
    ]


def _spent(count: int, prompt: int, answer: int, nano: int, baseline: int) -> Spent:
    return Spent(
        requests=count,
        prompt_tokens=prompt,
        completion_tokens=answer,
        cost_usd=nano / NANO,
        baseline_usd=baseline / NANO,
    )


def _figures(spent: Spent) -> tuple[int, int, int, int, int]:
    nano, baseline = round(spent.cost_usd * NANO), round(spent.baseline_usd * NANO)
    return spent.requests, spent.prompt_tokens, spent.completion_tokens, nano, baseline


def _sum(parts: list[Spent]) -> Spent:
    return _spent(*(sum(figures) for figures in zip(*map(_figures, parts), strict=True))) if parts else Spent()


def _less(total: Spent, parts: list[Spent]) -> Spent:
    taken = _figures(_sum(parts))
    return _spent(*(all_of - part for all_of, part in zip(_figures(total), taken, strict=True)))


def _parts(total: Spent) -> Callable[[str | None, Spent], Part]:
    def part(name: str | None, spent: Spent) -> Part:
        return Part(
            name=name,
            spent=spent,
            share=spent.requests / total.requests if total.requests else 0.0,
            cost_per_1k_tokens_usd=spent.cost_per_1k_tokens_usd,
            saving=spent.saving,
        )

    return part


def _date(day: int) -> str:
    return datetime.fromtimestamp(day * _DAY, UTC).strftime("%Y-%m-%d")
