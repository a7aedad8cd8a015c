"""The monitor's work: claim what waits, verify it within the budget, and store what it teaches."""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from inference_core.tokenization.tokenizer import LONG_TEXT
from quality.monitor.settings import MonitorSettings
from quality.verification.job import Ruling, VerificationJob
from quality.verification.judging import OpinionsGiven
from quality.verification.queue import VerificationQueue
from quality.verification.training_rows import Encode, chances, training_row
from quality.verification.verifier import AttemptError, Verifier, Waited
from tiers.tier import Tier

log = logging.getLogger(__name__)

# So many jobs that cannot run now are passed over in one look at the queue.
_MOST_PASSED = 32


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
        fingerprints: Callable[[], Sequence[str]],
        learned: Callable[[], Awaitable[None]],
        clock: Callable[[], float],
    ) -> None:
        self.second_opinions = OpinionsGiven()
        # Until when local models rest, and until when the time that they were busy has been counted.
        self._rests_until = self._counted_until = -math.inf
        self._queue, self._verifier, self._tiers, self._settings = queue, verifier, tiers, settings
        self._encode, self._fingerprints, self._learned, self._clock = encode, fingerprints, learned, clock

    async def verify_one(self) -> bool:
        """Verify one job; return whether something was done, so that there may be more to do."""
        now = self._clock()
        await self._queue.sweep(now, now - self._settings.expire_seconds)
        if not self._tiers[-1].load().healthy:
            return False
        # Neither a job that the budget does not cover nor one whose tier is busy holds up those behind it.
        passed: list[int] = []
        while len(passed) < _MOST_PASSED and (job := await self._queue.next_job(now, passed)) is not None:
            if not self._must_wait(job):
                if await self._claim_and_verify(job, now):
                    return True
                # A budget that does not cover the comparison as well may cover the verification.
                if job.compared is not None and await self._claim_and_verify(
                    msgspec.structs.replace(job, compared=None), now
                ):
                    return True
            passed.append(job.verification_id)
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

    async def _claim_and_verify(self, job: VerificationJob, now: float) -> bool:
        """Return False if the budget does not cover it; True also if another replica took it."""
        try:
            # Prompts are counted for it: megabytes on a thread.
            long = sum(len(message["content"]) for message in job.messages) > LONG_TEXT
            bound = await asyncio.to_thread(self._verifier.bound_usd, job) if long else self._verifier.bound_usd(job)
        except AttemptError as error:
            # Claim it, so that the failure counts and a poisoned job cannot block the queue.
            if await self._queue.claim(job, 0.0, now) == "claimed":
                await self._fail(job, error)
            return True
        claimed = await self._queue.claim(job, bound, now, min(bound, self._verifier.expected_usd(job)))
        if claimed == "claimed":
            started_at, waited = self._clock(), Waited()
            await self._work_on(job, bound, waited)
            if self._is_local(job):
                self._rest(started_at, waited.seconds)
        return claimed != "no budget"

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
        drawn = self._chances(job, rulings)
        return training_row(job, rulings, encoded, len(self._tiers), self._clock(), self._fingerprints(), drawn)

    def _chances(self, job: VerificationJob, rulings: Sequence[Ruling]) -> list[float]:
        """Return by tier the chance with which the label of its answer was drawn."""
        is_probe, asked = job.purpose == "probe", self._verifier.asked
        sample = msgspec.structs.replace(job, purpose=self._settings.sampling.purpose(job.served_tier))
        judged = [ruling.tier for ruling in rulings]
        return chances(job.probability, is_probe, judged, asked.judged(sample) if is_probe else [], len(self._tiers))
