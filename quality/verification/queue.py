"""The queue of verifications: rows in the database that survive restarts, with leases and reserved money."""

import math
import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec
from sqlalchemy import (
    BindParameter,
    ColumnElement,
    CompoundSelect,
    RowMapping,
    Select,
    String,
    and_,
    bindparam,
    case,
    func,
    insert,
    literal_column,
    null,
    or_,
    select,
    union_all,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from migrations.tables.audit import erasures
from migrations.tables.quality import tool_definitions, training_rows, verifications
from migrations.tables.requests import requests, routing_decisions
from migrations.tables.tenancy import api_keys
from quality.estimates.verified_sample import UNCERTAIN, by_a_judge, newest_verifications
from quality.records.record import Record, consent_of
from quality.store.queries import exclusive, insert_into
from quality.verification.comparison import VerifiedComparison
from quality.verification.job import Depth, Exchange, Ruling, VerificationJob, exchange_from, stored_exchange
from quality.verification.sampling import WHY_NOT, Draw, Reason, SamplingSettings, Spending, admits, covers

# The columns shared by the rows of one request's rulings.
_SHARED = ("request_id", "key_id", "sampled_probability", "sampled_reason", "attempts", "created_at")
# A turn is kept no longer than its verification waits.
NO_TURN = {"turn": null(), "tools_digest": None}
_CLAIM_LOCK = 0x41494F03  # PostgreSQL advisory lock number: "AIO", 3

# What each verification asks for is built here, once: building it took longer than the database did.
_FREE = and_(
    verifications.c.status == "pending",
    or_(verifications.c.lease_until.is_(None), verifications.c.lease_until <= bindparam("now")),
)
_CLAIMABLE = and_(_FREE, verifications.c.attempts < bindparam("most_attempts"))
# Who pays for a verification, as `quality.verification.training_rows.TENANT`.
_TENANT = func.coalesce(api_keys.c.team_id, verifications.c.key_id, "")
_NEXT_JOBS = (
    select(
        verifications.c.verification_id,
        verifications.c.request_id,
        verifications.c.key_id,
        verifications.c.sampled_reason.label("purpose"),
        verifications.c.sampled_probability.label("probability"),
        requests.c.tier.label("served_tier"),
        requests.c.messages,
        requests.c.answer,
        requests.c.prompt_tokens,
        requests.c.completion_tokens,
        requests.c.response_format,
        requests.c.consent,
        verifications.c.attempts,
        verifications.c.compared,
        verifications.c.turn,
        verifications.c.next_step,
        tool_definitions.c.tools,
        routing_decisions.c.would_be_tier,
        _TENANT.label("tenant"),
    )
    .join(requests, requests.c.request_id == verifications.c.request_id)
    .outerjoin(routing_decisions, routing_decisions.c.request_id == verifications.c.request_id)
    .outerjoin(tool_definitions, tool_definitions.c.digest == verifications.c.tools_digest)
    .outerjoin(api_keys, api_keys.c.key_id == verifications.c.key_id)
    .where(_CLAIMABLE, requests.c.messages.is_not(None), requests.c.answer.is_not(None))
    .where(verifications.c.verification_id.not_in(bindparam("without", expanding=True)))
    .where(_TENANT.not_in(bindparam("without_tenants", expanding=True)))
    .order_by(verifications.c.created_at, verifications.c.verification_id)
    .limit(bindparam("most"))
)
_SWEEP = (
    update(verifications)
    .where(
        _FREE,
        or_(
            verifications.c.attempts >= bindparam("most_attempts"),
            verifications.c.created_at < bindparam("expire_before"),
        ),
    )
    .values(
        **NO_TURN,
        status="failed",
        reason="out of attempts or time",
        cost_usd=verifications.c.cost_usd + verifications.c.reserved_usd,
        reserved_usd=0.0,
        owner=None,
        lease_until=None,
        finished_at=bindparam("now"),
    )
)


_SINCE: BindParameter[float] = bindparam("since")
_OWN_KEY: BindParameter[str] = bindparam("key_id", type_=String)


def _keys_of_tenant() -> CompoundSelect[Any]:
    """Return the keys of the team of a key, or that key alone."""
    asked = api_keys.alias("asked_key")
    team = select(api_keys.c.key_id).join(asked, asked.c.team_id == api_keys.c.team_id)
    return union_all(select(_OWN_KEY), team.where(asked.c.key_id == _OWN_KEY))


def _spending_queries() -> tuple[Select[Any], ...]:
    """Return what was served and saved, the answers by tier, and, of probes and others, the dollars and the count of
    verifications: each since a time."""
    consenting = and_(requests.c.api == "chat", requests.c.status == "ok", requests.c.messages.is_not(None))
    tier = requests.c.tier
    serving = select(func.sum(requests.c.cost_usd), _SAVED).where(requests.c.created_at > _SINCE, tier.is_not(None))
    answered = select(tier, func.count()).where(requests.c.created_at > _SINCE, consenting).group_by(tier)
    probe = (verifications.c.sampled_reason == "probe").label("probe")
    usd = func.sum(verifications.c.cost_usd + verifications.c.reserved_usd).label("usd")
    ended = verifications.c.finished_at
    # Two halves, because PostgreSQL uses no index for an OR; one statement, because rows move between them.
    halves = (select(probe, usd).where(half).group_by(probe) for half in (ended.is_(None), ended > _SINCE))
    spent = union_all(*halves).subquery().c
    committed = select(spent.probe, func.sum(spent.usd)).group_by(spent.probe)
    # User feedback costs nothing. It is no condition of the query, for which SQLite would read all of its rows.
    paid = and_(verifications.c.status == "done", verifications.c.sampled_reason != "feedback")
    done = case((paid, verifications.c.request_id)).label("done")
    verified = select(probe, done).where(ended > _SINCE).distinct().subquery().c
    counted = select(verified.probe, func.count(verified.done)).group_by(verified.probe)
    return serving, answered, committed, counted


def _own_queries() -> tuple[Select[Any], ...]:
    """Return of a tenant the answers by tier with what they cost and saved, and the dollars of its verifications, each
    since a time; and the dollars until then. They read indexes alone, but for the few waiting verifications."""
    mine = requests.c.key_id.in_(_keys_of_tenant())
    served = (
        select(requests.c.tier, func.count(), func.sum(requests.c.cost_usd), _SAVED)
        .where(requests.c.created_at > _SINCE, requests.c.tier.is_not(None), mine)
        .group_by(requests.c.tier)
    )
    v = verifications.c
    mine = v.key_id.in_(_keys_of_tenant())
    # A constant, without which SQLite does not use the index of what cost anything.
    paid = and_(mine, v.cost_usd > literal_column("0"))
    halves = (
        select(func.sum(v.cost_usd + v.reserved_usd).label("usd")).where(mine, v.finished_at.is_(None)),
        select(func.sum(v.cost_usd).label("usd")).where(paid, v.finished_at > _SINCE),
    )
    committed = select(func.sum(union_all(*halves).subquery().c.usd))
    return served, committed, select(func.sum(v.cost_usd)).where(paid, v.finished_at <= _SINCE)


# Requests are stored when they have ended, so what is saved here is settled.
_SAVED = func.sum(requests.c.baseline_cost_usd - requests.c.cost_usd)
_SPENDING = _spending_queries()
_OWN_SERVED, _OWN_COMMITTED, _SPENT_BEFORE = _own_queries()
_TEAM = select(api_keys.c.team_id).where(api_keys.c.key_id == _OWN_KEY)
_MOST_STARTED = 10_000


Claim = Literal["claimed", "taken", "no budget", "no budget of its own"]
"""What came of a claim: another worker may hold the job, and the budget of all tenants or that of its own be spent."""


class Own(NamedTuple):
    """The `tenant` of a key (its team, else the key) and the spending of it; None for a tenant without a bound."""

    tenant: str
    spending: Spending | None


class VerificationQueue:
    """Rows of `verifications`. The holder of a row's lease works on it, and only the holder may finish it.

    Money: claiming reserves the most that an attempt can cost, in the same exclusive transaction that checks the
    budgets, for any number of replicas; what it does not cost goes back. That most must fit into what is left to the
    answer's tenant and under the absolute cap, which are never exceeded. The budget of all tenants (SPEC QM-10) must
    cover the expected price, or the mean of the window's if that is more, so that it is exceeded by at most what one
    attempt costs above that. The reservation of an attempt whose worker died counts as spent, because it may have been.
    """

    def __init__(
        self, engine: AsyncEngine, sampling: SamplingSettings, *, lease_seconds: float, max_attempts: int
    ) -> None:
        self._engine = engine
        self.sampling = sampling
        self._lease_seconds = lease_seconds
        self._max_attempts = max_attempts
        self.owner = f"monitor-{uuid.uuid4().hex}"
        # By tenant whose start is spent, what was spent before the window, which only grows.
        self._started: dict[str, float] = {}

    async def add(
        self,
        record: Record,
        drawn: Draw,
        now: float,
        judged: tuple[int, str] | None = None,
        compared: VerifiedComparison | None = None,
        turn: Exchange | None = None,
        not_before: float | None = None,
    ) -> bool:
        """Queue `record` for verification; False if it was queued before or its user's data was erased.

        `judged`: the tier to judge first, and its model; by default those that served. `compared`, `turn`: see the
        job's. It is not claimed `not_before` that time, unless `call_failed`.
        """
        body, digest, tools = (None, None, None) if turn is None else stored_exchange(turn, record.key_id)
        tier, model = judged or (record.tier, record.model)
        waits = {"compared": compared, "turn": body, "tools_digest": digest, "lease_until": not_before}
        async with exclusive(self._engine, _CLAIM_LOCK) as connection:
            added = await _insert(connection, record, drawn, now, tier=tier, model=model, status="pending", **waits)
            if added and digest is not None:
                statement = insert_into(tool_definitions, connection.dialect).values(
                    digest=digest, key_id=record.key_id, tools=tools, used_at=now
                )
                await connection.execute(
                    statement.on_conflict_do_update(index_elements=[tool_definitions.c.digest], set_={"used_at": now})
                )
            return added

    async def skip(self, record: Record, drawn: Draw, reason: Reason, now: float) -> None:
        """Store why a drawn answer is not verified, with nothing else of it."""
        served = {"tier": record.tier, "model": record.model}
        ended = {"status": "skipped", "reason": WHY_NOT[reason], "finished_at": now}
        async with exclusive(self._engine, _CLAIM_LOCK) as connection:
            await _insert(connection, record, drawn, now, **served, **ended)

    async def call_failed(self, request_id: str) -> bool:
        """Note that a call of the waiting verification's answer failed, and let it be judged; False if none waits."""
        v = verifications.c
        waiting = and_(v.request_id == request_id, v.status == "pending", v.owner.is_(None))
        async with self._engine.begin() as connection:
            noted = update(verifications).where(waiting).values(next_step="failed", lease_until=None)
            return bool((await connection.execute(noted)).rowcount)

    async def next_job(self, now: float, without: Collection[int] = ()) -> VerificationJob | None:
        """Return the oldest job that could be claimed now and whose id is not in `without`. A job waits until the
        ledger has stored its request."""
        jobs = await self.next_jobs(now, without, 1)
        return jobs[0] if jobs else None

    async def next_jobs(
        self, now: float, without: Collection[int], most: int, without_tenants: Collection[str] = ()
    ) -> list[VerificationJob]:
        """Return up to `most` jobs that could be claimed now, the oldest first: without those whose ids or tenants are
        given."""
        limits = self._limits(now) | {"without": without, "without_tenants": without_tenants, "most": most}
        async with self._engine.connect() as connection:
            return [_job(row) for row in (await connection.execute(_NEXT_JOBS, limits)).mappings()]

    async def claim(
        self, job: VerificationJob, bound_usd: float, now: float, expected_usd: float | None = None
    ) -> Claim:
        """Take the lease of `job`, and reserve `bound_usd`, the most that it costs, if both are available.

        The budget of all tenants must cover `expected_usd`, or the mean of the window's verifications if that is more;
        the bound without it.
        """
        async with exclusive(self._engine, _CLAIM_LOCK) as connection:
            spending = await self._spending(connection, now)
            usd = bound_usd
            if expected_usd is not None:
                usd = min(bound_usd, max(expected_usd, spending.price(job.purpose) or 0.0))
            capped = spending.committed_usd + spending.probe_usd + bound_usd > self.sampling.most_usd
            if capped or not admits(spending, usd, job.purpose, self.sampling):
                return "no budget"
            own = (await self._own(connection, job.key_id, now)).spending
            if own is not None and not covers(own, bound_usd, self.sampling):
                return "no budget of its own"
            taken = await connection.execute(
                update(verifications)
                .where(
                    verifications.c.verification_id == job.verification_id,
                    verifications.c.attempts == job.attempts,
                    _CLAIMABLE,
                )
                .values(
                    owner=self.owner,
                    lease_until=now + self._lease_seconds,
                    attempts=verifications.c.attempts + 1,
                    cost_usd=verifications.c.cost_usd + verifications.c.reserved_usd,
                    reserved_usd=bound_usd,
                ),
                self._limits(now),
            )
            return "claimed" if taken.rowcount else "taken"

    async def finish(
        self, job: VerificationJob, rulings: Sequence[Ruling], training_row: Mapping[str, Any] | None, now: float
    ) -> bool:
        """Write a row per ruling and the training row in one transaction; False if the lease was lost."""
        own, *others = map(_columns, rulings)
        cost_usd = own.pop("cost_usd")
        async with self._engine.begin() as connection:
            done = await connection.execute(
                update(verifications)
                .where(self._held(job))
                .values(
                    **own,
                    **NO_TURN,
                    status="done",
                    cost_usd=verifications.c.cost_usd + cost_usd,
                    reserved_usd=0.0,
                    owner=None,
                    lease_until=None,
                    error=None,
                    finished_at=now,
                )
            )
            if not done.rowcount:
                return False
            drawn = select(verifications).where(verifications.c.verification_id == job.verification_id)
            row = (await connection.execute(drawn)).mappings().one()
            for fields in others:
                shared = {name: row[name] for name in _SHARED}
                done_at = {"status": "done", "reserved_usd": 0.0, "finished_at": now}
                await connection.execute(insert(verifications).values(**shared, **done_at, **fields))
            if training_row is not None:
                await connection.execute(insert(training_rows).values(dict(training_row)))
            return True

    async def give_back(self, job: VerificationJob, error: str, cost_usd: float, retry_at: float, now: float) -> None:
        """End a failed attempt: the row waits until `retry_at`, or fails permanently after the last attempt."""
        last = job.attempts + 1 >= self._max_attempts
        async with self._engine.begin() as connection:
            await connection.execute(
                update(verifications)
                .where(self._held(job))
                .values(
                    status="failed" if last else "pending",
                    error=error,
                    reason=f"gave up after {self._max_attempts} attempts" if last else None,
                    cost_usd=verifications.c.cost_usd + cost_usd,
                    reserved_usd=0.0,
                    owner=None,
                    lease_until=None if last else retry_at,
                    finished_at=now if last else None,
                    **(NO_TURN if last else {}),
                )
            )

    async def drop(self, job: VerificationJob, reason: Reason, now: float) -> None:
        """End an unclaimed job, without a verdict."""
        unclaimed = and_(verifications.c.verification_id == job.verification_id, _CLAIMABLE)
        ended = {**NO_TURN, "status": "skipped", "reason": WHY_NOT[reason], "lease_until": None, "finished_at": now}
        async with self._engine.begin() as connection:
            await connection.execute(update(verifications).where(unclaimed).values(**ended), self._limits(now))

    async def sweep(self, now: float, expire_before: float) -> int:
        """Fail rows that no worker will finish: from before `expire_before`, or whose last attempt died."""
        limits = self._limits(now) | {"expire_before": expire_before}
        async with self._engine.begin() as connection:
            return (await connection.execute(_SWEEP, limits)).rowcount

    async def spending(self, now: float) -> Spending:
        """Return the serving and verification cost of the trailing window."""
        async with self._engine.connect() as connection:
            return await self._spending(connection, now)

    async def own(self, key_id: str | None, now: float) -> Own:
        """Return the tenant of a key and its spending of the trailing window."""
        async with self._engine.connect() as connection:
            return await self._own(connection, key_id, now)

    async def depth(self) -> Depth:
        """Count the waiting rows, and among the newest those done and failed, with their labels. What people rated is
        no verification."""
        verdicts = newest_verifications()
        newest = verdicts.c
        waiting = select(func.count()).where(verifications.c.status == "pending")
        doubted = func.count(case((newest.label == UNCERTAIN, 1)))
        ended: Select[Any] = select(newest.status, func.count(), func.count(newest.label), doubted)
        ended = ended.where(by_a_judge(verdicts)).group_by(newest.status)
        async with self._engine.connect() as connection:
            pending = await connection.scalar(waiting) or 0
            rows = {status: counts for status, *counts in await connection.execute(ended)}
        done, labelled, uncertain = rows.get("done", (0, 0, 0))
        return Depth(
            pending=pending,
            done=done,
            failed=rows.get("failed", (0,))[0],
            labelled=labelled - uncertain,
            uncertain=uncertain,
        )

    async def _spending(self, connection: AsyncConnection, now: float) -> Spending:
        served, answered, committed, counted = _SPENDING
        since = {"since": now - self.sampling.window_seconds}
        committed_usd = {bool(is_probe): usd for is_probe, usd in await connection.execute(committed, since)}
        verified_count = {bool(is_probe): count for is_probe, count in await connection.execute(counted, since)}
        served_usd, saved_usd = (await connection.execute(served, since)).one()
        return Spending(
            serving_usd=served_usd or 0.0,
            saved_usd=max(saved_usd or 0.0, 0.0),
            answered=dict((await connection.execute(answered, since)).all()),
            committed_usd=committed_usd.get(False, 0.0),
            verifications=verified_count.get(False, 0),
            probe_usd=committed_usd.get(True, 0.0),
            probes=verified_count.get(True, 0),
        )

    async def _own(self, connection: AsyncConnection, key_id: str | None, now: float) -> Own:
        """Requests without a key are the operator's own, and have no bound but that of all tenants."""
        if key_id is None:
            return Own("", None)
        since = {"since": now - self.sampling.window_seconds, "key_id": key_id}
        tenant = await connection.scalar(_TEAM, since) or key_id
        if math.isinf(self.sampling.start_usd):
            return Own(tenant, None)
        served = (await connection.execute(_OWN_SERVED, since)).all()
        spending = Spending(
            serving_usd=sum(cost for _, _, cost, _ in served),
            saved_usd=max(sum(saved for *_, saved in served), 0.0),
            answered={tier: count for tier, count, _, _ in served},
            committed_usd=await connection.scalar(_OWN_COMMITTED, since) or 0.0,
            start_usd=await self._start_left(connection, tenant, since),
        )
        return Own(tenant, spending)

    async def _start_left(self, connection: AsyncConnection, tenant: str, since: Mapping[str, Any]) -> float:
        """Return what is left of the tenant's start at the beginning of the window: the first dollars that its
        verification ever cost are the start's."""
        start_usd = self.sampling.start_usd
        if self._started.get(tenant, -1.0) >= start_usd:
            return 0.0
        spent = await connection.scalar(_SPENT_BEFORE, since) or 0.0
        if spent >= start_usd:
            self._started[tenant] = spent
            if len(self._started) > _MOST_STARTED:
                del self._started[next(iter(self._started))]
        return max(start_usd - spent, 0.0)

    def _limits(self, now: float) -> dict[str, Any]:
        return {"now": now, "most_attempts": self._max_attempts}

    def _held(self, job: VerificationJob) -> ColumnElement[bool]:
        # The attempt number excludes an earlier attempt of this process that lost its lease.
        return and_(
            verifications.c.verification_id == job.verification_id,
            verifications.c.status == "pending",
            verifications.c.owner == self.owner,
            verifications.c.attempts == job.attempts + 1,
        )


def _job(row: RowMapping) -> VerificationJob:
    fields = dict(row)
    fields["turn"] = exchange_from(fields["turn"], fields.pop("tools"))
    fields["compared"] = msgspec.convert(row["compared"], VerifiedComparison | None)
    return VerificationJob(**fields | {"consent": consent_of(row["consent"])})


async def _insert(connection: AsyncConnection, record: Record, drawn: Draw, now: float, **fields: Any) -> bool:
    """Insert the row of a drawn answer; False if it is there already, or its user's data was erased."""
    if record.key_id is not None:
        erased_at = await connection.scalar(select(erasures.c.erased_at).where(erasures.c.key_id == record.key_id))
        if erased_at is not None and record.created_at <= erased_at:
            return False
    row = {
        "request_id": record.request_id,
        "key_id": record.key_id,
        "sampled_probability": drawn.probability,
        "sampled_reason": drawn.purpose,
        "cost_usd": 0.0,
        "reserved_usd": 0.0,
        "attempts": 0,
        "created_at": now,
        **fields,
    }
    statement = insert_into(verifications, connection.dialect).values(row).on_conflict_do_nothing()
    return bool((await connection.execute(statement)).rowcount)


def _columns(ruling: Ruling) -> dict[str, Any]:
    """Return what is stored of a ruling; the cost of opinions is part of its cost."""
    fields = msgspec.structs.asdict(ruling)
    del fields["opinions_usd"]
    return fields
