"""Admission: checks a request against its caller's limits and budgets before it costs anything, and settles it once.
And how many answers a process gives at once, and who waits or is sent away beyond that (SPEC GW-12).

The upper bound of an answer's cost, which is held until then: a tokeniser makes at most one token per byte, and
tiers stop at their limits, thoughts that no caller sees included.
"""

import asyncio
import heapq
import itertools
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from gateway.base.errors import ApiError, bad_request, shutting_down
from gateway.base.inference_request import Allowance, Caller, InferenceRequest
from gateway.base.stores.redis_store import RedisUnavailableError
from gateway.tenancy.budgets.budget_leases import BudgetExceededError, BudgetLeases, BudgetsUnavailableError, Hold
from gateway.tenancy.budgets.lease_book import (
    MICRO,
    QUOTA_EXCEEDED,
    microusd,
    microusd_at_least,
    period_bounds,
    period_key,
)
from gateway.tenancy.windows import Entry, Room, Windows
from inference_core.tokenization.prompt_size import BYTES_PER_TOKEN
from quality.records.record import Record
from tiers.catalog.pricing import calls_of, most_cost_usd
from tiers.catalog.tier_spec import TierSpec
from tiers.prompt_bounds import most_media_tokens
from tiers.tier import Tier, Usage

if TYPE_CHECKING:
    from tiers.dialects.extras import UnboundedCostError


class MostTokens(NamedTuple):
    """The most tokens of one attempt, over all prompts and choices, and the most US dollars: what is held for it, and
    the most of its bill.
    """

    prompt: int
    answer: int
    choice: int
    """The limit of one choice, with which it is asked for."""
    usd: float
    """The most US dollars; infinite where what is billed besides tokens has no bound."""

    def bound(self, usage: Usage) -> Usage:
        """Return `usage` with no more tokens than these."""
        if usage.prompt_tokens <= self.prompt and usage.completion_tokens <= self.answer:
            return usage
        prompt = min(usage.prompt_tokens, self.prompt)
        cached = min(usage.cached_tokens, prompt)
        written = min(usage.cache_write_tokens, prompt - cached)
        return msgspec.structs.replace(
            usage,
            prompt_tokens=prompt,
            completion_tokens=min(usage.completion_tokens, self.answer),
            cached_tokens=cached,
            cache_write_tokens=written,
            cache_write_1h_tokens=min(usage.cache_write_1h_tokens, written),
            reasoning_tokens=min(usage.reasoning_tokens, self.answer),
        )


def most_tokens(request: InferenceRequest, tier: Tier, spec: TierSpec) -> MostTokens:
    """Return the most tokens of one attempt by `tier`."""
    prompts = len(request.prompts or [None])
    parts = [part for message in request.generation.messages or () for part in message.media]
    prompt = request.most_prompt_tokens() * prompts
    if parts:
        prompt += most_media_tokens(parts, spec.model_name, tier.max_context)
    choice = _most_of_a_choice(request, tier, spec)
    answer = prompts * request.drawn * spec.samples_per_choice * choice
    if spec.remote is None:
        return MostTokens(prompt, answer, choice, most_cost_usd(spec.price, prompt, answer))
    prompt, usd = _most_with_extras(request, spec, prompt, answer, tier.max_context)
    return MostTokens(prompt, answer, choice, usd)


def _most_with_extras(
    request: InferenceRequest, spec: TierSpec, prompt: int, answer: int, max_context: int
) -> tuple[int, float]:
    """Return the most prompt tokens of an attempt, and the most US dollars, infinite where they have no bound. Without
    tools that the provider runs there are at most `prompt` and `answer` tokens; each use of such a tool may read the
    whole context."""
    # A gateway of local models alone does without it.
    from tiers.dialects.extras import UnboundedCostError, most_extra_costs

    calls = calls_of(spec, len(request.prompts or [None]), request.drawn)
    try:
        extras = most_extra_costs(spec, request.generation, prompt, answer, calls)
    except UnboundedCostError:
        return prompt, math.inf
    prompt += extras.reads * max(prompt, max_context * calls) if extras.reads else 0
    return prompt, most_cost_usd(spec.price, prompt, answer) * extras.factor + extras.usd


