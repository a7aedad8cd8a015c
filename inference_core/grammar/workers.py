"""The processes of a core's grammars: those that are compiled, and the queue of those that are to be.

One grammar is compiled at a time, the tenants taking turns, so that one tenant's costly grammars delay another's by no
more than the limit of one. Processes that no request needs stay until their room or memory is wanted.
"""

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from importlib.util import find_spec

from inference_core.errors import CoreError, GrammarServerError, InvalidRequestError, QueueFullError
from inference_core.grammar.bounds import check_length
from inference_core.grammar.limits import (
    LIMITS,
    MAX_MEMORY_BYTES,
    MAX_WAITING_PER_TENANT,
    MAX_WORKERS,
    MAX_WORKERS_PER_TENANT,
    Limits,
)
from inference_core.grammar.remote import GrammarHandle, GrammarWorker
from inference_core.grammar.server_process import GrammarServer, KnownTokens, own_server
from inference_core.grammar.vocabulary import Vocabulary
from inference_core.protocol import Grammar, ModelInfo
from inference_core.step_plan import MatcherFactory

logger = logging.getLogger(__name__)

Key = tuple[str, Grammar]
"""A model's name, and a grammar."""
# How often one who waits for a process to become free looks again.
_POLL_SECONDS = 0.02


@dataclass(slots=True, eq=False)
class _Job:
    """A grammar to be compiled, and who waits for it. `worker`: its process, once there is one."""

    key: Key
    info: ModelInfo
    tenant: str
    futures: list[Future[MatcherFactory]] = field(default_factory=list)
    worker: GrammarWorker | None = None
    is_cancelled: bool = False


