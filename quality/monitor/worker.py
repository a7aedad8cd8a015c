"""The monitor's work: claim what waits, verify it within the budget, and store what it teaches; with its settings, and
what it has still to decide on: finished requests, bounded in number and bytes, and calls that failed.

It is done in a background loop (`WorkLoop`): woken when there is some, polling otherwise, and not ended by errors."""

import asyncio
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple

import msgspec

from inference_core.io.background_tasks import is_cancelled, repeated
from inference_core.tokenization.tokenizer import LONG_TEXT
from quality.estimates.verified_sample import UpgradeSettings
from quality.monitor.detectors import ShiftSettings
from quality.records.record import Record
from quality.verification.comparison import VerifiedComparison
from quality.verification.job import Exchange, Ruling, VerificationJob
from quality.verification.judging import MOST_OPINIONS, OpinionsGiven
from quality.verification.queue import Claim, VerificationQueue
from quality.verification.sampling import Purpose, SamplingSettings
from quality.verification.tier_terms import TierTerms
from quality.verification.training_rows import Encode, training_row
from quality.verification.verifier import AttemptError, Verifier, Waited
from tiers.tier import Tier


class MonitorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the monitor. Times in seconds."""

    sampling: SamplingSettings = SamplingSettings()
    upgrade: UpgradeSettings = UpgradeSettings()
    shift: ShiftSettings = ShiftSettings()
    trigger: Literal["evidence", "share"] = "evidence"
    """The rule whose alarms are passed on: the sequential test, or the share of `upgrade`."""
    max_tokens: int = 1024
    """Limit of a reference answer, reasoning included."""
    second_opinions: int = MOST_OPINIONS
    """Further answers, 0 to 2, that may contradict before an answer counts as worse."""
    max_attempts: int = 3
    lease_seconds: float = 600.0
    retry_seconds: float = 30.0
    expire_seconds: float = 86_400.0
    poll_seconds: float = 1.0
    max_offered: int = 1000
    max_held: int = 50
    """The most drawn answers, the newest, that wait for a judge."""
    result_seconds: float = 120.0
    """How long an answer with calls waits for the caller's next request, whose results say whether they failed."""
    cold_start_per_second: float = 2.0
    """The most answers a second that a cold start draws on average, since more at once teach no sooner."""
    parallel: int = 1
    """The verifications that run at a time in one process."""
    machine_share: float = 1.0
    """The share of the time, in (0, 1], for which verification may keep local tiers busy."""


# Of the newest drawn answers, whose results may still come.
_MOST_CALLS = 2000
# Of all turns that wait for a decision.
MOST_BYTES = 64 << 20

ToCompare = Callable[[Purpose], VerifiedComparison | None]
"""Return the cheap tiers whose answers the verification of a request compares; None for none."""


def compare_none(purpose: Purpose) -> None:
    """Compare no answers."""
    return


class Offer(NamedTuple):
    """A finished request to decide on."""

    record: Record
    to_compare: ToCompare = compare_none
    turn: Exchange | None = None
    sampling: SamplingSettings | None = None
    """The ceilings under which it was let in; None for the current ones."""

    @property
    def num_bytes(self) -> int:
        """About what its turn holds in memory; texts alone are held by its record."""
        return 0 if self.turn is None else self.turn.num_bytes


class FailedCall(NamedTuple):
    """An offered answer of which a call failed."""

    request_id: str