def _most_of_a_choice(request: InferenceRequest, tier: Tier, spec: TierSpec) -> int:
    """A tier in process has its own limit, a server elsewhere the one that it is sent."""
    stated = request.stated_limit(spec)
    if spec.remote is None:
        return tier.max_context if stated is None else min(stated, tier.max_context)
    shortest = min(tier.count_prompt_tokens(generation) for generation in request.generations(spec))
    return tier.most_answer_tokens(stated, shortest)


def max_cost_usd(request: InferenceRequest, tier: Tier, spec: TierSpec) -> float:
    """Return the most US dollars of one attempt by `tier`."""
    return most_tokens(request, tier, spec).usd


def unbounded_extra(request: InferenceRequest, spec: TierSpec) -> "UnboundedCostError | None":
    """Return why the cost of `request` at the tier of `spec` has no bound, or one above its maximum cost besides tokens
    alone; None if it has neither."""
    from tiers.dialects.extras import UnboundedCostError, most_extra_costs

    try:
        usd = most_extra_costs(spec, request.generation, 0, 0, 1).usd
    except UnboundedCostError as error:
        return error
    if request.max_cost_usd is not None and usd > request.max_cost_usd:
        what = f"what it may use besides tokens at tier '{spec.name}' may cost ${usd:.6f}, above the maximum"
        return UnboundedCostError(
            f"{what} ${request.max_cost_usd:.6f} of x-aio-max-cost or of the key", "x-aio-max-cost"
        )
    return None


def require_bounded(request: InferenceRequest, spec: TierSpec) -> None:
    """Raise `ApiError` 400 where the cost of `request` at the tier of `spec` has no bound."""
    if (unbounded := unbounded_extra(request, spec)) is not None:
        raise bad_request(f"{unbounded}.", unbounded.param or None, "unsupported_parameter")


def check_max_cost(request: InferenceRequest, max_cost_usd: float) -> None:
    """Raise `ApiError` 400 if the request, which may cost up to `max_cost_usd`, may not cost so much by its header or
    by its key. For endpoints without a route: routing leaves out tiers that cost more."""
    if request.max_cost_usd is not None and max_cost_usd > request.max_cost_usd:
        raise bad_request(
            f"This request may cost up to ${max_cost_usd:.6f}, above the maximum ${request.max_cost_usd:.6f} of the "
            "header x-aio-max-cost or of the key.",
            "x-aio-max-cost",
            "no_tier_allowed",
        )


class HoldRefusedError(ApiError):
    """429 where a budget does not cover a request, or 503 where that cannot be checked. `why`: in a few words, for the
    reason of another route. `left_usd`: what is covered; `held_usd`: what requests in flight hold, of which most is
    left after them."""

    def __init__(
        self, status: int, message: str, why: str, error: BudgetExceededError | BudgetsUnavailableError, **fields: Any
    ) -> None:
        super().__init__(status, message, **fields)
        self.error = error
        self.why, self.left_usd, self.held_usd = why, error.left_usd, error.held_usd

    def advised(self, advice: str) -> "HoldRefusedError":
        """Return the same refusal whose message goes on with `advice`."""
        message, code, type_ = f"{self.body.message}{advice}", self.body.code, self.body.type
        fields: dict[str, Any] = {"code": code, "type_": type_, "headers": self.headers, "limit": self.limit}
        return HoldRefusedError(self.status, message, self.why, self.error, **fields)


