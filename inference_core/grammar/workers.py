"""The processes of a core's grammars, the requests held while their grammars are compiled, and the masks of a step,
which these processes compute while the model computes the logits.

One grammar is compiled at a time, round-robin over tenants, so that one tenant's costly grammars delay another's by at
most the limit of one. Idle processes stay until their slot or memory is needed. No step waits for a grammar.
"""

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.util import find_spec
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from inference_core.errors import CoreError, GrammarServerError, InvalidRequestError, QueueFullError
from inference_core.grammar.limits import (
    LIMITS,
    MAX_MEMORY_BYTES,
    MAX_WAITING_PER_TENANT,
    MAX_WORKERS,
    MAX_WORKERS_PER_TENANT,
    Limits,
    check_length,
)
from inference_core.grammar.remote import GrammarChild, GrammarHandle, GrammarWorker, KnownTokens, own_child
from inference_core.grammar.vocabulary import Vocabulary
from inference_core.loaders.hub_model import resolve_model_path
from inference_core.protocol import AddRequest, Grammar, ModelInfo
from inference_core.step_plan import Matcher, MatcherFactory, SampleSpec

logger = logging.getLogger(__name__)

Key = tuple[str, Grammar]
"""A model's name, and a grammar."""
# Poll interval while waiting for a process to become free.
_POLL_SECONDS = 0.02


@dataclass(slots=True, eq=False)
class _Job:
    """A grammar to compile, with the futures that wait for it."""

    key: Key
    info: ModelInfo
    tenant: str
    futures: list[Future[MatcherFactory]] = field(default_factory=list)

    @property
    def is_wanted(self) -> bool:
        return not all(future.cancelled() for future in self.futures)


