"""Costs of a period by tier, model, day, key and team, relative to the strongest tier (RT-08 to RT-10, OB-13); and what
a key's requests cost of late, against those of its own week before.

Costs of requests are summed as whole nano-dollars, so every breakdown has the same total. A caller whose requests
become dearer, by words that take them to stronger tiers or by longer answers, is seen before a budget ends, and also
where there is none."""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import BigInteger, ColumnElement, Integer, cast, func, null, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from migrations.tables.audit import JUDGE_TEST, audit_events
from migrations.tables.quality import verifications
from migrations.tables.requests import requests
from migrations.tables.tenancy import api_keys

SHOWN = 100
USUAL_DAYS = 30
NANO = 1_000_000_000
_DAY = 86_400


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """Sums in US dollars, each request's exact to the nano-dollar."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float = 0.0
    baseline_usd: float = 0.0
    """What the strongest tier alone would have cost, plus the actual cost of embeddings."""
    estimated_usd: float = 0.0
    """How much of the cost is an estimate, because no server has counted the tokens (`Attempt.estimated`)."""

    @property
    def cost_per_1k_tokens_usd(self) -> float | None:
        """US dollars per thousand tokens, prompt and answer."""
        tokens = self.prompt_tokens + self.completion_tokens
        return self.cost_usd / tokens * 1e3 if tokens else None


class NetSaving(msgspec.Struct, frozen=True, kw_only=True):
    """What requests saved against the strongest tier alone, after everything that was paid."""

    paid_usd: float
    checks_usd: float
    """Cost of verifying answers and of testing the judge."""
    strongest_usd: float
    saved_usd: float
    share: float | None
    """Share of `strongest_usd`; None if that is 0."""


def net_saving(spent: Spent, checks_usd: float) -> NetSaving:
    """Return what requests saved. Every page and report shows the saving of this function."""
    paid = spent.cost_usd + checks_usd
    return NetSaving(
        paid_usd=spent.cost_usd,
        checks_usd=checks_usd,
        strongest_usd=spent.baseline_usd,
        saved_usd=spent.baseline_usd - paid,
        share=1 - paid / spent.baseline_usd if spent.baseline_usd else None,
    )


def dollars(value: float | None) -> str:
    """Format US dollars with cents, amounts below a dollar with two digits."""
    if value is None:
        return "–"
    if value == 0 or abs(value) >= 1:
        return f"${value:,.2f}"
    return f"${value:.{1 - math.floor(math.log10(abs(value)))}f}"


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What a tier, embeddings, a model, a key, a team or a UTC day spent. A tier's part has the requests that it
    answered, with their failed attempts on other tiers.
    """

    name: str | None
    spent: Spent
    share: float
    """Share of the requests."""
    cost_per_1k_tokens_usd: float | None
    net: NetSaving
    """The saving after the checks of its answers; for all requests, after the tests of the judge too."""


class CostReport(msgspec.Struct, frozen=True, kw_only=True):
    """Costs of requests that arrived from `since` to before `until` (epoch seconds)."""

    since: float
    until: float
    total: Part
    verification_usd: float
    """The cost of verifying answers."""
    judge_test_usd: float
    """The cost of testing their judge, counted when the test began."""
    by_tier: list[Part]
    by_model: list[Part]
    by_day: list[Part]
    by_key: list[Part]
    """The keys with the highest cost."""
    other_keys: Part | None
    """The sum of all other keys."""
    by_team: list[Part]
    """Costs by the team's id; None for keys without one."""
    by_tag: list[Part]
    """The values with the highest cost of one tag of the requests' `metadata`, if one was asked for."""
    other_tags: Part | None
    """The sum of all other values of that tag."""


class _Group(NamedTuple):
    """What costs are summed by; None also where a sum is over all."""

    tier: int | None = None
    model: str | None = None
    day: int | None = None
    key_id: str | None = None
    tag: str | None = None


_Cells = Sequence[tuple[_Group, Spent]]
_Checks = Sequence[tuple[_Group, float]]