class Admission(msgspec.Struct):
    """An admitted request; `close` it exactly once, however it ends. `headers` tell the caller what is left."""

    admission_control: "AdmissionControl | None" = None
    entry: Entry | None = None
    hold: Hold | None = None
    closed: bool = False
    left: bool = False

    @property
    def headers(self) -> dict[str, str]:
        """`x-ratelimit-…` as OpenAI has them; none without limits."""
        return {} if self.entry is None else rate_headers(self.entry)

    @property
    def held_usd(self) -> float | None:
        """US dollars held of the caller's budgets; None without budgets."""
        return None if self.hold is None else self.hold.amount / MICRO

    @property
    def left_usd(self) -> float:
        """US dollars by which the hold can be extended without waiting."""
        return math.inf if self.hold is None else self.hold.free / MICRO

    async def reserve(self, caller: Caller, max_cost_usd: float) -> None:
        """Hold the most that the answer may cost. Raises `HoldRefusedError`."""
        if self.admission_control is not None and caller.allowance.budgets:
            self.hold = await self.admission_control.hold(caller, max_cost_usd)

    async def reserves(self, caller: Caller, max_cost_usd: float) -> bool:
        """As `reserve`; False, holding nothing, if the caller's budgets cover less or cannot be checked."""
        if not math.isfinite(max_cost_usd):
            return False
        try:
            await self.reserve(caller, max_cost_usd)
        except HoldRefusedError:
            return False
        return True

    def next_release(self, caller: Caller) -> asyncio.Future[None]:
        """Return what is done once another request releases what it holds of the caller's budgets."""
        assert self.admission_control is not None, "nothing is held, so nothing is refused"
        return self.admission_control.next_release(caller)

    async def claim(self, caller: Caller, tokens: int) -> None:
        """Count the tokens of a text that was read after its request was admitted. Raises `ApiError` 429 or 503."""
        if self.entry is not None and self.admission_control is not None:
            self.entry = await self.admission_control.claimed(self.entry, caller, tokens)

    def affords(self, max_cost_usd: float) -> bool:
        """Hold this much more, for another attempt, if that is possible without waiting."""
        if self.hold is None or self.closed:
            return True
        return math.isfinite(max_cost_usd) and self.hold.extend(microusd_at_least(max_cost_usd))

    async def make_room(self, caller: Caller, max_cost_usd: float) -> None:
        """Lease this much more, so that `affords` finds it without waiting; nothing where budgets cover less."""
        if self.hold is not None and self.admission_control is not None and math.isfinite(max_cost_usd):
            with suppress(ApiError):
                (await self.admission_control.hold(caller, max_cost_usd)).settle(0)

    def close(self, record: Record | None) -> None:
        """Release the place, and charge what the request used: nothing without a record."""
        if record is None:
            self.settle(0.0, 0)
        else:
            self.settle(record.cost_usd, record.prompt_tokens + record.completion_tokens)

    def settle(self, cost_usd: float, tokens: int) -> None:
        """As `close`, for a request without a record."""
        if self.closed:
            return
        self.closed = True
        if self.hold is not None:
            self.hold.settle(microusd(cost_usd))
        self.leave(tokens)

    def leave(self, tokens: int) -> None:
        """Release the place of a request that used so many tokens; what it may cost stays held. Idempotent."""
        if self.entry is not None and self.admission_control is not None and not self.left:
            self.left = True
            self.admission_control.leave(self.entry, tokens)


