"""One scripted run of the whole loop on a real server: requests, decisions, answers, verifications, a retraining."""

import asyncio
import gzip
import json
from collections.abc import Callable
from typing import Any

import httpx
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.training.dataset import FILE, data_folder
from gateway.processes.server_process import running_server
from gateway.quality_loop import run_retraining
from gateway.settings import Settings
from migrations.tables import (
    audit_events,
    classifier_versions,
    requests,
    retrain_runs,
    routing_decisions,
    training_rows,
    verifications,
)
from quality.database import open_database
from quality.task_set import tasks
from tiers.catalog_file import load_catalog

Progress = Callable[[str, float], None]
Row = dict[str, Any]

# Tiers 1 and 2 are asked by name for most prompts: theirs are the answers that are verified, and until the models of a
# catalogue have measured outcomes, `auto` rightly prefers stronger tiers.
MODELS = ("tier-1", "tier-2", "auto", "tier-1", "tier-2", "tier-1")
IN_FLIGHT = 4
ANSWER_TOKENS = 256
VERIFICATION_SECONDS = 900.0
LONGEST_CHOICE = 500


def demo_prompts(count: int) -> tuple[list[str], str]:
    """`count` real prompts, and where they are from: the data folder (`AIO_DATA`), else the generated task set."""
    maths, outcomes = data_folder() / "gsm8k_sample.jsonl", data_folder() / FILE
    if maths.is_file() and outcomes.is_file():
        with gzip.open(outcomes, "rt") as lines:
            rows = [row for row in map(json.loads, lines) if row["metric"] == "mc"]
            choices = [row["prompt"] for row in rows if len(row["prompt"]) < LONGEST_CHOICE]
        with maths.open() as lines:
            sums = [json.loads(line)["prompt"] for line in lines]
        # Every third a sum, the others multiple choice from all over the collection.
        step = max(1, len(choices) // count)
        mixed = [sums[i] if i % 3 == 0 else choices[i * step] for i in range(min(count, len(sums), len(choices)))]
        return mixed, "real prompts of the data folder"
    per_level = -(-count // 20)
    return [task.prompt for task in tasks(seed=7, per_level=per_level)][:count], "the generated task set"


async def send_prompts(url: str, prompts: list[str], progress: Progress) -> None:
    """Ask every prompt, a few at a time. Raises `httpx.HTTPStatusError` for an answer that is not 200."""
    numbered = iter(enumerate(prompts))
    done = 0

    async def worker(client: httpx.AsyncClient) -> None:
        nonlocal done
        for number, prompt in numbered:
            body = {
                "model": MODELS[number % len(MODELS)],
                "messages": [{"role": "user", "content": prompt}],
                "max_tokens": ANSWER_TOKENS,
                "temperature": 0,
            }
            (await client.post("/v1/chat/completions", json=body, headers={"x-aio-cache": "off"})).raise_for_status()
            done += 1
            progress("answering", done / len(prompts))

    async with httpx.AsyncClient(base_url=url, timeout=600) as client:
        await asyncio.gather(*(worker(client) for _ in range(IN_FLIGHT)))


async def verified(engine: AsyncEngine, progress: Progress) -> None:
    """Wait until the monitor has settled every sampled answer. Raises `TimeoutError` after a quarter of an hour."""
    settled: dict[str, int] = {}
    async with asyncio.timeout(VERIFICATION_SECONDS):
        while True:
            async with engine.connect() as connection:
                counted = await connection.execute(
                    select(verifications.c.status, func.count()).group_by(verifications.c.status)
                )
            counts = {str(status): int(count) for status, count in counted.tuples()}
            total, pending = sum(counts.values()), counts.get("pending", 0)
            progress("verifying", (total - pending) / max(1, total))
            # Twice the same: the last answer's offer may still be on its way to the queue.
            if total and not pending and counts == settled:
                return
            settled = counts
            await asyncio.sleep(1.0)


async def run_demo(settings: Settings, prompts: list[str], progress: Progress) -> dict[str, list[Row]]:
    """The whole run; returns the story that the database tells (see `story`).

    Every answer of tiers 1 and 2 is sampled, and verification may cost more than serving: in a deployment
    the ceiling is 5% and the budget 5% of a day's cost.
    """
    environment = {"AIO_SAMPLING_RATE": "1", "AIO_VERIFICATION_BUDGET": "1000", "AIO_LOG_LEVEL": "error"}
    settings.data_path.mkdir(parents=True, exist_ok=True)
    engine = open_database(settings.database)
    try:
        async with running_server(settings, environment) as server:
            await send_prompts(server.url, prompts, progress)
            await verified(engine, progress)
        await run_retraining(settings, load_catalog(settings.catalog), engine, "cli", progress)
        return await story(engine)
    finally:
        await engine.dispose()


async def story(engine: AsyncEngine) -> dict[str, list[Row]]:
    """Request → decision → answer → verification → retraining → candidate, each row with its reason."""
    asked = (
        select(
            requests.c.request_id,
            requests.c.requested_model,
            requests.c.tier,
            routing_decisions.c.reason.label("decision"),
            requests.c.answer,
            requests.c.cost_usd,
            verifications.c.label,
            verifications.c.judge,
            verifications.c.reason.label("verdict"),
        )
        .join(routing_decisions, routing_decisions.c.request_id == requests.c.request_id)
        .outerjoin(verifications, verifications.c.request_id == requests.c.request_id)
        .order_by(requests.c.created_at)
    )
    queries = {
        "requests": asked,
        "training rows": select(
            training_rows.c.source, training_rows.c.request_id, training_rows.c.no_worse, training_rows.c.weights
        ),
        "retraining": select(
            retrain_runs.c.run_id, retrain_runs.c.trigger, retrain_runs.c.status, retrain_runs.c.reason
        ),
        "classifiers": select(
            classifier_versions.c.version,
            classifier_versions.c.parent,
            classifier_versions.c.status,
            classifier_versions.c.reason,
        ).order_by(classifier_versions.c.created_at),
        "audit": select(audit_events.c.action, audit_events.c.subject, audit_events.c.reason).order_by(
            audit_events.c.created_at
        ),
    }
    async with engine.connect() as connection:
        return {
            name: [dict(row) for row in (await connection.execute(query)).mappings()] for name, query in queries.items()
        }