class GrammarWorkers:
    """Of the models of a core; `vocabulary_of` and `eos_token_ids` as of `GrammarAdmission`. Thread-safe."""

    def __init__(
        self,
        vocabulary_of: Callable[[ModelInfo], Vocabulary],
        eos_token_ids: dict[str, tuple[int, ...]],
        *,
        limits: Limits = LIMITS,
        server: GrammarServer | None = None,
    ) -> None:
        """`server`: this process's own by default."""
        self._vocabulary_of = vocabulary_of
        self._eos_token_ids = eos_token_ids
        self._limits = limits
        self._server = server
        self._tokens: dict[str, KnownTokens] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._compiling: _Job | None = None
        self._waiting: OrderedDict[str, deque[_Job]] = OrderedDict()  # by tenant, the next one to be served first
        # With the tenant that had it compiled; the one used longest ago first.
        self._workers: OrderedDict[Key, tuple[str, GrammarWorker]] = OrderedDict()

    def compile(self, info: ModelInfo, grammar: Grammar, tenant: str) -> Future[MatcherFactory]:
        """What makes matchers, at once if the grammar is known; the future fails as `GrammarWorker.compile` does.

        Raises `InvalidRequestError` for a grammar that is too long, `QueueFullError` if the tenant has too many wait,
        `GrammarServerError`.
        """
        key = (info.name, grammar)
        future: Future[MatcherFactory] = Future()
        check_length(grammar)
        with self._changed:
            known = self._find(key)
            if known is not None:
                future.set_result(known)
                return future
            job = next((job for job in self._jobs() if job.key == key), None)
            if job is None:
                job = _Job(key, info, tenant)
                self._enqueue(job)
            job.futures.append(future)
        return future

    def cancel(self, future: Future[MatcherFactory]) -> None:
        """It is not waited for any more; what is compiled for it alone is given up at once."""
        with self._changed:
            for job in self._jobs():
                if future in job.futures:
                    job.futures.remove(future)
                    if not job.futures:
                        self._drop(job)
        future.cancel()

    def bound_memory(self) -> None:
        """End processes while all of them take more than they may: idle ones first, then the largest."""
        with self._changed:
            while sum(worker.memory_bytes for _, worker in self._workers.values()) > MAX_MEMORY_BYTES:
                if not self._evict():
                    key = max(self._workers, key=lambda key: self._workers[key][1].memory_bytes)
                    _, worker = self._workers.pop(key)
                    param, most = key[1].param, MAX_MEMORY_BYTES >> 20
                    reason = f"{param} needs the most memory of all grammars in use, which may take {most} MiB together"
                    worker.give_up(InvalidRequestError(reason, param))

    def close(self) -> None:
        """Give up what is compiled, and end all processes; nothing is waited for."""
        with self._changed:
            for job in self._jobs():
                for future in job.futures:
                    future.cancel()
                self._drop(job)
            for _, worker in self._workers.values():
                worker.close()
            self._workers.clear()

    def __del__(self) -> None:
        for _, worker in self._workers.values():
            worker.close()

    # -- on the thread, which ends when there is no more to compile ----------------------------------

    def _run(self) -> None:
        while (job := self._next()) is not None:
            try:
                worker = self._compiled(job)
            except CoreError as error:
                self._resolve(job, error)
            except BaseException as error:
                logger.exception("a grammar of kind %s could not be compiled", job.key[1].kind)
                self._resolve(job, CoreError(f"{job.key[1].param} could not be compiled, which is logged: {error!r}"))
            else:
                self._resolve(job, worker)

    def _next(self) -> _Job | None:
        with self._changed:
            while self._waiting:
                tenant = next(filter(self._has_room, self._waiting), None)
                if tenant is not None:
                    queue = self._waiting.pop(tenant)
                    self._compiling = queue.popleft()
                    if queue:
                        self._waiting[tenant] = queue  # after all others
                    return self._compiling
                self._changed.wait(_POLL_SECONDS)
            self._thread = None
            return None

    def _compiled(self, job: _Job) -> GrammarWorker:
        tokens = self._tokens.get(job.info.name)
        if tokens is None:
            tokens = self._tokens[job.info.name] = self._tokens_of(job.info, job.key[1])
        server = self._server or own_server()
        channel = server.start_worker(tokens, job.key[1], self._limits)
        worker = GrammarWorker(channel, tokens.tokeniser, job.key[1], self._limits)
        with self._changed:
            job.worker = worker
            if job.is_cancelled:
                worker.close()
        try:
            worker.compile()
        finally:
            server.keep_spare()
        return worker

    def _tokens_of(self, info: ModelInfo, grammar: Grammar) -> KnownTokens:
        param = grammar.param
        if find_spec("llguidance") is None:
            raise InvalidRequestError(
                f"{param}: this core was installed without llguidance, so it follows no grammars", param
            )
        ends = self._eos_token_ids[info.name]
        if not ends:
            raise InvalidRequestError(
                f"{param}: {info.name} names no token that ends an answer, so it follows no grammars", param
            )
        return KnownTokens(self._vocabulary_of(info), info.vocab_size, ends)

    def _resolve(self, job: _Job, result: GrammarWorker | CoreError) -> None:
        with self._changed:
            self._compiling = None
            if isinstance(result, GrammarWorker):
                if job.is_cancelled:
                    return
                self._workers[job.key] = (job.tenant, result)
            for future in job.futures:
                if isinstance(result, GrammarWorker):
                    future.set_result(GrammarHandle(result, job.key[1]))
                else:
                    future.set_exception(result)

    # -- under the lock --------------------------------------------------------------------------

    def _find(self, key: Key) -> MatcherFactory | None:
        if key not in self._workers:
            return None
        _, worker = self._workers[key]
        if not worker.is_usable():
            del self._workers[key]
            return None
        self._workers.move_to_end(key)
        return GrammarHandle(worker, key[1])

    def _enqueue(self, job: _Job) -> None:
        queue = self._waiting.get(job.tenant, deque())
        if len(queue) >= MAX_WAITING_PER_TENANT:
            raise QueueFullError(f"{len(queue)} grammars of this tenant wait to be compiled already; try later")
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="aio-grammars", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                raise GrammarServerError(f"grammars cannot be compiled at the moment: {error}") from error
            self._thread = thread
        queue.append(job)
        self._waiting[job.tenant] = queue

    def _jobs(self) -> list[_Job]:
        """Those that wait, and the one that is compiled, unless it was given up."""
        waiting = [job for queue in self._waiting.values() for job in queue]
        compiling = self._compiling
        return waiting if compiling is None or compiling.is_cancelled else [compiling, *waiting]

    def _drop(self, job: _Job) -> None:
        job.is_cancelled = True
        job.futures.clear()
        if job.worker is not None:
            job.worker.close()
        queue = self._waiting.get(job.tenant)
        if queue is not None and job in queue:
            queue.remove(job)
            if not queue:
                del self._waiting[job.tenant]

    def _has_room(self, tenant: str) -> bool:
        """Whether another process may be started for `tenant`, which may take the place of an idle one."""
        used = sum(owner == tenant and bool(worker.handles) for owner, worker in self._workers.values())
        return used < MAX_WORKERS_PER_TENANT and (len(self._workers) < MAX_WORKERS or self._evict())

    def _evict(self) -> bool:
        """End the idle process that was used longest ago; whether there was one."""
        idle = next((key for key, (_, worker) in self._workers.items() if not worker.handles), None)
        if idle is None:
            return False
        _, worker = self._workers.pop(idle)
        worker.close()
        return True