class AdmissionControl:
    """Admission control: `windows` for the rate limits, `budget_leases` for the budgets."""

    def __init__(self, windows: Windows, budget_leases: BudgetLeases, expected_answer_tokens: int) -> None:
        self._windows, self._budget_leases = windows, budget_leases
        self._expected = expected_answer_tokens

    def enter(self, request: InferenceRequest, tokens: int | None = None) -> Awaitable[Admission]:
        """Admit `request`, of about so many `tokens`, which are estimated if they are not given. Raises `ApiError`: 429
        if a limit of its key is reached, 503 if limits cannot be checked."""
        caller = request.caller
        if tokens is None:
            tokens = 0 if caller.allowance.tokens_per_minute is None else self._tokens(request)
        return self._entered(caller, tokens, request.request_id)

    def enter_call(self, caller: Caller, member: str) -> Awaitable[Admission]:
        """Admit a call without an answer, such as feedback, as a request of no tokens; `member` is its unique name.
        Raises `ApiError` as `enter`."""
        return self._entered(caller, 0, member)

    async def _entered(self, caller: Caller, tokens: int, member: str) -> Admission:
        allowance, admission = caller.allowance, Admission(self)
        bounded = allowance.requests_per_minute, allowance.tokens_per_minute, allowance.concurrency
        if caller.key_id is None or bounded == (None, None, None):
            return admission
        admission.entry = await _admitted(self._windows.enter(caller.key_id, allowance, tokens, member), allowance)
        return admission

    def claimed(self, entry: Entry, caller: Caller, tokens: int) -> Awaitable[Entry]:
        """Return the entry of an admitted request with `tokens` more. Raises `ApiError` 429 or 503."""
        return _admitted(self._windows.claim(entry, caller.allowance, tokens), caller.allowance)

    async def hold(self, caller: Caller, max_cost_usd: float) -> Hold:
        """Hold so many US dollars of all budgets of `caller`. Raises `HoldRefusedError`."""
        try:
            return await self._budget_leases.hold(caller.allowance.budgets, microusd_at_least(max_cost_usd))
        except BudgetExceededError as error:
            now = self._budget_leases.now()
            end = period_bounds(period_key(error.budget.period, now))[1]
            raise HoldRefusedError(
                429,
                _quota_text(caller, error, end),
                f"it may cost ${error.needed_usd:.6f}, and the budget has ${error.left_usd:.6f} left",
                error,
                code=QUOTA_EXCEEDED,
                type_=QUOTA_EXCEEDED,
                headers={"retry-after": str(max(1, math.ceil(end - now)))} if math.isfinite(end) else {},
                limit=f"the {error.budget.subject_kind}'s budget of {error.budget.said}",
            ) from error
        except BudgetsUnavailableError as error:
            raise HoldRefusedError(
                503,
                "The budget cannot be checked: the database is down. Try again later.",
                f"the budget cannot be checked, and ${error.left_usd:.6f} of it are left here",
                error,
                code="budget_unavailable",
            ) from error

    def next_release(self, caller: Caller) -> asyncio.Future[None]:
        """See `BudgetLeases.next_release`."""
        return self._budget_leases.next_release(caller.allowance.budgets)

    def leave(self, entry: Entry, tokens: int) -> None:
        """The request has ended and used this many tokens."""
        self._windows.leave(entry, tokens)

    def _tokens(self, request: InferenceRequest) -> int:
        """Estimate the tokens; corrected when the request ends. A limit of the answer is an upper bound, so one that no
        minute of the key has room for counts as the longest expected answer."""
        asked = request.generation
        if asked.messages is not None:
            prompt = sum(len(message.text.encode()) for message in asked.messages) // BYTES_PER_TOKEN
            prompt += sum(message.media_tokens for message in asked.messages if message.media)
        else:
            prompt = sum(
                len(p) if isinstance(p, list) else len(p.encode()) // BYTES_PER_TOKEN for p in request.prompts or ()
            )
        answer, most = asked.max_tokens, request.caller.allowance.tokens_per_minute
        if answer is None:
            answer = self._expected
        elif most is not None and 1 + prompt + request.choices * answer > most:
            answer = min(answer, self._expected)
        return 1 + prompt + request.choices * answer


async def _admitted(entering: Awaitable[Entry], allowance: Allowance) -> Entry:
    try:
        entry = await entering
    except RedisUnavailableError as error:
        raise ApiError(
            503, "The limits of this key cannot be checked. Try again later.", code="limits_unavailable"
        ) from error
    if entry.refused:
        raise _refusal(entry, allowance.concurrency)
    return entry