class GrammarWorkers:
    """Grammar processes of a core's models; `vocabulary_of`, `eos_token_ids`: see `GrammarAdmission`. Thread-safe."""

    def __init__(
        self,
        vocabulary_of: Callable[[ModelInfo], Vocabulary],
        eos_token_ids: dict[str, tuple[int, ...]],
        *,
        limits: Limits = LIMITS,
        child: GrammarChild | None = None,
    ) -> None:
        """`child`: by default this process's own."""
        self._vocabulary_of = vocabulary_of
        self._eos_token_ids = eos_token_ids
        self._limits = limits
        self._child = child
        self._tokens: dict[str, KnownTokens] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._waiting: list[_Job] = []
        self._turns: dict[str, int] = {}
        """When a tenant was last served, while any waits."""
        self._compiling: tuple[_Job, GrammarWorker | None] | None = None
        # By key the tenant that requested it and the process, least recently used first.
        self._workers: OrderedDict[Key, tuple[str, GrammarWorker]] = OrderedDict()
        self._is_closed = False

    @property
    def has_processes(self) -> bool:
        """Whether a process has compiled a grammar and was not ended since."""
        return bool(self._workers)

    def compile(self, info: ModelInfo, grammar: Grammar, tenant: str) -> Future[MatcherFactory]:
        """Compile a grammar; the future is done at once if it is known, and fails as `GrammarWorker.compile` does.

        A grammar whose futures are all cancelled before its turn is not compiled. Raises `InvalidRequestError` for a
        grammar that is too long, `QueueFullError` if too many of the tenant's grammars wait, `GrammarServerError`.
        """
        key = (info.name, grammar)
        future: Future[MatcherFactory] = Future()
        check_length(grammar)
        with self._lock:
            compiled = self._find(key)
            if compiled is not None:
                future.set_result(compiled)
                return future
            jobs = [*self._waiting, *(() if self._compiling is None else self._compiling[:1])]
            job = next((job for job in jobs if job.key == key), None)
            if job is None:
                job = _Job(key, info, tenant)
                self._enqueue(job)
            job.futures.append(future)
        return future

    def bound_memory(self) -> None:
        """End processes while their memory exceeds the limit: idle ones first, then the largest."""
        with self._lock:
            while sum(worker.memory_bytes for _, worker in self._workers.values()) > MAX_MEMORY_BYTES:
                if not self._evict():
                    key = max(self._workers, key=lambda key: self._workers[key][1].memory_bytes)
                    _, worker = self._workers.pop(key)
                    param, most = key[1].param, MAX_MEMORY_BYTES >> 20
                    reason = f"{param} needs the most memory of all grammars in use, which may take {most} MiB together"
                    worker.give_up(InvalidRequestError(reason, param))

    def close(self) -> None:
        """Stop compiling and close all processes, without waiting."""
        with self._lock:
            self._is_closed = True
            for job in self._waiting:
                for future in job.futures:
                    future.cancel()
            if self._compiling is not None:
                job, worker = self._compiling
                for future in job.futures:
                    future.cancel()
                if worker is not None:
                    worker.close()
            for _, worker in self._workers.values():
                worker.close()
            self._workers.clear()

    def __del__(self) -> None:
        for _, worker in self._workers.values():
            worker.close()

    # -- on the thread, which ends when there is nothing left to compile -----------------------------

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
        """The next grammar of the tenant that was served longest ago and has room; None if none waits."""
        while True:
            with self._lock:
                self._waiting = [job for job in self._waiting if job.is_wanted]
                if not self._waiting:
                    self._turns.clear()
                    self._thread = None
                    return None
                tenants = dict.fromkeys(job.tenant for job in self._waiting)
                turns = sorted(tenants, key=lambda tenant: self._turns.get(tenant, 0))
                tenant = next(filter(self._has_room, turns), None)
                if tenant is not None:
                    job = next(job for job in self._waiting if job.tenant == tenant)
                    self._turns[tenant] = 1 + max(self._turns.values(), default=0)
                    self._waiting.remove(job)
                    self._compiling = (job, None)
                    return job
            time.sleep(_POLL_SECONDS)

    def _compiled(self, job: _Job) -> GrammarWorker:
        tokens = self._tokens.get(job.info.name)
        if tokens is None:
            tokens = self._tokens[job.info.name] = self._tokens_of(job.info, job.key[1])
        child = self._child or own_child()
        channel = child.start_worker(tokens, job.key[1], self._limits)
        worker = GrammarWorker(channel, tokens.tokeniser, job.key[1], self._limits)
        with self._lock:
            self._compiling = (job, worker)
            if self._is_closed:
                worker.close()
        try:
            worker.compile()
        finally:
            child.keep_spare()
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
        with self._lock:
            self._compiling = None
            if isinstance(result, GrammarWorker) and not self._is_closed:
                self._workers[job.key] = (job.tenant, result)
            for future in job.futures:
                if not future.set_running_or_notify_cancel():
                    continue
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
        waiting = sum(other.tenant == job.tenant and other.is_wanted for other in self._waiting)
        if waiting >= MAX_WAITING_PER_TENANT:
            raise QueueFullError(f"{waiting} grammars of this tenant already wait to be compiled; try later")
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="aio-grammars", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                raise GrammarServerError(f"grammars cannot be compiled at the moment: {error}") from error
            self._thread = thread
        self._waiting.append(job)

    def _has_room(self, tenant: str) -> bool:
        """Whether another process may be started for `tenant`, possibly after evicting an idle one."""
        used = sum(owner == tenant and bool(worker.handles) for owner, worker in self._workers.values())
        return used < MAX_WORKERS_PER_TENANT and (len(self._workers) < MAX_WORKERS or self._evict())

    def _evict(self) -> bool:
        """End the least recently used idle process. Returns whether there was one."""
        idle = next((key for key, (_, worker) in self._workers.items() if not worker.handles), None)
        if idle is None:
            return False
        _, worker = self._workers.pop(idle)
        worker.close()
        return True


@dataclass(slots=True)
class Compiled:
    """A request that can be admitted: the result of `matchers` makes a matcher per choice, or raises `CoreError`."""

    request: AddRequest
    matchers: Future[MatcherFactory]
    aborted: list[int] = field(default_factory=list)
    """Choices that were aborted meanwhile."""


