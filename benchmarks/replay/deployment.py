"""A real gateway process in front of the replaying upstream, from a cold start, driven by what operators have: its HTTP
API, and the database for what it wrote down."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
from sqlalchemy import Select, func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from benchmarks.replay.judge import RecordedJudge
from benchmarks.replay.ladder import Ladder, Prompt, uniform
from benchmarks.replay.upstream import ReplayUpstream, running_upstream
from benchmarks.running_server import running_server
from gateway.base.settings import Settings
from migrations.tables.audit import audit_events
from migrations.tables.quality import retrain_runs, training_rows, verifications
from migrations.tables.requests import requests
from quality.estimates.verified_sample import has_verdict
from quality.judges.calibration import GradedPair, calibrate
from quality.judges.pairwise import PairwiseJudge
from quality.judges.panel import store_calibration
from quality.store.database import migrate, open_database
from tiers.catalog.load import load_catalog
from tiers.remote.remote_tier import RemoteTier

# So many pairs of either outcome measure the judge before the start.
_MEASURED_PAIRS = 60
# Verifications that do not move for so long wait for a budget that is used up.
_STUCK_SECONDS = 5.0
# A gateway whose labels count looks for new ones more often by far, on a busy machine too.
_LEARNING_SECONDS = 30.0
_LABELS = "aio_own_labels "
_EVERY_FOURTH = 4
# Nothing that a working gateway does here takes so long.
_MOST_SECONDS = 900.0


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """How a run is set up. `judge_noise`: share of comparisons that the judge gets wrong. `labels_shuffled` and
    `verification` (False) break the loop on purpose."""

    judge_noise: float = 0.08
    labels_shuffled: bool = False
    verification: bool = True
    in_flight: int = 8
    faster: float = 200.0

    @property
    def environment(self) -> dict[str, str]:
        """For the gateway. An accepted version serves all requests at once, without a canary. All may be verified: of a
        few hundred requests it could not learn at the 5% that pay for themselves in months of traffic."""
        return {
            "AIO_SAMPLING_RATE": "1" if self.verification else "0",
            "AIO_VERIFICATION_BUDGET": "1000" if self.verification else "0",
            "AIO_CANARY_SHARE": "0",
            "AIO_ARTEFACT_POLL_SECONDS": "0.2",
            "AIO_RETRAIN_CRON": "0 3 1 1 *",
        }


class Spent(msgspec.Struct, frozen=True):
    """US dollars so far, and what they bought. `worse`: labels that say so."""

    requests: int
    serving_usd: float
    verification_usd: float
    labels: int
    worse: int


class Retraining(msgspec.Struct, frozen=True, kw_only=True):
    """A run of the gateway's retraining, as it wrote it down."""

    trigger: str
    status: str
    reason: str
    version: str | None
    accepted: bool
    metrics: dict[str, Any] | None = None


class Alarm(msgspec.Struct, frozen=True):
    """An alarm of the sequential test."""

    stream: str
    reason: str