class Offers:
    """A queue, first in, first out. `most`: of requests."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: deque[tuple[Offer | FailedCall, int]] = deque()
        self._num_bytes = 0
        # The request of each call, by the caller's key and the call's id.
        self._calls: dict[tuple[str | None, str], str] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, offer: Offer) -> bool:
        """Let `offer` wait; False if too many wait, or too much."""
        size = offer.num_bytes
        if len(self._waiting) >= self._most or (self._num_bytes and self._num_bytes + size > MOST_BYTES):
            return False
        self._waiting.append((offer, size))
        self._num_bytes += size
        for call in offer.turn.calls if offer.turn is not None else ():
            self._calls[offer.record.key_id, call.id] = offer.record.request_id
        while len(self._calls) > _MOST_CALLS:
            del self._calls[next(iter(self._calls))]
        return True

    def calls_failed(self, key_id: str | None, call_ids: Sequence[str]) -> None:
        """Let it be noted, after the decision on the answer that made them, that these calls failed."""
        for call_id in call_ids:
            request_id = self._calls.pop((key_id, call_id), None)
            if request_id is not None:
                self._waiting.append((FailedCall(request_id), 0))

    def first(self) -> Offer | FailedCall | None:
        """Return what has waited longest; it goes on waiting until `done`."""
        return self._waiting[0][0] if self._waiting else None

    def done(self) -> None:
        self._num_bytes -= self._waiting.popleft()[1]

    def clear(self) -> None:
        """Forget all that wait."""
        self._waiting.clear()
        self._num_bytes = 0


log = logging.getLogger(__name__)

Step = Callable[[], Awaitable[bool]]


class WorkLoop:
    """Calls `step` until it returns False (nothing to do), then waits for `nudge` or `poll_seconds`.

    An exception of `step` is logged and counts as "nothing to do": an unavailable database must not end the loop.
    """

    def __init__(self, name: str, step: Step, poll_seconds: float) -> None:
        self.name = name
        self._step = step
        self._poll_seconds = poll_seconds
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start. Idempotent."""
        if self._task is None:
            self._task = repeated(self._run, self.name)

    async def close(self) -> None:
        """Cancel the running step and stop. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    def nudge(self) -> None:
        self._idle.clear()
        self._wake.set()

    async def drain(self) -> None:
        """Wait until a `step` that started after this call found nothing to do. Raises RuntimeError if not running."""
        if self._task is None:
            raise RuntimeError(f"{self.name} is not running; call start() first")
        self.nudge()
        idle = asyncio.create_task(self._idle.wait())
        await asyncio.wait({idle, self._task}, return_when=asyncio.FIRST_COMPLETED)
        if not idle.done():
            idle.cancel()
            raise RuntimeError(f"{self.name} was stopped")

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            try:
                while await self._step():
                    pass
            except Exception as error:
                if is_cancelled():
                    raise asyncio.CancelledError from error
                log.exception("%s could not work; it tries again within %s s", self.name, self._poll_seconds)
            if not self._wake.is_set():
                self._idle.set()
                with suppress(TimeoutError):
                    # Not `wait_for`, which before Python 3.12 loses a cancellation that comes with a nudge.
                    async with asyncio.timeout(self._poll_seconds):
                        await self._wake.wait()


# So many jobs that cannot run now are passed over in one look at the queue. Most often the first one can; those behind
# one that cannot are read a few at a time.
_MOST_PASSED, _READ_AT_ONCE = 32, 8


class Worker:
    """Verifies jobs whose tiers no request waits for; several may run at a time. `learned` is awaited after each that
    teaches something. `second_opinions`: since the start."""

    def __init__(
        self,
        queue: VerificationQueue,
        verifier: Verifier,
        tiers: Sequence[Tier],
        settings: MonitorSettings,
        *,
        encode: Encode | None,
        terms: TierTerms,
        learned: Callable[[], Awaitable[None]],
        clock: Callable[[], float],
    ) -> None:
        self.second_opinions = OpinionsGiven()
        # Until when local models rest, and until when the time that they were busy has been counted.
        self._rests_until = self._counted_until = -math.inf
        self._queue, self._verifier, self._tiers, self._settings = queue, verifier, tiers, settings
        self._encode, self._terms, self._learned, self._clock = encode, terms, learned, clock

    async def verify_one(self) -> bool:
        """Verify one job; return whether something was done, so that there may be more to do."""
        now = self._clock()
        await self._queue.sweep(now, now - self._settings.expire_seconds)
        if not self._tiers[-1].load().healthy:
            return False
        # Neither a job that the budget does not cover nor one whose tier is busy holds up those behind it.
        passed: list[int] = []
        # One whose own budget does not cover its oldest job.
        spent: set[str] = set()
        while most := min(_READ_AT_ONCE if passed else 1, _MOST_PASSED - len(passed)):
            jobs = await self._queue.next_jobs(now, passed, most, spent)
            for job in jobs:
                if self._verifier.is_paused(job):
                    await self._queue.drop(job, "judges pause", now)
                    return True
                if job.tenant not in spent and not self._must_wait(job):
                    claimed = await self._claim_and_verify(job, now)
                    if job.compared is not None and claimed.startswith("no budget"):
                        # A budget that does not cover the comparison as well may cover the verification.
                        claimed = await self._claim_and_verify(msgspec.structs.replace(job, compared=None), now)
                    if not claimed.startswith("no budget"):
                        return True
                    if claimed == "no budget of its own":
                        spent.add(job.tenant)
                passed.append(job.verification_id)
            if len(jobs) < most:
                break
        return False

    def _must_wait(self, job: VerificationJob) -> bool:
        """Whether requests wait for a tier that `job` asks, or verification has had its share of this machine's time.
        Batch priority yields in our own cores; a remote tier has no priorities, so its queue is not joined."""
        if self._is_local(job) and self._clock() < self._rests_until:
            return True
        asked = self._verifier.asked.asked(job)
        return any(tier.number in asked and tier.load().waiting > 0 for tier in self._tiers)

    def _is_local(self, job: VerificationJob) -> bool:
        asked = self._verifier.asked.asked(job)
        return any(tier.number in asked and tier.is_local for tier in self._tiers)

    async def _claim_and_verify(self, job: VerificationJob, now: float) -> Claim:
        """Verify `job` if a budget covers it and no other replica took it; return what came of the claim."""
        try:
            # Prompts are counted for it: megabytes on a thread.
            long = sum(len(message["content"]) for message in job.messages) > LONG_TEXT
            bound = await asyncio.to_thread(self._verifier.bound_usd, job) if long else self._verifier.bound_usd(job)
        except AttemptError as error:
            # Claim it, so that the failure counts and a poisoned job cannot block the queue.
            if (claimed := await self._queue.claim(job, 0.0, now)) == "claimed":
                await self._fail(job, error)
            return claimed
        claimed = await self._queue.claim(job, bound, now, min(bound, self._verifier.expected_usd(job)))
        if claimed == "claimed":
            started_at, waited = self._clock(), Waited()
            await self._work_on(job, bound, waited)
            if self._is_local(job):
                self._rest(started_at, waited.seconds)
        return claimed

    def _rest(self, started_at: float, waited_seconds: float) -> None:
        """Let local models rest after a job: for the time that it kept them busy, without that in which others had
        them, and once for several jobs at a time."""
        now = self._clock()
        busy = now - max(started_at, self._counted_until) - waited_seconds
        self._counted_until = now
        rest = max(busy, 0.0) * (1.0 / self._settings.machine_share - 1.0)
        self._rests_until = max(self._rests_until, now) + rest

    async def _fail(self, job: VerificationJob, error: AttemptError) -> None:
        log.warning("verification of %s failed: %s", job.request_id, error)
        now = self._clock()
        await self._queue.give_back(job, str(error), error.cost_usd, now + self._settings.retry_seconds, now)

    async def _work_on(self, job: VerificationJob, bound_usd: float, waited: Waited) -> None:
        seconds = self._settings.lease_seconds
        try:
            # Stop at the end of the lease: another replica may take over then, and a starved answer must not block us.
            async with asyncio.timeout(seconds):
                rulings = await self._verifier.verify(job, waited)
            row = await self._row(job, rulings)
        except AttemptError as error:
            await self._fail(job, error)
        except TimeoutError:
            await self._fail(job, AttemptError(f"took longer than {seconds:.0f} s", bound_usd))
        except asyncio.CancelledError:
            # The cost of the aborted answer is unknown, but at most the reservation.
            now = self._clock()
            await asyncio.shield(self._queue.give_back(job, "the monitor was stopped", bound_usd, now, now))
            raise
        else:
            await self._queue.finish(job, rulings, row, self._clock())
            for ruling in rulings:
                if ruling.opinions_usd is not None:
                    self.second_opinions = self.second_opinions.with_one(
                        uncertain=not ruling.teaches, cost_usd=ruling.opinions_usd
                    )
            if any(ruling.teaches for ruling in rulings):
                await self._learned()

    async def _row(self, job: VerificationJob, rulings: Sequence[Ruling]) -> Mapping[str, Any] | None:
        """Return the training row; None without one."""
        if self._encode is None or not any(ruling.teaches for ruling in rulings):
            return None
        try:
            encoded = await self._encode(job.messages)
        except Exception as error:
            raise AttemptError(f"the encoder failed: {error}", sum(ruling.cost_usd for ruling in rulings)) from error
        return training_row(job, rulings, encoded, len(self._tiers), self._clock(), self._terms.fingerprints)