async def cost_report(
    engine: AsyncEngine,
    since: float,
    until: float,
    *,
    tag: str | None = None,
    shown: int = SHOWN,
) -> CostReport:
    """Sum the costs of a period. `shown` limits the number of keys and of values of `tag`."""
    r = requests.c
    within = (r.created_at >= since, r.created_at < until)
    tags = None if tag is None else r.tags[tag].as_string()
    async with engine.connect() as connection:
        by = {"tier": r.tier, "model": r.model, "day": _day(connection, r.created_at)}
        cells = await _grouped(connection, by, within)
        of_keys = await _grouped(connection, {"key_id": r.key_id}, within)
        of_tags = [] if tags is None else await _grouped(connection, {"tag": tags}, within)
        members = select(api_keys.c.key_id, api_keys.c.team_id).where(api_keys.c.team_id.is_not(None))
        teams = {row.key_id: row.team_id for row in await connection.execute(members)}
        checks = await _verified(connection, since, until, tags)
        tested = await judge_test_usd(connection, since, until)
    total, verification = _sum([spent for _, spent in cells]), math.fsum(usd for _, usd in checks)
    part = _parts(total)
    whole = part(None, total, verification + tested)

    def split(group_costs: _Cells, name: Callable[[_Group], Any]) -> list[Part]:
        return [part(*row) for row in _split(group_costs, checks, name)]

    def of_most(group_costs: _Cells, name: Callable[[_Group], Any]) -> tuple[list[Part], Part | None]:
        every = _split(group_costs, checks, name)
        rest = every[shown:]
        other = part("other", _sum([spent for _, spent, _ in rest]), math.fsum(usd for *_, usd in rest))
        return [part(*row) for row in every[:shown]], other if rest else None

    by_key, other_keys = of_most(of_keys, lambda group: group.key_id)
    by_tag, other_tags = of_most(of_tags, lambda group: group.tag)
    by_tier = split(cells, lambda group: "embeddings" if group.tier is None else str(group.tier))
    by_day = split(cells, lambda group: None if group.day is None else _date(group.day))
    return CostReport(
        since=since,
        until=until,
        total=whole,
        verification_usd=verification,
        judge_test_usd=tested,
        by_tier=sorted(by_tier, key=lambda tier: (tier.name == "embeddings", len(tier.name or ""), tier.name)),
        by_model=split(cells, lambda group: group.model),
        by_day=sorted(by_day, key=lambda day: day.name or ""),
        by_key=by_key,
        other_keys=other_keys,
        by_team=split(of_keys, lambda group: teams.get(group.key_id)),
        by_tag=by_tag,
        other_tags=other_tags,
    )


