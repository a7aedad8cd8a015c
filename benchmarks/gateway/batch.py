"""What the queue of batches costs: a batch whose lines are answered at once, from its input file to its output file."""

import asyncio
import resource
import time
from collections.abc import AsyncIterator

import msgspec

from gateway.base.settings import Settings
from gateway.base.stores.database_time import DatabaseTime
from gateway.base.stores.redis_store import open_redis
from gateway.batches.batch import Batch, NewBatch
from gateway.batches.batch_input import InputLine
from gateway.batches.file_store import Owner
from gateway.batches.jobs import Jobs
from gateway.telemetry.metrics.metrics import Metrics
from quality.store.database import migrate, open_database

ENDPOINT = "/v1/chat/completions"
PROMPT = "The quick brown fox jumps over the lazy dog. " * 10
ANSWER = msgspec.json.encode({"object": "chat.completion", "choices": [{"message": {"content": PROMPT}}]})
_OWNER = Owner("bench", None)


class BatchCost(msgspec.Struct, frozen=True, kw_only=True):
    """Of one batch. `wall_seconds` from its making to its end, reading the input and writing the output included;
    `cpu_us_per_line` of this process alone, without a database or Redis elsewhere."""

    queue: str
    lines: int
    concurrency: int
    wall_seconds: float
    lines_per_second: float
    cpu_us_per_line: float


async def bench_batch(settings: Settings, lines: int, rounds: int) -> AsyncIterator[BatchCost]:
    """Batches of so many lines, one after the other, with the database, Redis and concurrency of `settings`."""
    settings.data_path.mkdir(parents=True, exist_ok=True)
    await migrate(settings.database)
    engine = open_database(settings.database)
    async with open_redis(settings.redis_url) as redis:
        jobs = Jobs(settings, engine, DatabaseTime(), "bench", redis, Metrics().jobs)
        queue = engine.dialect.name if redis is None else f"redis over {engine.dialect.name}"
        async with jobs.working(_at_once):
            for _ in range(rounds):
                yield await _one(jobs, queue, lines, settings.batch_concurrency)
    await engine.dispose()


async def _one(jobs: Jobs, queue: str, lines: int, concurrency: int) -> BatchCost:
    async with jobs.files.begin(_OWNER) as writer:
        for number in range(lines):
            await writer.write(_line(number))
        file = await writer.finish("batch", "input.jsonl")
    new = NewBatch(endpoint=ENDPOINT, input_file_id=file.file_id, completion_window="24h", seconds=86_400.0)
    began, cpu = time.perf_counter(), _cpu_seconds()
    batch = await jobs.create(_OWNER, new)
    ended = await _ended(jobs, batch)
    wall, cpu = time.perf_counter() - began, _cpu_seconds() - cpu
    if ended.completed != lines:
        raise RuntimeError(f"{ended.completed} of {lines} lines were answered; the batch is {ended.status}")
    return BatchCost(
        queue=queue,
        lines=lines,
        concurrency=concurrency,
        wall_seconds=round(wall, 3),
        lines_per_second=round(lines / wall, 1),
        cpu_us_per_line=round(cpu / lines * 1e6, 1),
    )


async def _ended(jobs: Jobs, batch: Batch) -> Batch:
    while True:
        found = await jobs.book.find(_OWNER.tenant, batch.batch_id)
        if found is not None and found.completed is not None:
            return found
        await asyncio.sleep(0.02)


async def _at_once(batch: Batch, line: InputLine, request_id: str) -> bytes:
    return ANSWER


def _line(number: int) -> bytes:
    body = {"model": "auto", "messages": [{"role": "user", "content": PROMPT}]}
    line = {"custom_id": f"line-{number}", "method": "POST", "url": ENDPOINT, "body": body}
    return msgspec.json.encode(line) + b"\n"


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