def _quota_text(caller: Caller, error: BudgetExceededError, end: float) -> str:
    """Say whose budget covers the request no longer, what is left of it, and when its next period begins (`end`, epoch
    seconds)."""
    budget = error.budget
    name = caller.team_name if budget.subject_kind == "team" else caller.name
    whose = f"{budget.subject_kind} {name}" if name else f"this {budget.subject_kind}"
    renewed = ""
    if math.isfinite(end):
        renewed = f" It is renewed at {datetime.fromtimestamp(end, UTC):%Y-%m-%d %H:%M} UTC."
    return (
        f"You exceeded your current quota: this request may cost up to ${error.needed_usd:.6f}, and the budget of "
        f"{whose} ({budget.said}) has ${error.left_usd:.6f} left.{renewed}"
    )


def rate_headers(entry: Entry) -> dict[str, str]:
    """Return the headers with what is left of the limits."""
    headers = {}
    rooms: Mapping[str, Room | None] = {"requests": entry.requests, "tokens": entry.tokens}
    for name, room in rooms.items():
        if room is not None:
            headers[f"x-ratelimit-limit-{name}"] = str(room.limit)
            headers[f"x-ratelimit-remaining-{name}"] = str(room.remaining)
            headers[f"x-ratelimit-reset-{name}"] = duration(room.reset_seconds)
    return headers


def duration(seconds: float) -> str:
    """Format as OpenAI does: 850ms, 12.5s, 1m1s."""
    if seconds < 1:
        return f"{max(round(seconds * 1000), 0)}ms"
    minutes, rest = divmod(round(seconds, 3), 60)
    return f"{f'{minutes:.0f}m' if minutes else ''}{rest:.3f}".rstrip("0").rstrip(".") + "s"


def _refusal(entry: Entry, concurrency: int | None) -> ApiError:
    room = entry.requests if entry.refused == "requests" else entry.tokens
    if entry.refused == "concurrency":
        said = f"{concurrency} requests in flight"
    else:
        said = f"{0 if room is None else room.limit} {entry.refused} per minute"
    headers = rate_headers(entry)
    if entry.retry_seconds is None:
        asked = f"The request asks for up to {entry.requested_tokens} tokens"
        message = f"{asked}; this key's limit is {said}. Send a smaller one."
    else:
        headers["retry-after"] = str(max(1, math.ceil(entry.retry_seconds)))
        message = f"Rate limit reached: this key's limit is {said}. Try again in {duration(entry.retry_seconds)}."
    return ApiError(
        429,
        message,
        code="rate_limit_exceeded",
        type_=_TYPES[entry.refused],
        headers=headers,
        limit=f"the key's limit of {said}",
    )


_TYPES = {"requests": "requests", "tokens": "tokens", "concurrency": "requests"}


# How fast the mean duration of answers follows: about the last twenty count.
FOLLOWING = 0.05

# Why a request was sent away: no room for the newcomer, its room went to a more urgent one, the process ends, or its
# record would find no room.
ShedReason = Literal["full", "displaced", "shutdown", "journal"]
JOURNAL_RETRY_SECONDS = 5.0


class _Waiting(NamedTuple):
    """One request in the queue; lower goes first: the class (0 is the most urgent), then who came before."""

    priority: int
    number: int
    turn: asyncio.Future[None]