def first_second(days: int, now: float) -> float:
    """Return when the first of so many days began, of which the last is today, UTC (epoch seconds)."""
    return (now // _DAY - days + 1) * _DAY


async def saved_between(engine: AsyncEngine, since: float, until: float) -> NetSaving:
    """Return the net saving of the period, as the total of `cost_report` has it."""
    r = requests.c
    async with engine.connect() as connection:
        cells = await _grouped(connection, {"tier": r.tier}, (r.created_at >= since, r.created_at < until))
        checks = await _verified(connection, since, until, None)
        tested = await judge_test_usd(connection, since, until)
    return net_saving(_sum([spent for _, spent in cells]), math.fsum(usd for _, usd in checks) + tested)


async def saved_lately(engine: AsyncEngine) -> NetSaving:
    """Return the net saving of the usual days until now."""
    now = time.time()
    return await saved_between(engine, first_second(USUAL_DAYS, now), now)


async def judge_test_usd(connection: AsyncConnection, since: float, until: float = math.inf) -> float:
    """Return what tests of the judge that began in the period have cost, US dollars."""
    event = audit_events.c
    spent = func.sum(event.details["spent_usd"].as_float())
    began = event.action == JUDGE_TEST, event.created_at >= since, event.created_at < until
    return float(await connection.scalar(select(spent).where(*began)) or 0.0)


async def _grouped(
    connection: AsyncConnection, by: dict[str, ColumnElement[Any]], within: tuple[Any, ...]
) -> list[tuple[_Group, Spent]]:
    used = requests.c
    estimated = func.coalesce(used.estimated_usd, 0.0).label("estimated_usd")
    figures = [used.prompt_tokens, used.completion_tokens, used.cost_usd, used.baseline_cost_usd, estimated]
    # Build each group expression once: PostgreSQL treats two equal expressions with parameters as different.
    rows = select(*(column.label(f"group_{name}") for name, column in by.items()), *figures).where(*within).subquery()
    groups = [rows.c[f"group_{name}"] for name in by]
    sums = [func.count(), func.sum(rows.c.prompt_tokens), func.sum(rows.c.completion_tokens)]
    costs = [_nano(rows.c.cost_usd), _nano(rows.c.baseline_cost_usd), _nano(rows.c.estimated_usd)]
    totals = await connection.execute(select(*groups, *sums, *costs).group_by(*groups))
    count = len(by)
    return [(_Group(**dict(zip(by, row[:count], strict=True))), _spent(*map(int, row[count:]))) for row in totals.all()]


async def _verified(
    connection: AsyncConnection, since: float, until: float, tags: ColumnElement[Any] | None
) -> list[tuple[_Group, float]]:
    """Return what verifications that began in the period have cost, by the requests that they are of."""
    r, v = requests.c, verifications.c
    by = {
        "tier": func.coalesce(r.tier, v.tier),
        "model": func.coalesce(r.model, v.model),
        "day": _day(connection, v.created_at),
        "key_id": v.key_id,
        "tag": null() if tags is None else tags,
    }
    rows = (
        select(*(column.label(f"group_{name}") for name, column in by.items()), v.cost_usd)
        .select_from(verifications.outerjoin(requests, r.request_id == v.request_id))
        .where(v.created_at >= since, v.created_at < until)
        .subquery()
    )
    groups = [rows.c[f"group_{name}"] for name in by]
    totals = await connection.execute(select(*groups, func.sum(rows.c.cost_usd)).group_by(*groups))
    return [(_Group(*row[:-1]), float(row[-1])) for row in totals.all()]


def _split(cells: _Cells, checks: _Checks, name: Callable[[_Group], Any]) -> list[tuple[str | None, Spent, float]]:
    """Return name, costs and cost of checks, the highest cost first."""
    spent, checked = defaultdict[Any, list[Spent]](list), defaultdict[Any, float](float)
    for group, costs in cells:
        spent[name(group)].append(costs)
    for group, usd in checks:
        checked[name(group)] += usd
    rows = [(label, _sum(parts), checked[label]) for label, parts in spent.items()]
    return sorted(rows, key=lambda row: (-row[1].cost_usd, row[0] is not None, row[0]))


def _nano(column: ColumnElement[float]) -> ColumnElement[int]:
    return func.sum(cast(func.round(column * NANO), BigInteger))


def _day(connection: AsyncConnection, at: ColumnElement[float]) -> ColumnElement[int]:
    """Days since 1970; a cast cuts off on SQLite and rounds on PostgreSQL, which has a floor."""
    days = at / _DAY
    return cast(func.floor(days) if connection.dialect.name == "postgresql" else days, Integer)


def _spent(count: int, prompt: int, answer: int, nano: int, baseline: int, estimated: int) -> Spent:
    return Spent(
        requests=count,
        prompt_tokens=prompt,
        completion_tokens=answer,
        cost_usd=nano / NANO,
        baseline_usd=baseline / NANO,
        estimated_usd=estimated / NANO,
    )


def _figures(spent: Spent) -> tuple[int, ...]:
    costs = (spent.cost_usd, spent.baseline_usd, spent.estimated_usd)
    return spent.requests, spent.prompt_tokens, spent.completion_tokens, *(round(usd * NANO) for usd in costs)


def _sum(parts: list[Spent]) -> Spent:
    return _spent(*(sum(figures) for figures in zip(*map(_figures, parts), strict=True))) if parts else Spent()


def _parts(total: Spent) -> Callable[[str | None, Spent, float], Part]:
    def part(name: str | None, spent: Spent, checks_usd: float) -> Part:
        return Part(
            name=name,
            spent=spent,
            share=spent.requests / total.requests if total.requests else 0.0,
            cost_per_1k_tokens_usd=spent.cost_per_1k_tokens_usd,
            net=net_saving(spent, checks_usd),
        )

    return part


def _date(day: int) -> str:
    return datetime.fromtimestamp(day * _DAY, UTC).strftime("%Y-%m-%d")


LATELY_SECONDS, BEFORE_SECONDS = 3600.0, 7 * 86_400.0
LEAST_REQUESTS = 20
"""Of a key in each of the two periods: the cost of few requests says little."""


class KeyCost(msgspec.Struct, frozen=True, kw_only=True):
    """US dollars per request in the last hour and in the week before it, with the number of requests."""

    key_id: str | None
    """None for requests without a key."""
    lately_usd: float
    lately: int
    before_usd: float
    before: int

    @property
    def ratio(self) -> float:
        """How many times as much a request costs as in the week before."""
        return self.lately_usd / self.before_usd

    @property
    def text(self) -> str:
        """One line for an operator."""
        whose = "requests without a key" if self.key_id is None else f"key {self.key_id}"
        return (
            f"{whose}: ${self.lately_usd:.3g} a request in the last hour ({self.lately:,} requests), "
            f"${self.before_usd:.3g} in the week before ({self.before:,})"
        )


async def dearest_key(engine: AsyncEngine, now: float) -> KeyCost | None:
    """Return the key whose cost per request has risen most, by its ratio; None without enough requests of any that cost
    something. `now`: epoch seconds. Raises the database's errors."""
    at = requests.c.created_at
    since = now - LATELY_SECONDS
    figures = (requests.c.key_id, func.avg(requests.c.cost_usd), func.count())
    enough = func.count() >= LEAST_REQUESTS
    lately = select(*figures).where(at >= since, at < now).group_by(requests.c.key_id).having(enough)
    before = select(*figures).where(at >= since - BEFORE_SECONDS, at < since).group_by(requests.c.key_id).having(enough)
    async with engine.connect() as connection:
        new = {key: (float(usd), int(count)) for key, usd, count in await connection.execute(lately)}
        # The longer period is read only where there is something to compare it with.
        old = {key: (float(usd), int(count)) for key, usd, count in await connection.execute(before)} if new else {}
    costs = [
        KeyCost(key_id=key, lately_usd=usd, lately=count, before_usd=old[key][0], before=old[key][1])
        for key, (usd, count) in new.items()
        if key in old and old[key][0] > 0
    ]
    return max(costs, key=lambda cost: cost.ratio, default=None)
