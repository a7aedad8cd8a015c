"""A batch line that kills its process does so twice and fails, and its neighbours are answered."""

import asyncio
import io
import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import openai
import pytest
from prometheus_client import CollectorRegistry

from gateway.base.settings import Settings
from gateway.base.stores.retries import background
from gateway.batches.batch import Batch, BatchKnobs, InputLine
from gateway.batches.batch_book import LineBook
from gateway.batches.job_queue import QueueUnavailableError
from gateway.batches.line_worker import AnswerLine, LineWorker
from gateway.telemetry.families import JobMetrics
from inference_core.transport.unix_socket import SocketCoreClient
from tests.gateway.batches import batching
from tests.gateway.batches.batching import ENDED, outcome, request_line
from tests.gateway.batches.deadly_core import DEADLY_TOKENS, KeptCore
from tests.gateway.batches.queue_bench import Bench
from tests.polling import eventually, until
from tests.support.app import StartApp, running_gateway
from tests.support.served import ServedProcess, served
from tests.support.upstream import Upstream, write_remote_catalog
from tiers.errors import TierLostError, TierUnavailableError

pytestmark = pytest.mark.processes

# As many as a process answers at once, and the total; one of the first is deadly.
TOGETHER, LINES, DEADLY = 4, 9, 1
# Seconds; long enough for live workers on a busy machine.
LEASE = 3.0


def test_a_line_that_kills_its_process_twice_is_failed_and_all_others_are_answered(
    tmp_path: Path, own_upstream: Upstream
) -> None:
    catalog = str(write_remote_catalog(tmp_path / "catalog.toml", own_upstream.base_url))
    environment = {"AIO_MONITOR": "false", "AIO_BATCH_LEASE_SECONDS": "0.5", "AIO_BATCH_CONCURRENCY": str(TOGETHER)}

    def start() -> AbstractContextManager[ServedProcess]:
        return served(tmp_path / "data", tmp_path / "cache", "--catalog", catalog, environment=environment)

    with start() as aio:
        batch_id = made(aio.client)
        for _ in range(TOGETHER - 1):
            assert own_upstream.held.acquire(timeout=60)
        assert own_upstream.deadly.acquire(timeout=60)
        aio.kill()
    own_upstream.let_go()
    with start() as aio:
        assert own_upstream.deadly.acquire(timeout=60)
        aio.kill()
    with start() as aio:
        until(lambda: aio.client.batches.retrieve(batch_id).status in ENDED)
        batch = aio.client.batches.retrieve(batch_id)
        assert batch.status == "completed"
        output, errors = lines(aio.client, batch.output_file_id), lines(aio.client, batch.error_file_id)

    assert {name: line["error"]["code"] for name, line in errors.items()} == {f"r{DEADLY}": "process_died"}
    assert "ended twice" in errors[f"r{DEADLY}"]["error"]["message"]
    assert sorted(output) == sorted(f"r{n}" for n in range(LINES) if n != DEADLY)
    assert not own_upstream.deadly.acquire(blocking=False)


async def test_a_line_that_kills_the_core_of_its_process_twice_is_failed_and_all_others_are_answered(
    tmp_path: Path,
) -> None:
    settings = Settings(data_dir=str(tmp_path), role="gateway", monitor=False, batch_concurrency=TOGETHER)
    core = KeptCore(settings.socket_path)
    try:
        async with running_gateway(
            settings, scripted=False, cores={"cpu": SocketCoreClient(settings.socket_path)}
        ) as aio:
            await aio.http.patch("/v1/admin/knobs/batches", json={"backoff_seconds": 0.1, "most_attempts": 100})
            await eventually(lambda: aio.serving.routing.served.tier(1).load().healthy)
            asked = [
                request_line(f"r{n}", max_tokens=DEADLY_TOKENS if n == DEADLY else 4, temperature=0)
                for n in range(LINES)
            ]
            batch, output, errors = await outcome(aio.openai, (await batching.made(aio.openai, asked)).id)
    finally:
        core.stop()
    assert (batch.status, core.deaths) == ("completed", 2)
    assert {name: line["error"]["code"] for name, line in errors.items()} == {f"r{DEADLY}": "process_died"}
    assert sorted(output) == sorted(f"r{n}" for n in range(LINES) if n != DEADLY)


@pytest.mark.parametrize("model", ["tier-1", "auto"])
async def test_a_line_whose_core_died_twice_is_failed_though_the_next_tier_is_down_by_then(
    model: str, app: StartApp
) -> None:
    aio = await app()
    await aio.http.patch("/v1/admin/knobs/batches", json={"backoff_seconds": 0.01})
    for number, error in ((1, TierLostError("lost")), (2, TierUnavailableError("gone"))):
        aio.tier(number).fail_at, aio.tier(number).error = 0, error
    made = await batching.made(aio.openai, [request_line("r0", model=model)])
    _, output, errors = await outcome(aio.openai, made.id)
    assert (output, errors["r0"]["error"]["code"]) == ({}, "process_died")
    assert len(aio.tier(1).requests) == 2


