"""What alerts report besides the figures of the rules: which tier is out, which budgets are spent by how much, that
answers get no labels, that routing does not pay. Shared state is reported once by all replicas together.
"""

import logging
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

from sqlalchemy import case, func, or_, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.base.inference_request import BudgetRef
from gateway.base.settings import Settings
from gateway.operations.constant_tier import ConstantFollower
from gateway.telemetry.alert_channels import Cause
from gateway.tenancy.budgets.lease_book import MICRO, QUOTA_EXCEEDED, period_bounds, period_key
from migrations.tables.quality import verifications
from migrations.tables.requests import refused_requests, requests
from migrations.tables.tenancy import api_keys, budget_leases, budgets, teams
from tiers.tier import Tier

log = logging.getLogger(__name__)

LEVELS = (100, 80, 50)
"""Per cent of a budget that are reported, the highest first."""
OUT_SECONDS, REFUSED_SECONDS = 60.0, 3600.0
SILENT_DAYS, LEAST_ANSWERS = 3, 200
"""Labels are silent if none came for so many days in which so many answers could have been verified."""
LABELS_SECONDS = 300.0


def tiers_out(tiers: Sequence[Tier], source: str) -> list[Cause]:
    """Return a cause for each tier that takes no requests."""
    return [
        Cause(
            name="AioTierDown",
            key=f"AioTierDown/{tier.number}",
            summary=f"tier {tier.number} ({tier.model}) takes no requests; other tiers answer",
            source=source,
            for_seconds=OUT_SECONDS,
        )
        for tier in tiers
        if not tier.load().healthy
    ]


async def spent_budgets(engine: AsyncEngine, now: float) -> list[Cause]:
    """Return a cause for each budget of which half or more is spent in its period, as replicas last reported, or by
    which a request was refused in the last hour. A budget that is changed and one of the next period are others."""
    b, lease = budgets.c, budget_leases.c
    keys = {period: period_key(period, now) for period in ("day", "month", "total")}
    spent = func.coalesce(func.sum(lease.spent_microusd), 0)
    joined = budgets.outerjoin(
        budget_leases, (lease.budget_id == b.budget_id) & (lease.period_key == case(keys, value=b.period))
    )
    refused = await _refused(engine, now)
    query = (
        select(b.budget_id, b.subject_kind, b.subject, b.period, b.amount_microusd, spent.label("spent"))
        .select_from(joined)
        .group_by(*(b[name] for name in ("budget_id", "subject_kind", "subject", "period", "amount_microusd")))
        .having(or_(spent * 100 >= b.amount_microusd * LEVELS[-1], b.subject.in_({subject for subject, _ in refused})))
    )
    async with engine.connect() as connection:
        rows = (await connection.execute(query)).all()
        named = {row.subject for row in rows}
        of_keys = select(api_keys.c.key_id, api_keys.c.name).where(api_keys.c.key_id.in_(named))
        of_teams = select(teams.c.team_id, teams.c.name).where(teams.c.team_id.in_(named))
        names = {row[0]: row[1] for row in await connection.execute(of_keys.union_all(of_teams))} if named else {}
    causes = []
    for row in rows:
        ref = BudgetRef(
            budget_id=row.budget_id,
            period=row.period,
            amount_usd=row.amount_microusd / MICRO,
            subject_kind=row.subject_kind,
        )
        began = period_bounds(keys[row.period])[0]
        is_refused = refused.get((row.subject, _limit(ref)), -1.0) >= began
        reached = (percent for percent in LEVELS if row.spent * 100 >= row.amount_microusd * percent)
        level = 100 if is_refused else next(reached, 0)
        if level and row.amount_microusd:
            causes.append(
                _spent(ref, names.get(row.subject, row.subject), keys[row.period], row.spent, level, is_refused)
            )
    return causes


def _spent(ref: BudgetRef, name: str, period: str, microusd: int, level: int, is_refused: bool) -> Cause:
    whose = f"the budget of {ref.said} of {ref.subject_kind} {name}"
    what = f"{level}% of {whose} is spent" if not is_refused else f"requests are refused by {whose}"
    return Cause(
        name="AioBudget",
        key=f"AioBudget/{ref.budget_id}/{period}/{ref.amount_usd:g}/{level}",
        summary=f"{what} (${microusd / MICRO:.2f} so far)" if microusd >= 10_000 else what,
        ends=False,
    )