class Deployment:
    """The gateway at `url` with the database that it writes."""

    def __init__(self, url: str, admin_key: str, engine: AsyncEngine, conditions: Conditions) -> None:
        self.engine = engine
        self._conditions = conditions
        self._client = httpx.AsyncClient(base_url=url, timeout=120)
        self._admin = httpx.AsyncClient(base_url=url, timeout=120, headers={"authorization": f"Bearer {admin_key}"})
        self.asked = 0

    async def close(self) -> None:
        """Close the clients."""
        await self._client.aclose()
        await self._admin.aclose()

    async def ask(self, prompts: Sequence[Prompt]) -> None:
        """Ask `auto` every prompt, some at a time, every fourth as a stream. Raises `httpx.HTTPStatusError`.

        No tiers are compared: most texts are made to carry an outcome and have no final answer, so that they would all
        differ, and what is measured is the choice of one tier.
        """
        numbered = iter(enumerate(prompts, start=self.asked))
        self.asked += len(prompts)

        async def worker() -> None:
            for number, prompt in numbered:
                body = {"model": "auto", "messages": _turn(prompt), "stream": number % _EVERY_FOURTH == 0}
                headers = {"x-aio-cache": "off", "x-aio-agree": "false"}
                answer = await self._client.post("/v1/chat/completions", json=body, headers=headers)
                answer.raise_for_status()

        await asyncio.gather(*(worker() for _ in range(self._conditions.in_flight)))

    async def settle(self, stuck_seconds: float = _STUCK_SECONDS) -> None:
        """Wait until every request is in the database and every verification that can be paid for has ended, or nothing
        has moved for `stuck_seconds`."""
        last, since = None, time.monotonic()
        while True:
            async with self.engine.connect() as connection:
                stored = await connection.scalar(select(func.count()).select_from(requests))
                counted: Select[Any] = select(verifications.c.status, func.count()).group_by(verifications.c.status)
                states = {str(status): int(count) for status, count in await connection.execute(counted)}
            now = stored, *sorted(states.items())
            if now != last:
                last, since = now, time.monotonic()
            quiet = time.monotonic() - since
            done = stored == self.asked and not states.get("pending")
            # A moment longer than the monitor needs to draw from what it was offered last.
            if (done and quiet > 0.5) or quiet > stuck_seconds:
                return
            await asyncio.sleep(0.1)

    async def learned(self) -> None:
        """Wait until every stored label counts in decisions, or no further one has for `_LEARNING_SECONDS`: labels of
        answers that no tier gives any longer do not count."""
        last, since = -1.0, time.monotonic()
        while True:
            async with self.engine.connect() as connection:
                stored = await connection.scalar(select(func.count()).select_from(training_rows)) or 0
            lines = (await self._admin.get("/metrics")).raise_for_status().text.splitlines()
            counted = next(float(line.removeprefix(_LABELS)) for line in lines if line.startswith(_LABELS))
            if counted != last:
                last, since = counted, time.monotonic()
            if counted >= stored or time.monotonic() - since > _LEARNING_SECONDS:
                return
            await asyncio.sleep(0.1)

    async def choices(self, prompts: Sequence[Prompt]) -> np.ndarray[Any, np.dtype[np.intp]]:
        """The tiers that the gateway would give these prompts now, by dry runs: nothing is answered or learned."""
        tiers = np.zeros(len(prompts), np.intp)
        numbered = iter(enumerate(prompts))

        async def worker() -> None:
            for number, prompt in numbered:
                tiers[number] = (await self._routing(prompt))["tier"]

        await asyncio.gather(*(worker() for _ in range(self._conditions.in_flight)))
        return tiers

    async def spent(self) -> Spent:
        """What was served and verified so far."""
        served = select(func.count(), func.sum(requests.c.cost_usd))
        checked = select(
            func.sum(verifications.c.cost_usd),
            func.count().filter(has_verdict()),
            func.count().filter(verifications.c.label == "worse"),
        )
        async with self.engine.connect() as connection:
            count, serving_usd = (await connection.execute(served)).one()
            verification_usd, labels, worse = (await connection.execute(checked)).one()
        return Spent(count, serving_usd or 0.0, verification_usd or 0.0, labels, worse)

    async def version(self, prompt: Prompt) -> str:
        """The classifier version that decides now."""
        return str((await self._routing(prompt))["decision"]["inputs"]["prediction"]["classifier_version"])

    async def retrain(self, reason: str) -> Retraining:
        """Order a retraining as the dashboard's button does, and wait for its end. Raises `TimeoutError`."""
        before = len(await self.retrainings())
        while True:
            # One that an alarm began comes to its end first.
            await self.retraining_ended()
            answer = await self._admin.post("/admin/api/retrainings", json={"reason": reason})
            answer.raise_for_status()
            if answer.json()["started"]:
                break
            await asyncio.sleep(0.1)
        await self._until(lambda runs: len(runs) > before)
        await self.retraining_ended()
        return (await self.retrainings())[-1]

    async def retraining_ended(self) -> None:
        """Wait until no retraining is under way. Raises `TimeoutError`."""
        await self._until(lambda runs: all(run.status != "running" for run in runs))

    async def serving(self, version: str, prompt: Prompt) -> None:
        """Wait until `version` decides. Raises `TimeoutError`."""
        async with asyncio.timeout(_MOST_SECONDS):
            # Polled: the event happens in another process.
            while await self.version(prompt) != version:  # noqa: ASYNC110
                await asyncio.sleep(0.1)

    async def retrainings(self) -> list[Retraining]:
        """All runs, the first first."""
        query = select(retrain_runs).order_by(retrain_runs.c.created_at)
        async with self.engine.connect() as connection:
            rows = (await connection.execute(query)).mappings().all()
            accepted = set(
                await connection.scalars(
                    select(audit_events.c.subject).where(audit_events.c.action == "retrain.accepted")
                )
            )
        return [
            Retraining(
                trigger=row["trigger"],
                status=row["status"],
                reason=row["reason"] or row["error"] or "",
                version=row["classifier_version"],
                accepted=row["run_id"] in accepted,
                metrics=row["metrics"],
            )
            for row in rows
        ]

    async def alarms(self) -> list[Alarm]:
        """All alarms, the first first."""
        query = (
            select(audit_events.c.details, audit_events.c.reason)
            .where(audit_events.c.action == "quality.alarm")
            .order_by(audit_events.c.audit_event_id)
        )
        async with self.engine.connect() as connection:
            return [Alarm(details["stream"], reason) for details, reason in await connection.execute(query)]

    async def experience(self) -> list[tuple[bytes, list[bool | None]]]:
        """Every label so far: the prompt's embedding, and by tier whether its answer was no worse."""
        query = select(training_rows.c.embedding, training_rows.c.no_worse)
        async with self.engine.connect() as connection:
            return [(embedding, no_worse) for embedding, no_worse in await connection.execute(query)]

    async def _until(self, holds: Callable[[list[Retraining]], bool]) -> None:
        async with asyncio.timeout(_MOST_SECONDS):
            # Polled: the event happens in another process.
            while not holds(await self.retrainings()):  # noqa: ASYNC110
                await asyncio.sleep(0.1)

    async def _routing(self, prompt: Prompt) -> dict[str, Any]:
        answer = await self._client.post("/v1/route", json={"messages": _turn(prompt)})
        answer.raise_for_status()
        routing: dict[str, Any] = answer.json()
        return routing


