"""The monitor: verify a sample of the cheaper tiers' answers off the hot path, and report their quality."""

import asyncio
import logging
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache

import msgspec
from sqlalchemy.ext.asyncio import AsyncEngine

from quality.estimates.verified_sample import UpgradeRate, UpgradeSettings, acceptance, recent_verdicts, upgrade_rate
from quality.judges.panel import Panel
from quality.judges.pauses import JudgePauses
from quality.monitor.detectors import ShiftAlarm
from quality.monitor.status import CalibrationDrift, InputWatch, MonitorStatus, calibration_drift
from quality.monitor.watches import ShareAlarm, ShareWatch, ShiftWatch
from quality.monitor.worker import FailedCall, MonitorSettings, Offer, Offers, ToCompare, Worker, WorkLoop, compare_none
from quality.records.record import Record
from quality.records.redaction import RedactText
from quality.verification.comparison import VerifiedComparison
from quality.verification.families import STEADY, Families
from quality.verification.job import Depth, Exchange, redacted_exchange
from quality.verification.judging import prompt_text
from quality.verification.queue import Own, VerificationQueue
from quality.verification.sampling import (
    Draw,
    Purpose,
    Reason,
    SamplingSettings,
    Spending,
    attention,
    draw,
    is_eligible,
    purpose_of,
    refusal,
    would_differ,
)
from quality.verification.tier_terms import TierTerms
from quality.verification.training_rows import Encode
from quality.verification.verifier import Verifier
from tiers.tier import Tier

log = logging.getLogger(__name__)

# So many requests say how many come in a second.
_PACED_AFTER = 100
_ATTENTION_WINDOW = 100
_MOST_KEYS = 4096
# Why drawn answers are not verified, where their records do not say it themselves.
_STORED: tuple[Reason, ...] = ("unable", "too large", "not kept", "no judge")

OnAlarm = Callable[[ShiftAlarm | ShareAlarm], Awaitable[None]]