def _limit(ref: BudgetRef) -> str:
    """Return how a refusal names the budget (`admission`)."""
    return f"the {ref.subject_kind}'s budget of {ref.said}"


async def _refused(engine: AsyncEngine, now: float) -> dict[tuple[str, str], float]:
    """Return the last minute of refusals in the last hour, by the id of the key or team and the limit."""
    r = refused_requests.c
    query = (
        select(r.key_id, api_keys.c.team_id, r.reason, func.max(r.created_at))
        .select_from(refused_requests.outerjoin(api_keys, api_keys.c.key_id == r.key_id))
        .where(r.code == QUOTA_EXCEEDED, r.created_at >= now - REFUSED_SECONDS, r.key_id.is_not(None))
        .group_by(r.key_id, api_keys.c.team_id, r.reason)
    )
    last_refusals: dict[tuple[str, str], float] = {}
    async with engine.connect() as connection:
        for key, team, reason, at in await connection.execute(query):
            whose = team if reason.startswith("the team's") and team is not None else key
            last_refusals[whose, reason] = max(at, last_refusals.get((whose, reason), 0.0))
    return last_refusals


async def unlabelled_answers(engine: AsyncEngine, now: float) -> int:
    """Return how many answers of the last `SILENT_DAYS` could have been verified; 0 if a label came in these days, and
    where there was no request before them."""
    since = now - SILENT_DAYS * 86_400
    r, v = requests.c, verifications.c
    labelled = select(v.verification_id).where(v.label.is_not(None), v.finished_at >= since).limit(1)
    earlier = select(r.request_id).where(r.created_at < since).limit(1)
    stored = select(func.count()).where(r.created_at >= since, r.messages.is_not(None), r.status == "ok")
    async with engine.connect() as connection:
        if await connection.scalar(earlier) is None or await connection.scalar(labelled) is not None:
            return 0
        return int(await connection.scalar(stored) or 0)


class RunningCauses:
    """The causes that stand in this process now; those of the database are missing while it is away."""

    def __init__(
        self,
        settings: Settings,
        database: AsyncEngine,
        tiers: Callable[[], Sequence[Tier]],
        labels: Callable[[], str | None],
        constant: ConstantFollower,
    ) -> None:
        """`labels`: where labels come from, None where nothing is verified."""
        self._verifies = settings.verifies
        self._database, self._tiers, self._labels, self._constant = database, tiers, labels, constant
        self._source = socket.gethostname()
        self._labels_at, self._unlabelled = 0.0, 0

    async def look(self) -> Mapping[str, Sequence[Cause]]:
        """Return them by alert."""
        causes: dict[str, Sequence[Cause]] = {"AioTierDown": tiers_out(self._tiers(), self._source)}
        worth = None if self._constant.last is None else self._constant.last.catalogue
        if worth is not None:
            pays = worth.verdict != "does_not_pay"
            summary = self._constant.in_words(worth)
            name = "AioRoutingDoesNotPay"
            causes[name] = [] if pays else [Cause(name=name, key=name, summary=summary)]
        await self._add(causes, "AioBudget", self._budgets)
        if self._verifies:
            await self._add(causes, "AioLabelsSilent", self._silent)
        return causes

    async def _add(
        self, causes: dict[str, Sequence[Cause]], name: str, read: Callable[[], Awaitable[Sequence[Cause]]]
    ) -> None:
        try:
            causes[name] = await read()
        except (SQLAlchemyError, OSError) as error:
            log.warning("alert %s cannot be checked: %s", name, type(error).__name__)

    async def _budgets(self) -> Sequence[Cause]:
        return await spent_budgets(self._database, time.time())

    async def _silent(self) -> Sequence[Cause]:
        now = time.time()
        if now >= self._labels_at + LABELS_SECONDS:
            self._unlabelled, self._labels_at = await unlabelled_answers(self._database, now), now
        if self._unlabelled < LEAST_ANSWERS:
            return []
        said = f"no label for {SILENT_DAYS} days, in which {self._unlabelled:,} answers could have been verified"
        return [Cause(name="AioLabelsSilent", key="AioLabelsSilent", summary=f"{said}. {self._labels() or ''}".strip())]