class ReplayDeployment(Deployment):
    """In front of `upstream`."""

    def __init__(
        self, url: str, admin_key: str, engine: AsyncEngine, conditions: Conditions, upstream: ReplayUpstream
    ) -> None:
        super().__init__(url, admin_key, engine, conditions)
        self.upstream = upstream


@asynccontextmanager
async def deployed(
    folder: Path, recorded: Ladder, measured_on: Ladder, conditions: Conditions
) -> AsyncIterator[ReplayDeployment]:
    """A gateway that has never served, with its state in `folder`; the upstream knows the answers of `recorded`.

    The judge is measured on recorded answers of `measured_on` first, as `aio quality calibrate` does it: one that was
    never measured makes no labels.
    """
    upstream = ReplayUpstream(recorded, RecordedJudge(recorded, conditions.judge_noise), faster=conditions.faster)
    upstream.judge.learn(measured_on)
    async with running_upstream(upstream):
        catalogue = folder / "catalogue.toml"
        catalogue.write_text(upstream.catalogue(recorded.name))
        settings = Settings(catalog=str(catalogue), data_dir=str(folder / "data"), cache_dir=str(folder / "cache"))
        settings.data_path.mkdir(parents=True, exist_ok=True)
        await migrate(settings.database)
        engine = open_database(settings.database)
        try:
            await _measure_judge(settings, engine, measured_on)
            upstream.judge.shuffled = conditions.labels_shuffled
            admin_key = secrets.token_urlsafe(24)
            environment = {**conditions.environment, "AIO_ADMIN_KEYS": f"benchmark={admin_key}"}
            async with running_server(settings, environment) as server:
                deployment = ReplayDeployment(server.url, admin_key, engine, conditions, upstream)
                try:
                    yield deployment
                finally:
                    await deployment.close()
        finally:
            await engine.dispose()


async def _measure_judge(settings: Settings, engine: AsyncEngine, ladder: Ladder) -> None:
    """Have the pairwise judge compare recorded answers with the strongest tier's, and store how often it is right."""
    catalog = load_catalog(settings.catalog)
    strongest = RemoteTier(catalog.tiers[-1])
    try:
        calibration = await calibrate(PairwiseJudge(strongest), _pairs(ladder), "answered")
    finally:
        await strongest.close()
    await store_calibration(engine, calibration, catalog.fingerprint, time.time(), "benchmark")


def _pairs(ladder: Ladder) -> list[GradedPair]:
    """As many pairs that are no worse as are worse, in an order that has nothing to do with either."""
    pairs: dict[bool, list[GradedPair]] = {True: [], False: []}
    for prompt in sorted(ladder.prompts, key=lambda prompt: uniform("measured", prompt.prompt_id)):
        for tier in range(1, len(ladder.tiers)):
            no_worse = prompt.no_worse(tier)
            if len(pairs[no_worse]) < _MEASURED_PAIRS:
                texts = prompt.answers[tier - 1].text, prompt.answers[-1].text
                pairs[no_worse].append(
                    GradedPair(prompt=prompt.text, answer=texts[0], reference_answer=texts[1], no_worse=no_worse)
                )
    return [*pairs[True], *pairs[False]]


def _turn(prompt: Prompt) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt.text}]
