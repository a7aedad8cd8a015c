"""A replica in simulated time: continuous batching with chunked prefill, at the step times of a profile.

Between two events (an arrival, the end of a prompt, the end of an answer) the mix of a step is constant, so time jumps
from event to event without simulating single steps: a fluid model, wrong by at most a step per event.
"""

from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush

from gateway.planning.capacity.replica_profile import ReplicaProfile

_TIE = 1e-9


@dataclass(slots=True)
class SimulatedRequest:
    """`cached_tokens` of the prompt are not computed. Times are seconds of the simulation, None until they occur."""

    number: int
    at: float
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    first_token_at: float | None = None
    finished_at: float | None = None

    @property
    def ttft_s(self) -> float:
        """Infinite while there is no token."""
        return float("inf") if self.first_token_at is None else self.first_token_at - self.at

    @property
    def itl_s(self) -> float:
        """Mean time between tokens; 0 for an answer of one token."""
        if self.output_tokens == 1:
            return 0.0
        if self.finished_at is None or self.first_token_at is None:
            return float("inf")
        return (self.finished_at - self.first_token_at) / (self.output_tokens - 1)


@dataclass(slots=True)
class SimulatedReplica:
    """Prompts run first come, first served; every admitted answer decodes in every step. `ready_at`: when it may
    serve."""

    profile: ReplicaProfile
    ordered_at: float
    ready_at: float
    draining: bool = False
    clock: float = 0.0
    busy_s: float = 0.0
    _waiting: deque[SimulatedRequest] = field(default_factory=deque)
    _decoding: list[tuple[float, int, SimulatedRequest]] = field(default_factory=list)
    _head_left: float = 1.0
    _steps: float = 0.0
    _decode_s: float = 0.0
    _kv_tokens: int = 0
    _queued_s: float = 0.0

    def __post_init__(self) -> None:
        self.clock = self.ready_at

    @property
    def in_flight(self) -> int:
        return len(self._waiting) + len(self._decoding)

    @property
    def load_s(self) -> float:
        """Seconds of prompts ahead of a new one plus the current step time: the load balancer's criterion."""
        return self._queued_s + self._decode_s

    def put(self, request: SimulatedRequest) -> None:
        """Queue a request; `advance` to its arrival first."""
        self._waiting.append(request)
        self._queued_s += self.profile.prefill_s(request.prompt_tokens, request.cached_tokens)

    def advance(self, until: float) -> list[SimulatedRequest]:
        """Serve to `until`. Returns the requests whose prompt ended (`first_token_at` is set) or that finished."""
        changed: list[SimulatedRequest] = []
        profile = self.profile
        while self.clock < until:
            head = self._head()
            if head is None and not self._decoding:
                self.clock = until
                break
            step_s = profile.base_s + self._decode_s
            if head is None:
                head_s, step_rate = float("inf"), 1 / step_s
            else:
                fresh = max(1, head.prompt_tokens - head.cached_tokens)
                chunks = fresh / profile.chunk_tokens
                whole_s = profile.prefill_s(head.prompt_tokens, head.cached_tokens) + chunks * step_s
                head_s, step_rate = self._head_left * whole_s, chunks / whole_s
            decode_s = max(0.0, self._decoding[0][0] - self._steps) / step_rate if self._decoding else float("inf")
            passed = min(head_s, decode_s, until - self.clock)
            self.clock += passed
            self.busy_s += passed
            self._steps += passed * step_rate
            if head is not None:
                self._head_left -= passed / whole_s
                if passed >= head_s - _TIE:
                    changed.append(self._finish_prompt(head))
            if passed >= decode_s - _TIE:
                changed.append(self._finish_answer())
        return changed

    def _head(self) -> SimulatedRequest | None:
        """The next prompt, if the batch and the cache have room for its answer."""
        if not self._waiting or len(self._decoding) >= self.profile.max_sequences:
            return None
        head = self._waiting[0]
        if self._decoding and self._kv_tokens + head.prompt_tokens + head.output_tokens > self.profile.kv_tokens:
            return None
        return head

    def _finish_prompt(self, head: SimulatedRequest) -> SimulatedRequest:
        self._waiting.popleft()
        self._head_left = 1.0
        self._queued_s = max(0.0, self._queued_s - self.profile.prefill_s(head.prompt_tokens, head.cached_tokens))
        head.first_token_at = self.clock
        if head.output_tokens == 1:
            head.finished_at = self.clock
        else:
            self._admit(head)
        return head

    def _admit(self, request: SimulatedRequest) -> None:
        heappush(self._decoding, (self._steps + request.output_tokens - 1, request.number, request))
        self._decode_s += self.profile.decode_s(request.prompt_tokens + request.output_tokens / 2)
        self._kv_tokens += request.prompt_tokens + request.output_tokens

    def _finish_answer(self) -> SimulatedRequest:
        _, _, done = heappop(self._decoding)
        self._decode_s = max(0.0, self._decode_s - self.profile.decode_s(done.prompt_tokens + done.output_tokens / 2))
        self._kv_tokens -= done.prompt_tokens + done.output_tokens
        if not self._decoding:
            self._decode_s = 0.0
        done.finished_at = self.clock
        return done