class AnswerMonitor:
    """Samples finished requests, verifies them with the strongest tier as idle work, and stores what it learns.

    The request path calls only `offer`; the rest happens in background tasks that keep their state in the database and
    continue after a restart. `on_alarm` is awaited for each alarm of the rule that the settings choose.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        tiers: Sequence[Tier],
        settings: MonitorSettings,
        *,
        terms: TierTerms,
        panel: Panel,
        encode: Encode | None = None,
        on_alarm: OnAlarm | None = None,
        redact: RedactText | None = None,
        shadow_rate: Callable[[], float] | None = None,
        on_no_judge: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`shadow_rate`: that of the sampling now, if it changes while serving. `on_no_judge`: called if no judge can
        label a draw."""
        self.settings = settings
        self._shadow_rate = shadow_rate
        self._engine = engine
        self._tiers = sorted(tiers, key=lambda tier: tier.number)
        self._verifier = Verifier(
            self._tiers,
            panel,
            terms,
            max_tokens=settings.max_tokens,
            redact=redact,
            opinions=settings.second_opinions,
            pauses=JudgePauses(clock),
        )
        self._redact, self._on_alarm, self._on_no_judge, self._clock = redact, on_alarm, on_no_judge, clock
        self._queue = VerificationQueue(
            engine, settings.sampling, lease_seconds=settings.lease_seconds, max_attempts=settings.max_attempts
        )
        self.worker = Worker(
            self._queue,
            self._verifier,
            self._tiers,
            settings,
            encode=encode,
            terms=terms,
            learned=self._look_for_shifts,
            clock=clock,
        )
        # Drawn, without their texts; the first open answers are drawn while the judge of such answers is being tested.
        self._held: deque[tuple[Record, Draw]] = deque(maxlen=settings.max_held)
        self._offers = Offers(settings.max_offered)
        self.not_sampled: Counter[Reason] = Counter()
        # Loops of their own, so that a verification that takes minutes delays no offer, and few others.
        self._intake = WorkLoop("monitor intake", self._take_offer, settings.poll_seconds)
        # The further ones look less often by themselves, since each look is a transaction.
        self._work = [
            WorkLoop(f"monitor worker {number}", self.worker.verify_one, settings.poll_seconds * number)
            for number in range(1, settings.parallel + 1)
        ]
        self._spending: Spending | None = None
        self._spent_at = 0.0
        # By key, with the time when it was read.
        self._own: OrderedDict[str, tuple[float, Own]] = OrderedDict()
        self._inputs = InputWatch(engine)
        self._watch = ShiftWatch(engine, settings.shift)
        self._shares = ShareWatch(engine, settings.upgrade) if settings.trigger == "share" else None
        self._attention, self._shadow_share = 1.0, 0.0
        # The rate of a cold start at few requests, and now.
        self._cold_start_rate = self._paced = settings.sampling.cold_start_rate
        # The most of the requests that may be drawn now because little is known of such prompts.
        self._pace = 1.0
        self._families = Families(settings.sampling.first_probes, clock)
        self._counted_since, self._counted = clock(), 0
        self._offered = self._sampled = self._dropped = self._no_judge = 0

    @property
    def panel(self) -> Panel:
        """The current judges; a running verification ends with the judge that it has reached."""
        return self._verifier.panel

    @panel.setter
    def panel(self, panel: Panel) -> None:
        self._verifier.panel = panel
        self._intake.nudge()

    def sample_by(self, sampling: SamplingSettings) -> None:
        """Draw and pay by `sampling` from now on, as another catalogue requires."""
        self.settings = msgspec.structs.replace(self.settings, sampling=sampling)
        self._queue.sampling, self._families.first = sampling, sampling.first_probes
        self._cold_start_rate = self._paced = sampling.cold_start_rate

    async def start(self) -> None:
        """Start verifying, or continue. Idempotent."""
        try:
            await self._families.load(self._engine)
        except Exception:
            log.exception("families of requests are counted from the start, because the database is away")
        await self._intake.start()
        for loop in self._work:
            await loop.start()

    async def close(self) -> None:
        """Stop at once; undecided offers and the running verification return to the queue. Idempotent."""
        for loop in self._work:
            await loop.close()
        await self._intake.close()
        try:
            while await self._take_offer():
                pass
        except Exception:
            log.exception("%d offers are lost, because the database is away", len(self._offers))
            self._offers.clear()

    def offer(self, record: Record, to_compare: ToCompare = compare_none, turn: Exchange | None = None) -> None:
        """Consider `record` for verification; takes microseconds, does no I/O, never fails (SPEC QM-01). `to_compare`
        is called if it is drawn. `turn`: its tools and attachments, if it has any."""
        self._offered += 1
        self._pace_cold_start()
        self._shadow_share += (would_differ(record) - self._shadow_share) / _ATTENTION_WINDOW
        refused, sampling = refusal(record, has_turn=turn is not None), self._sampling()
        if refused is None and sampling.first_probes:
            sampling = self._at_family(record, turn, sampling)
        # Check the ceilings first: the affordable rates are at most as high, so no possible draw is lost.
        if refused is None and not is_eligible(record, sampling):
            refused = "not drawn"
        if refused is not None:
            self.not_sampled[refused] += 1
        elif self._offers.add(Offer(record, to_compare, turn, sampling)):
            self._intake.nudge()
        else:
            self._dropped += 1

    def refuse(self, reason: Reason) -> None:
        """Count a finished request that nothing could be compared with."""
        self._offered += 1
        self.not_sampled[reason] += 1

    def calls_failed(self, key_id: str | None, call_ids: Sequence[str]) -> None:
        """Take note of calls of a key's earlier answers that failed; as quick as `offer`."""
        self._offers.calls_failed(key_id, call_ids)
        self._intake.nudge()

    @property
    def judged_tiers(self) -> list[int]:
        """The tiers below the strongest, whose answers are compared with its answers."""
        return [tier.number for tier in self._tiers[:-1]]

    async def drain(self) -> None:
        """Wait until every offer is decided and every verification that is due is done."""
        await self._intake.drain()
        for loop in self._work:
            await loop.drain()

    async def upgrade_rate(self, tier: int | None = None, last: int | None = None) -> UpgradeRate:
        """Return the share of the last labelled answers (of `tier`, or all) worse than the strongest tier's."""
        upgrade = self.settings.upgrade
        if last is not None:
            upgrade = UpgradeSettings(
                window=last, threshold=upgrade.threshold, min_sample=min(upgrade.min_sample, last)
            )
        return upgrade_rate(await recent_verdicts(self._engine, tier, upgrade.window), upgrade, tier)

    async def status(self) -> MonitorStatus:
        """Return a snapshot for the API and the dashboard."""
        # Four at a time: more threads that read SQLite would only contend for the interpreter.
        (spending, depth), (rates, drift), accepted, inputs = await asyncio.gather(
            self._money(), self._by_tier(), acceptance(self._engine), self._inputs.look()
        )
        sampling = self._sampling()
        return MonitorStatus(
            queue=depth,
            offered=self._offered,
            sampled=self._sampled,
            dropped=self._dropped,
            no_judge=self._no_judge,
            held=len(self._held),
            not_sampled=dict(self.not_sampled),
            second_opinions=self.worker.second_opinions,
            spending=spending,
            budget_usd=min(sampling.budget(spending) + sampling.cold_start_usd, sampling.most_usd),
            upgrade_rates=rates,
            evidence_of_shift=self._watch.evidence(),
            acceptance=accepted.by_tier,
            acceptance_by_kind=accepted.by_kind,
            input_drift=inputs,
            calibration_drift=drift,
            calibrations=list(self.panel.calibrations.values()),
        )

    async def _money(self) -> tuple[Spending, Depth]:
        return await self._recent_spending(), await self._queue.depth()

    async def _by_tier(self) -> tuple[list[UpgradeRate], list[CalibrationDrift]]:
        rates = [await self.upgrade_rate(tier) for tier in (None, *self.judged_tiers)]
        return rates, await calibration_drift(self._engine, self.judged_tiers)

    async def _take_offer(self) -> bool:
        if self._held and self.panel.labels_open_answers:
            return await self._take_held()
        if (offered := self._offers.first()) is None:
            return False
        if isinstance(offered, FailedCall):
            await self._queue.call_failed(offered.request_id)
        else:
            await self._decide(offered)
        # Remove it only now, so that a failing database loses no offer.
        self._offers.done()
        return True

    async def _decide(self, offered: Offer) -> None:
        record, turn, sampling = offered.record, offered.turn, offered.sampling or self._sampling()
        # Offers are drawn independently of their content, so their mean is that of all answers.
        self._attention += (attention(record, sampling.least_attention) - self._attention) / _ATTENTION_WINDOW
        spending = msgspec.structs.replace(
            await self._recent_spending(), attention=self._attention, shadow_share=self._shadow_share
        )
        if self._barred(record, "probe", turn) is not None:
            sampling = msgspec.structs.replace(sampling, probe_rate=0.0)
        own = await self._recent_own(record.key_id)
        decided = draw(
            record,
            spending,
            self._verifier.likely_usd(record, purpose_of(record, sampling), turn),
            sampling,
            self._verifier.likely_usd(record, "probe", turn),
            own=own.spending,
            has_turn=turn is not None,
        )
        reason = decided.reason
        if decided.sampled:
            self._families.drawn(record)
        if decided.sampled and (barred := self._barred(record, decided.purpose, turn)) is not None:
            reason = barred
        elif decided.sampled and turn is not None and self._redact is not None:
            turn = await redacted_exchange(turn, self._redact)
            reason = "not kept" if turn is None else reason
        if reason == "drawn" and turn is not None and turn.is_too_large:
            reason = "too large"
        if reason == "drawn" and not self._may_be_labelled(self.panel, record, turn):
            # A reference would be paid for, and no label come of it.
            reason = "no judge"
            self._hold(record, decided, turn)
        if reason == "drawn" and not self._may_be_labelled(self._verifier.panel_for(own.tenant), record, turn):
            reason = "judges pause"
        if reason == "drawn":
            # A shadow's reference is the given answer, not the strongest tier's.
            compared = None if decided.purpose == "shadow" else offered.to_compare(decided.purpose)
            await self._add(record, decided, compared, turn)
        elif not (reason == "no judge" and turn is None):
            # What waits for a judge is not given up.
            if reason in _STORED:
                await self._queue.skip(record, decided, reason, self._clock())
            self.not_sampled[reason] += 1

    def _hold(self, record: Record, decided: Draw, turn: Exchange | None) -> None:
        """Let a drawn answer wait until a model judges what no rule decides; a turn is too large to wait."""
        self._on_no_judge()
        if turn is not None:
            self._no_judge += 1
            return
        self._no_judge += len(self._held) == self.settings.max_held
        self._held.append((msgspec.structs.replace(record, messages=None, answer=None, reasoning=None), decided))

    async def _take_held(self) -> bool:
        record, decided = self._held[0]
        if record.created_at > self._clock() - self.settings.expire_seconds:
            # What no rule judges has no final answer to compare.
            await self._add(record, decided, None)
        else:
            self._no_judge += 1
        self._held.popleft()
        return True

    async def _add(
        self, record: Record, decided: Draw, compared: VerifiedComparison | None, turn: Exchange | None = None
    ) -> None:
        now = self._clock()
        # What the caller's next request says of its calls is worth waiting for.
        waits = turn is not None and turn.calls and decided.purpose != "shadow"
        not_before = now + self.settings.result_seconds if waits else None
        judged = self._judged(record, decided)
        if await self._queue.add(record, decided, now, judged, compared, turn, not_before):
            self._sampled += 1
            for loop in self._work:
                loop.nudge()

    def _barred(self, record: Record, purpose: Purpose, turn: Exchange | None) -> Reason | None:
        """Return why a request may not be verified for this purpose: a tier to be asked may not see or take it."""
        would_be = record.decision.would_be
        if self._verifier.asked.hidden(purpose, record.tier, record.consent, would_be) is not None:
            return "no consent"
        if turn is not None and self._verifier.asked.unable(purpose, record.tier, turn.needs, would_be) is not None:
            return "unable"
        return None

    def _may_be_labelled(self, panel: Panel, record: Record, turn: Exchange | None, *, by_rule: bool = False) -> bool:
        """Whether a trusted judge may decide on such an answer; `by_rule`: one that asks no model."""
        if turn is not None and turn.is_about_calls:
            return panel.labels_calls
        try:
            asked = prompt_text(record.messages or [])
        except (KeyError, IndexError):
            return not by_rule  # the verification says what is wrong with its messages
        may_label = panel.may_label_by_rule if by_rule else panel.may_label
        return may_label(asked, record.response_format)

    def _at_family(self, record: Record, turn: Exchange | None, sampling: SamplingSettings) -> SamplingSettings:
        """Return `sampling` with the least rates of the request's family: the few first ones at once, the others as
        paced as a cold start."""
        phase = self._families.phase(record, lambda: self._may_be_labelled(self.panel, record, turn, by_rule=True))
        if phase is STEADY:
            return sampling
        return _at_rates(sampling, phase.probe, min(phase.sample, self._pace))

    def _judged(self, record: Record, decided: Draw) -> tuple[int, str] | None:
        """Return the tier that a shadow judges and its model; None for other verifications."""
        would_be = record.decision.would_be
        if decided.purpose != "shadow" or would_be is None:
            return None
        return would_be, self._tiers[would_be - 1].model if would_be <= len(self._tiers) else ""

    def _sampling(self) -> SamplingSettings:
        """Return the sampling at the current rates of shadows and of a cold start."""
        sampling = self.settings.sampling
        rate = sampling.shadow_rate if self._shadow_rate is None else self._shadow_rate()
        if rate != sampling.shadow_rate or self._paced != sampling.cold_start_rate:
            sampling = msgspec.structs.replace(sampling, shadow_rate=rate, cold_start_rate=self._paced)
            self.settings = msgspec.structs.replace(self.settings, sampling=sampling)
        return sampling

    def _pace_cold_start(self) -> None:
        """Let the rate of a cold start follow the requests of the last second, or the last hundred if they are sooner;
        known before a request ends, it is the probability of its draw."""
        self._counted += 1
        if (seconds := (now := self._clock()) - self._counted_since) >= 1.0 or self._counted >= _PACED_AFTER:
            self._pace = self.settings.cold_start_per_second * seconds / self._counted
            self._paced, self._counted_since, self._counted = min(self._cold_start_rate, self._pace), now, 0

    async def _recent_spending(self) -> Spending:
        """Return cached spending: a day's sum is too slow for every offer, and the claim checks the budget exactly."""
        now = self._clock()
        if self._spending is None or now - self._spent_at >= self.settings.poll_seconds:
            self._spending, self._spent_at = await self._queue.spending(now), now
        return self._spending

    async def _recent_own(self, key_id: str | None) -> Own:
        """Return the cached spending of a key's tenant, as `_recent_spending`."""
        now = self._clock()
        cached = self._own.pop(key_id or "", None)
        if cached is None or now - cached[0] >= self.settings.poll_seconds:
            cached = now, await self._queue.own(key_id, now)
        self._own[key_id or ""] = cached
        if len(self._own) > _MOST_KEYS:
            self._own.popitem(last=False)
        return cached[1]

    async def _look_for_shifts(self) -> None:
        # Alarms of the sequential test are stored under either rule: they date the changes of tiers.
        for alarm in await self._watch.catch_up():
            log.warning("%s: %s", alarm.stream, alarm.reason)
            if self._shares is None:
                await self._pass_on(alarm)
        if self._shares is not None and (above := await self._shares.catch_up()) is not None:
            log.warning("%s: %s", above.stream, above.reason)
            await self._pass_on(above)

    async def _pass_on(self, alarm: ShiftAlarm | ShareAlarm) -> None:
        if self._on_alarm is not None:
            await self._on_alarm(alarm)


# Nearly all requests have the same few rates, and settings are checked when they are made.
@lru_cache(maxsize=16)
def _at_rates(sampling: SamplingSettings, probe: float, sample: float) -> SamplingSettings:
    return msgspec.structs.replace(sampling, least_probe_rate=probe, least_rate=sample)
