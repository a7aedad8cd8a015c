"""A worker: takes lines of batches from the queue, has them answered, and stores the answers.

Answers that arrive during a transaction share the next one. A failed line may be retried later.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Sequence, Set
from contextlib import suppress

import msgspec
from sqlalchemy.exc import SQLAlchemyError

from gateway.base.errors import ApiError, ErrorEnvelope, as_api_error
from gateway.base.identity import new_request_id
from gateway.batches.batch import (
    EXHAUSTED,
    PROCESS_DIED,
    Batch,
    BatchKnobs,
    InputLine,
    error_line,
    refusal_line,
    response_line,
)
from gateway.batches.batch_book import LineAnswer, LineBook
from gateway.batches.job_queue import BatchJob, JobQueue, QueueUnavailableError
from gateway.telemetry.families import JobMetrics
from inference_core.io.background_tasks import once
from tiers.errors import TierError, TierLostError

LONGEST_BACKOFF_SECONDS = 300.0
# Transient failures or our own: a retry may succeed.
_TRANSIENT = frozenset((408, 500, 502, 503, 504))


class Again(msgspec.Struct, frozen=True):
    """Retry after `seconds`."""

    seconds: float
    counted: bool = True
    """Whether it counts as an attempt."""
    batch: bool = False
    """Whether all lines of the batch would fail until then."""


def again(failure: ApiError, attempts: int, most: int, backoff_seconds: float) -> Again | None:
    """Return what to do after `attempts` of `most`; None if the failure is the line's answer.

    A caller over its key's limits was rejected before any attempt; all lines of the batch wait. A caller without
    budget, or a request larger than the limit, would be rejected again.
    """
    if failure.body.code == "shutting_down":
        return Again(0.0, counted=False)
    if failure.status == 429:
        retry_after = failure.headers.get("retry-after")
        if retry_after is None or failure.body.code == "insufficient_quota":
            return None
        return Again(float(retry_after) * random.uniform(1.0, 1.25), counted=False, batch=True)
    if failure.status not in _TRANSIENT or attempts >= most:
        return None
    backoff = min(backoff_seconds * 2.0 ** (attempts - 1), LONGEST_BACKOFF_SECONDS) * random.uniform(0.5, 1.0)
    if failure.status == 503:
        backoff = max(backoff, float(failure.retry_after) * random.uniform(1.0, 1.25))
    return Again(backoff)


log = logging.getLogger(__name__)

AWAY_SECONDS = 1.0


class AnswerWriter:
    """Stores answers; while the database is down it retries until the database is back."""

    def __init__(self, lines: LineBook) -> None:
        self._lines = lines
        self._waiting: list[tuple[LineAnswer, asyncio.Future[bool]]] = []
        self._writing: asyncio.Task[None] | None = None

    async def store(self, answer: LineAnswer) -> bool:
        """Wait until the answer is stored; return whether it is the line's visible one."""
        stored: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append((answer, stored))
        if self._writing is None or self._writing.done():
            self._writing = once(self._write(), "answers of batches")
        return await stored

    async def _write(self) -> None:
        while self._waiting:
            mine, self._waiting = self._waiting, []
            try:
                visible = await self._lines.answer([answer for answer, _ in mine])
            except (SQLAlchemyError, OSError) as error:
                log.warning("answers of batches wait for the database: %s", type(error).__name__)
                await asyncio.sleep(AWAY_SECONDS)
                # A cancelled waiter has handed its line back.
                self._waiting = [(answer, stored) for answer, stored in mine if not stored.done()] + self._waiting
                continue
            except Exception as error:
                for _, stored in mine:
                    if not stored.done():
                        stored.set_exception(error)
                raise
            for (_, stored), seen in zip(mine, visible, strict=True):
                if not stored.done():
                    stored.set_result(seen)


# A line running at this many process deaths caused them: at the last one it ran alone.
MOST_DEATHS = 2
# How long a shutdown waits for lines that are being taken.
TAKING_SECONDS = 2.0

# Of ids, as the endpoints' own answers have them: some clients go on by an id of that form alone.
_PREFIXES = {
    "/v1/responses": ("resp", "_"), "/v1/chat/completions": ("chatcmpl",), "/v1/completions": ("cmpl",),
    "/v1/embeddings": ("embd",),
}  # fmt: skip

# Takes a batch, one of its lines, and its request id; returns the body of the answer.
AnswerLine = Callable[[Batch, InputLine, str], Awaitable[bytes]]


class RunningLine(msgspec.Struct, frozen=True):
    """A line being answered."""

    batch: Batch
    job: BatchJob
    line: InputLine