class GrammarAdmission:
    """Holds a core's requests until their grammars are compiled; the requests' salts identify tenants.

    `vocabulary_of` returns a model's tokens; called on a thread, once per model. `eos_token_ids` by model.
    """

    def __init__(
        self, vocabulary_of: Callable[[ModelInfo], Vocabulary], eos_token_ids: dict[str, tuple[int, ...]]
    ) -> None:
        self._workers = GrammarWorkers(vocabulary_of, eos_token_ids)
        self._waiting: dict[str, Compiled] = {}

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._waiting

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def is_unused(self) -> bool:
        """Whether no grammar waits, and no process follows one whose memory is to be bounded."""
        return not self._waiting and not self._workers.has_processes

    def add(self, request: AddRequest, info: ModelInfo, grammar: Grammar) -> None:
        """Hold a request until its grammar is compiled; with a known grammar it is ready at once.

        Raises the errors of `GrammarWorkers.compile`.
        """
        ready = self._workers.compile(info, grammar, request.salt)
        self._waiting[request.request_id] = Compiled(request, ready)

    def take(self, patience: float = 0.0) -> list[Compiled]:
        """Remove and return requests whose grammar compiled or failed, in order of arrival; wait `patience` seconds."""
        self._workers.bound_memory()
        if not self._waiting:
            return []
        if patience > 0:
            wait([c.matchers for c in self._waiting.values()], patience, FIRST_COMPLETED)
        ready = [c for c in self._waiting.values() if c.matchers.done()]
        for compiled in ready:
            del self._waiting[compiled.request.request_id]
        return ready

    def abort(self, request_id: str, index: int | None) -> None:
        """Drop a request that is not admitted yet, or record that a choice of it is aborted."""
        if index is not None:
            self._waiting[request_id].aborted.append(index)
        else:
            self._waiting.pop(request_id).matchers.cancel()

    def close(self) -> None:
        """Stop compiling and end all grammar processes, without waiting."""
        self._waiting.clear()
        self._workers.close()


def vocabulary_of_file(info: ModelInfo) -> Vocabulary:
    """Load a model's tokeniser. Raises `ModelFileError`, and `InvalidRequestError` if the model has none."""
    if not info.model_path:
        raise InvalidRequestError(f"{info.name} has no tokeniser, so it follows no grammars", "response_format")
    from inference_core.tokenization.load_tokenizer import load_tokenizer

    return load_tokenizer(resolve_model_path(info.model_path))


class TokenMask(NamedTuple):
    """The mask of one draw: ascending `ids` are the only tokens allowed, or, unless `only`, the ones forbidden.

    Grammars usually allow few tokens or forbid few, so either list is short.
    """

    ids: npt.NDArray[np.intp]
    only: bool

    @classmethod
    def of_bytes(cls, mask: bytes) -> "TokenMask":
        """From a matcher's mask."""
        return _unpacked(mask)

    def apply(self, row: npt.NDArray[np.float32]) -> None:
        """Set the forbidden tokens of a row of logits [vocabulary] to -inf."""
        ids = self.ids[: np.searchsorted(self.ids, len(row))]
        if not self.only:
            row[ids] = -np.inf
            return
        kept = row[ids]
        row.fill(-np.inf)
        row[ids] = kept


@lru_cache(64)
def _unpacked(mask: bytes) -> TokenMask:
    """Cached, since the same few masks repeat within a string, a number or white space."""
    bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little").view(np.bool_)
    if 2 * np.count_nonzero(bits) < len(bits):
        return TokenMask(np.flatnonzero(bits), True)
    return TokenMask(np.flatnonzero(~bits), False)


class TokenMasks:
    """Masks of the rows of sequences with a grammar; the constructor requests them, `wait` returns them."""

    def __init__(self, work: list[tuple[int, Matcher, Sequence[int]]]) -> None:
        """`work`: per sequence its first row, its matcher, and its drafted tokens, each of which has one more row."""
        self._work = work
        for _, matcher, drafts in work:
            matcher.ask_masks(drafts)
        for _, matcher, _ in work:
            matcher.send()

    def wait(self) -> dict[int, TokenMask]:
        """The masks by row."""
        return {
            first + offset: TokenMask.of_bytes(mask)
            for first, matcher, _ in self._work
            for offset, mask in enumerate(matcher.masks())
        }


def begin_masks(specs: Sequence[SampleSpec], drafts: Sequence[Sequence[int]] | None = None) -> TokenMasks | None:
    """Request the masks of a step's draws; None if no spec has a grammar.

    `drafts`: per spec its drafted tokens; it has a row of logits for each and one more. None: no drafts.
    """
    work: list[tuple[int, Matcher, Sequence[int]]] = []
    row = 0
    for index, spec in enumerate(specs):
        proposed = () if drafts is None else drafts[index]
        if spec.matcher is not None:
            work.append((row, spec.matcher, proposed))
        row += 1 + len(proposed)
    return TokenMasks(work) if work else None