class OverloadQueue:
    """At most `in_flight` answers at once, and at most `waiting` requests behind them, the most urgent class first.

    Where the queue is full somebody is sent away with a 503 and the time to come back: the least urgent, and of these
    the newest, be it the newcomer or one who waits. So a flood of one class costs a more urgent one nothing but the
    answers that are under way. `journal_full`: whether so many records wait for the disk that newcomers are sent away.
    `shed`: how many were sent away, by class and reason. Belongs to one event loop.
    """

    def __init__(self, in_flight: int, waiting: int, journal_full: Callable[[], bool] = lambda: False) -> None:
        self.running = 0
        self.shed: Counter[tuple[int, ShedReason]] = Counter()
        self._in_flight, self._room, self._journal_full = in_flight, waiting, journal_full
        self._queue: list[_Waiting] = []
        self._numbers = itertools.count()
        self._mean_seconds: float | None = None
        self._closed = False

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._queue)

    async def enter(self, priority: int) -> float:
        """Wait for a place; the time of entry, monotonic seconds, which `leave` wants. Raises `ApiError` 503."""
        if self._journal_full():
            self.shed[priority, "journal"] += 1
            raise ApiError(
                503,
                "The disk does not answer, and the records of earlier requests fill the memory that they may wait in. "
                "Try again later.",
                code="journal_full",
                retry_after_seconds=JOURNAL_RETRY_SECONDS,
            )
        if self.running < self._in_flight and not self._queue:
            self.running += 1
            return time.monotonic()
        await self._wait(priority)
        return time.monotonic()

    def leave(self, entered: float, *, answered: bool) -> None:
        """Give a place back; how long an answer took tells how long others will wait."""
        if answered:
            seconds = time.monotonic() - entered
            mean = seconds if self._mean_seconds is None else self._mean_seconds
            self._mean_seconds = mean + FOLLOWING * (seconds - mean)
        self.running -= 1
        self._let_in()

    def predicted_wait(self, priority: int) -> float:
        """Seconds until a request of this class that comes now would get its place."""
        if self.running < self._in_flight and not self._queue:
            return 0.0
        ahead = sum(waiter.priority <= priority for waiter in self._queue)
        return (self._mean_seconds or 0.0) * (ahead + 1) / self._in_flight

    def close(self) -> None:
        """Send everybody away who waits, now and later: the process ends."""
        self._closed = True
        for waiter in self._queue:
            if not waiter.turn.done():
                waiter.turn.set_exception(self.shutting_down(waiter.priority))
        self._queue.clear()

    def shutting_down(self, priority: int) -> ApiError:
        """The error of a request that is shed because the process ends; counts it."""
        self.shed[priority, "shutdown"] += 1
        return shutting_down()

    async def _wait(self, priority: int) -> None:
        if self._closed:
            raise self.shutting_down(priority)
        if len(self._queue) >= self._room:
            self._make_room(priority)
        mine = _Waiting(priority, next(self._numbers), asyncio.get_running_loop().create_future())
        heapq.heappush(self._queue, mine)
        try:
            await mine.turn
        except asyncio.CancelledError:
            if mine in self._queue:
                self._queue.remove(mine)
                heapq.heapify(self._queue)
            elif mine.turn.done() and not mine.turn.cancelled() and mine.turn.exception() is None:
                # The place was given to a request that is gone.
                self.running -= 1
                self._let_in()
            raise

    def _make_room(self, priority: int) -> None:
        """Send the least urgent, newest one away. Raises if that is the newcomer."""
        last = max(self._queue, default=None)
        if last is None or priority >= last.priority:
            raise self._refusal(priority, "full")
        self._queue.remove(last)
        heapq.heapify(self._queue)
        if not last.turn.done():
            last.turn.set_exception(self._refusal(last.priority, "displaced"))

    def _let_in(self) -> None:
        while self._queue and self.running < self._in_flight:
            waiter = heapq.heappop(self._queue)
            if not waiter.turn.done():
                self.running += 1
                waiter.turn.set_result(None)

    def _refusal(self, priority: int, reason: ShedReason) -> ApiError:
        self.shed[priority, reason] += 1
        return ApiError(
            503,
            f"The server is full: {self.running} answers are under way and {len(self._queue)} requests wait. Try again "
            "later, or with a more urgent service_tier.",
            code="overloaded",
            retry_after_seconds=self.predicted_wait(priority),
        )