class LineWorker:
    """Answers lines of the batches that it is `offer`ed, as many at once as `knobs` say, shared among the batches.

    `concurrency`: the default where the knobs leave it open. A line occupies its place until its answer is stored, so
    that nothing accumulates while the database is down. `on_idle` is called whenever the last running line has ended.

    A line that was running when a process died (this one or a core's) is retried with no other line running here, so
    that a second death identifies it as the cause; it then fails.
    """

    def __init__(
        self,
        queue: JobQueue,
        lines: LineBook,
        answer: AnswerLine,
        knobs: Callable[[], BatchKnobs],
        metrics: JobMetrics,
        concurrency: int,
        on_idle: Callable[[], None],
        lease_seconds: float,
    ) -> None:
        self._queue, self._lines, self._answer = queue, lines, answer
        self._knobs, self._metrics, self._concurrency, self._lease = knobs, metrics, concurrency, lease_seconds
        self._on_idle = on_idle
        self._writer = AnswerWriter(lines)
        self._batches: list[Batch] = []
        self._running_lines: dict[asyncio.Task[None], RunningLine] = {}
        self._pauses: dict[str, float] = {}
        self._turn = asyncio.Event()
        self._may_have_suspects = True
        self._draining = False
        self._filling = asyncio.Lock()

    @property
    def running(self) -> int:
        return len(self._running_lines)

    def offer(self, batches: Sequence[Batch], going_on: Set[str] = frozenset()) -> None:
        """Set the batches with waiting lines; running lines of others are stopped, unless they are `going_on`."""
        before = [batch.batch_id for batch in self._batches]
        batches_by_id = {batch.batch_id: batch for batch in batches}
        # Known batches keep their turn.
        turns = [batches_by_id.pop(batch_id) for batch_id in before if batch_id in batches_by_id]
        self._batches = [*turns, *batches_by_id.values()]
        ids = {batch.batch_id for batch in batches} | going_on
        self._drop([task for task, running in self._running_lines.items() if running.batch.batch_id not in ids])
        self._pauses = {batch_id: until for batch_id, until in self._pauses.items() if batch_id in ids}
        self._turn.set()

    async def run(self) -> None:
        """Run until `drain`."""
        is_away = False
        while not self._draining:
            self._turn.clear()
            try:
                async with self._filling:
                    await self._fill()
                is_away = False
            except (QueueUnavailableError, SQLAlchemyError, OSError) as error:
                if not is_away:
                    is_away, reason = True, error if isinstance(error, QueueUnavailableError) else type(error)
                    log.warning("lines of batches wait: %s", reason)
            await self._turn.wait()

    async def keep(self) -> None:
        """Renew the leases of running lines, and look for lines of dead processes, until cancelled."""
        while True:
            await asyncio.sleep(self._lease / 3)
            with suppress(QueueUnavailableError):
                kept = {running.job: task for task, running in self._running_lines.items()}
                lost = await self._queue.keep(list(kept)) if kept else []
                # Another worker has them by now.
                self._drop([kept[job] for job in lost if job in kept])
            self._look_for_suspects()

    async def drain(self, seconds: float) -> int:
        """Start nothing more and wait up to `seconds` for running lines; hand back the rest and return how many."""
        self._draining = True
        self._turn.set()
        with suppress(TimeoutError):
            # Lines being taken have to be put back: what a process still holds when it ends counts as lost by its
            # death.
            async with asyncio.timeout(TAKING_SECONDS), self._filling:
                pass
        tasks = list(self._running_lines)
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)
        left = [task for task in tasks if not task.done()]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        return len(left)

    def _look_for_suspects(self) -> None:
        self._may_have_suspects = True
        self._turn.set()

    def _drop(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        for task in tasks:
            # Without informing the queue: the line is finished, or another worker's.
            self._running_lines.pop(task, None)
            task.cancel()

    async def _fill(self) -> None:
        """Take lines until all places are used or no batch has any; batches take turns."""
        wanted = self._knobs().concurrency
        places = self._concurrency if wanted is None else wanted
        if self._draining or not places or any(running.job.deaths for running in self._running_lines.values()):
            return
        ready = [b for b in self._batches if self._pauses.get(b.batch_id, 0.0) <= time.monotonic()]
        if self._may_have_suspects:
            self._may_have_suspects = await self._isolate(ready)
            if self._may_have_suspects:
                return
        while ready and not self._draining and (free := places - self.running) > 0:
            batch = ready.pop(0)
            share = max(1, free // (len(ready) + 1))
            if await self._begin_jobs(batch, await self._queue.take(batch.batch_id, share)) == share:
                ready.append(batch)
        # The batch served last goes to the end.
        self._batches = self._batches[1:] + self._batches[:1]

    async def _isolate(self, ready: Sequence[Batch]) -> bool:
        """Start a suspect of one of these batches, or nothing until running lines have ended; False without one."""
        for batch in ready:
            if await self._queue.has_suspect(batch.batch_id):
                if self._running_lines:
                    return True
                job = await self._queue.take_suspect(batch.batch_id)
                if job is not None and await self._begin_jobs(batch, [job]):
                    return True
        return False

    async def _begin_jobs(self, batch: Batch, jobs: Sequence[BatchJob]) -> int:
        """Start the jobs just taken; return how many."""
        if not jobs:
            return 0
        try:
            wanted = await self._lines.requests(batch.batch_id, [job.number for job in jobs])
        except (SQLAlchemyError, OSError):
            await self._hand_back(jobs)
            raise
        if self._draining:
            # They arrived after the drain started.
            await self._hand_back(jobs)
            return 0
        await self._queue.done([job for job in jobs if job.number not in wanted])
        for job in jobs:
            self._metrics.redelivered.add((), float(job.redelivered))
            if job.number in wanted:
                self._begin(RunningLine(batch, job, wanted[job.number]))
        return len(jobs)

    async def _hand_back(self, jobs: Sequence[BatchJob]) -> None:
        for job in jobs:
            await self._queue.put_back(job, 0.0, job.deliveries - 1, job.deaths)

    def _begin(self, running: RunningLine) -> None:
        task = asyncio.create_task(self._work(running))
        self._running_lines[task] = running
        task.add_done_callback(self._on_end)

    def _on_end(self, task: asyncio.Task[None]) -> None:
        self._running_lines.pop(task, None)
        self._turn.set()
        if not self._running_lines:
            self._on_idle()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a line of a batch was given up", exc_info=error)

    async def _work(self, running: RunningLine) -> None:
        try:
            answer = await self._outcome(running)
            if answer is not None:
                visible = await self._writer.store(answer)
                self._metrics.lines.add((answer.status if visible else "late",))
                with suppress(QueueUnavailableError):
                    await self._queue.done([running.job])
        except asyncio.CancelledError:
            if asyncio.current_task() in self._running_lines:
                with suppress(QueueUnavailableError):
                    await self._hand_back([running.job])
            raise

    async def _outcome(self, running: RunningLine) -> LineAnswer | None:
        """Return the line's visible answer; None if it is retried."""
        batch, job, line = running.batch, running.job, running.line
        if job.deaths >= MOST_DEATHS:
            return _process_died(running, job.deaths)
        if job.deliveries > self._knobs().most_attempts:
            return _answer(job, "failed", error_line(line.custom_id, EXHAUSTED))
        request_id = new_request_id(*_PREFIXES[batch.endpoint])
        try:
            body = await self._answer(batch, line, request_id)
        except TierLostError:
            return await self._after_loss(running)
        except Exception as error:
            failure = as_api_error(error)
            bug = None if isinstance(error, (ApiError, TierError)) else error
            if bug is not None:
                log.error("request %s of %s: %s", request_id, batch.batch_id, type(error).__name__, exc_info=bug)
            if await self._is_put_back(running, failure):
                return None
            text = refusal_line(line.custom_id, failure.status, request_id, ErrorEnvelope(failure.body))
            return _answer(job, "failed", text)
        return _answer(job, "done", response_line(line.custom_id, 200, request_id, body))

    async def _is_put_back(self, running: RunningLine, failure: ApiError) -> bool:
        knobs, job = self._knobs(), running.job
        wait = again(failure, job.deliveries, knobs.most_attempts, knobs.backoff_seconds)
        if wait is None:
            return False
        if wait.batch:
            self._pauses[job.batch_id] = time.monotonic() + wait.seconds
        self._metrics.lines.add(("retried",))
        deliveries = job.deliveries if wait.counted else job.deliveries - 1
        await self._put_back(job, wait.seconds, deliveries, job.deaths)
        return True

    async def _after_loss(self, running: RunningLine) -> LineAnswer | None:
        """Decide about a line when another process, a core's, died while computing its answer."""
        job, deaths = running.job, running.job.deaths + 1
        if deaths >= MOST_DEATHS:
            return _process_died(running, deaths)
        self._metrics.lines.add(("retried",))
        await self._put_back(job, self._knobs().backoff_seconds, job.deliveries, deaths)
        return None

    async def _put_back(self, job: BatchJob, seconds: float, deliveries: int, deaths: int) -> None:
        with suppress(QueueUnavailableError):
            await self._queue.put_back(job, seconds, deliveries, deaths)
        if deaths:
            asyncio.get_running_loop().call_later(seconds, self._look_for_suspects)


def _process_died(running: RunningLine, deaths: int) -> LineAnswer:
    job = running.job
    log.warning("line %d of %s is failed: %d processes ended over it", job.number, job.batch_id, deaths)
    return _answer(job, "failed", error_line(running.line.custom_id, PROCESS_DIED))


def _answer(job: BatchJob, status: str, text: str) -> LineAnswer:
    return LineAnswer(
        batch_id=job.batch_id, number=job.number, status="done" if status == "done" else "failed", text=text
    )