async def test_lines_of_a_dead_process_are_answered_alone_and_others_together(queues: Bench) -> None:
    batch_id = await queues.make(40)
    await queues.die(batch_id, 3)
    under_way: set[int] = set()
    order: list[int] = []
    neighbours: set[int] = set()

    async def answer(batch: Batch, line: InputLine, request_id: str) -> bytes:
        order.append(line.number)
        under_way.add(line.number)
        if len(under_way) > 1:
            neighbours.update(under_way)
        await asyncio.sleep(0.01)
        under_way.discard(line.number)
        return b"{}"

    worker = worker_of(queues, answer)
    async with background(worker.run, "lines"), background(worker.keep, "leases"):
        await eventually(lambda: len(order) == 40 and not worker.running)
        await worker.drain(0.0)
    assert sorted(order) == list(range(1, 41))
    assert neighbours
    assert not neighbours & {1, 2, 3}


async def test_a_worker_full_of_lines_ends_them_for_one_that_a_dead_process_left(queues: Bench) -> None:
    await queues.make(400)
    turns = asyncio.Semaphore(0)
    order: list[str] = []

    async def answer(batch: Batch, line: InputLine, request_id: str) -> bytes:
        order.append(batch.batch_id)
        await turns.acquire()
        return b"{}"

    worker = worker_of(queues, answer)
    first = queues.batch
    async with background(worker.run, "lines"), background(worker.keep, "leases"):
        await eventually(lambda: worker.running == TOGETHER)
        left = await queues.make(1)
        await queues.die(left, 1)
        assert first is not None
        assert queues.batch is not None
        worker.offer([first, queues.batch])
        while left not in order:
            turns.release()
            # A busy machine may need more time to find the line, not more turns.
            await asyncio.sleep(0.02 if len(order) < 100 else 0.5)
        assert len(order) < 400
        await worker.drain(0.0)


class GatedBook(LineBook):
    """Reads no request before `go`; `asked` is set once one is wanted."""

    def __init__(self, lines: LineBook) -> None:
        self._engine = lines._engine
        self.asked, self.go = asyncio.Event(), asyncio.Event()

    async def requests(self, batch_id: str, numbers: Sequence[int]) -> dict[int, InputLine]:
        self.asked.set()
        await self.go.wait()
        return await super().requests(batch_id, numbers)


async def test_a_shutdown_hands_back_what_was_just_taken_and_counts_no_death(queues: Bench) -> None:
    batch_id = await queues.make(3)
    queues.lines = book = GatedBook(queues.lines)

    async def answer(batch: Batch, line: InputLine, request_id: str) -> bytes:
        raise AssertionError("nothing is started after the command to stop")

    worker = worker_of(queues, answer)
    async with background(worker.run, "lines"):
        await book.asked.wait()
        draining = asyncio.create_task(worker.drain(5.0))
        await asyncio.sleep(0)
        book.go.set()
        assert await draining == 0
    taken = await eventually(lambda: queues.worker("other").take(batch_id, 9))
    assert [(job.number, job.deliveries, job.deaths) for job in taken] == [(1, 1, 0), (2, 1, 0), (3, 1, 0)]


async def test_a_queue_that_is_away_is_named_once_per_outage(queues: Bench, caplog: pytest.LogCaptureFixture) -> None:
    async def answer(batch: Batch, line: InputLine, request_id: str) -> bytes:
        raise AssertionError("nothing is taken")

    await queues.make(1)
    worker = worker_of(queues, answer)
    is_away, done = [True, True, False, True, True], asyncio.Event()

    async def fill() -> None:
        if not is_away:
            done.set()
            return
        worker.offer([])
        if is_away.pop(0):
            raise QueueUnavailableError("Redis is down")

    worker._fill = fill  # type: ignore[method-assign]
    async with background(worker.run, "lines"):
        await done.wait()
    said = [record.message for record in caplog.records if "lines of batches wait" in record.message]
    assert said == ["lines of batches wait: Redis is down"] * 2


def worker_of(queues: Bench, answer: AnswerLine) -> LineWorker:
    """One that answers lines of the batch."""
    metrics = JobMetrics(CollectorRegistry(), CollectorRegistry())
    queue = queues.worker("ada", LEASE)
    worker = LineWorker(queue, queues.lines, answer, BatchKnobs, metrics, TOGETHER, lambda: None, LEASE)
    assert queues.batch is not None
    worker.offer([queues.batch])
    return worker


def made(client: openai.OpenAI) -> str:
    words = ("die" if n == DEADLY else "hold" for n in range(LINES))
    asked = [request_line(f"r{n}", messages=[{"role": "user", "content": word}]) for n, word in enumerate(words)]
    file = client.files.create(file=("in.jsonl", io.BytesIO(b"\n".join(asked))), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h").id


def lines(client: openai.OpenAI, file_id: str | None) -> dict[str, Any]:
    """By custom id."""
    assert file_id is not None
    return {line["custom_id"]: line for line in map(json.loads, client.files.content(file_id).text.splitlines())}
