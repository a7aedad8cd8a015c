"""The quality loop of a process: the monitor, the test of the judge, retraining with its triggers, and the rollout."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial

import msgspec
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.registry.artefact import default_artefact
from classifier.registry.registry import ArtefactRegistry
from inference_core.extras import MissingExtraError
from inference_core.io.background_tasks import once
from quality.estimates.verified_sample import UpgradeRate
from quality.judges.calibration import newest_verdict
from quality.judges.pairwise import PairwiseJudge, judging_fingerprint
from quality.judges.panel import Panel, standing_panel
from quality.judges.self_calibration import JudgeState, SelfCalibration, judge_state
from quality.monitor.answer_monitor import AnswerMonitor
from quality.monitor.detectors import ShiftAlarm
from quality.monitor.watches import ShareAlarm
from quality.monitor.worker import MonitorSettings, WorkLoop
from quality.records.redaction import RedactText
from quality.retraining.retrain import RetrainResult, RetrainSettings, Trigger, retrain
from quality.retraining.runs import RetrainingStatus, read_standing
from quality.retraining.schedule import RetrainJob
from quality.retraining.training_process import OnProgress, Train, run_training_process
from quality.rollout.experiments import Experiments
from quality.rollout.rollout import Rollouts
from quality.store.queries import record_audit
from quality.verification.tier_terms import CatalogTerms
from quality.verification.training_rows import Encode, text_embedder
from tiers.catalog.catalog import Catalog, CatalogInUse
from tiers.tier import Tier, Usage

log = logging.getLogger(__name__)

_AGAIN_SECONDS = 86_400.0

ROLLOUT_POLL_SECONDS = 10.0
JUDGE_POLL_SECONDS = 10.0


class LoopSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a deployment says of its loop. What depends on the catalogue or a live knob is asked for when needed."""

    registry: ArtefactRegistry
    retrain_cron: str
    """When to retrain; empty: only after alarms and orders."""
    monitor: Callable[[Catalog], MonitorSettings]
    retraining: Callable[[Catalog], RetrainSettings]
    judging_usd: Callable[[Catalog], float]
    """The most that the test of the strongest tier as a judge may cost, in US dollars; 0: it is not tested."""


async def run_retraining(
    registry: ArtefactRegistry,
    settings: RetrainSettings,
    engine: AsyncEngine,
    trigger: Trigger,
    on_progress: OnProgress = lambda step, share: None,
    train: Train = run_training_process,
    due: datetime | None = None,
) -> RetrainResult:
    """Run one retraining, in a niced subprocess or by `train`; the packaged artefact is the first incumbent of an empty
    registry. `due`: the time of a scheduled run, which is made once over all processes.

    An earlier version on trial is evaluated first, so that a cron job alone can finish its trial.
    """
    await asyncio.to_thread(registry.seed, default_artefact())
    await Rollouts(engine, registry).advance()
    result = await retrain(engine, registry, settings, trigger=trigger, due=due, on_progress=on_progress, train=train)
    log.info("retraining (%s): %s, because %s", trigger, result.outcome, result.reason)
    return result


class QualityLoop:
    """AnswerMonitor and retraining job of one process."""

    def __init__(
        self,
        settings: LoopSettings,
        catalog: CatalogInUse,
        engine: AsyncEngine,
        tiers: Mapping[int, Tier],
        encode: Encode | None,
        redact: RedactText | None = None,
        shadow_share: Callable[[], float] | None = None,
    ) -> None:
        """`shadow_share`: the knob's value now; None is the default's."""
        self._shadow_share = shadow_share
        self._settings, self.catalog, self._engine = settings, catalog, engine
        self._terms = CatalogTerms(catalog)
        self._tiers, self._encode, self._redact = tiers, encode, redact
        self._retraining: asyncio.Task[None] | None = None
        self._later: asyncio.TimerHandle | None = None
        self.monitor: AnswerMonitor | None = None
        # It looks at other replicas' results, too.
        self._judging = WorkLoop("test of the judge", self._test_judge, JUDGE_POLL_SECONDS)
        self._judge_wanted = False
        self.judge, self._newest_verdict = JudgeState(), 0.0
        self.retrained = RetrainingStatus()
        self.job = RetrainJob(self._retrain_owed, self.read_standing, settings.retrain_cron)
        self._rollouts = Rollouts(engine, settings.registry)
        self._experiments = Experiments(engine, settings.registry)
        self._rollout = WorkLoop("rollout", self._advance, ROLLOUT_POLL_SECONDS)
        catalog.follow(self._follow_catalogue)
        catalog.renew_with(self.renew)

    async def start(self) -> None:
        """Set up the judges, start verifying, schedule retraining. Continues where an earlier, failed call stopped."""
        if self.monitor is None:
            self.monitor = AnswerMonitor(
                self._engine,
                list(self._tiers.values()),
                self._settings.monitor(self.catalog.current),
                terms=self._terms,
                panel=await self._panel(),
                encode=self._encode,
                on_alarm=self.on_alarm,
                redact=self._redact,
                shadow_rate=self._shadow_share,
                on_no_judge=self._want_judge,
            )
        await self.monitor.start()
        await self._judging.start()
        await self.job.start()
        await self._rollout.start()

    async def _panel(self) -> Panel:
        strongest = self._tiers[max(self._tiers)]
        embed = None if self._encode is None else text_embedder(self._encode)
        return await standing_panel(
            self._engine,
            PairwiseJudge(strongest, self._judging_fingerprint),
            embed,
            self.catalog.current.fingerprint,
            self._judging_fingerprint,
        )

    @property
    def _judging_fingerprint(self) -> str:
        return judging_fingerprint(self._terms.fingerprints[-1])

    def _want_judge(self) -> None:
        """An open answer was drawn that no judge can label: the strongest tier is tested as a judge, once."""
        if not self._judge_wanted:
            self._judge_wanted = True
            self._judging.nudge()

    async def _test_judge(self) -> bool:
        """Make a round of the test, while no request waits; use its result, also that of another replica, and what
        verdicts in use say of the judge since."""
        if self.monitor is None:
            return False
        labels, before, more = self.monitor.panel.labels_open_answers, self.judge, False
        newest = await newest_verdict(self._engine, self._judging_fingerprint)
        if labels and before.state == "trusted" and newest == self._newest_verdict:
            return False
        self.judge, self._newest_verdict = await self._judge_state(), newest
        may_be_asked = not self._tiers[max(self._tiers)].asks_credential and self.judge.may_be_tested
        if self._judge_wanted and may_be_asked and self._settings.judging_usd(self.catalog.current) and self._is_idle():
            more = await self._self_calibration().step()
            self.judge = await self._judge_state()
        if labels is not (self.judge.state == "trusted") or (labels and self.judge.calibration != before.calibration):
            await self.renew()
        return more

    async def _judge_state(self) -> JudgeState:
        cap_usd = self._settings.judging_usd(self.catalog.current)
        return await judge_state(self._engine, self.catalog.current.fingerprint, self._judging_fingerprint, cap_usd)

    def _is_idle(self) -> bool:
        loads = [self._tiers[number].load() for number in sorted(self._tiers)]
        return loads[-1].healthy and not any(load.waiting > 0 for load in loads)

    def _self_calibration(self) -> SelfCalibration:
        strongest = self._tiers[max(self._tiers)]

        def bound(judge: PairwiseJudge, *texts: str) -> float:
            return sum(
                self._terms.price_usd(
                    strongest.number,
                    Usage(prompt_tokens=strongest.count_prompt_tokens(request), completion_tokens=judge.max_tokens),
                )
                for request in judge.requests(*texts)
            )

        return SelfCalibration(
            self._engine,
            PairwiseJudge(strongest),
            self._judging_fingerprint,
            price=partial(self._terms.price_usd, strongest.number),
            bound=bound,
            cap_usd=self._settings.judging_usd(self.catalog.current),
        )

    def _follow_catalogue(self, catalog: Catalog) -> None:
        """Judge and retrain for this catalogue, which is in use now; `renew` sets up its judges."""
        self.judge, self._judge_wanted = JudgeState(), False
        if self.monitor is not None:
            self.monitor.sample_by(self._settings.monitor(catalog).sampling)

    async def renew(self) -> None:
        """Set up the judges again, as another catalogue requires: a judge's accuracy is measured per catalogue.

        While the database is down, the accuracy of the strongest tier as a judge is unknown, and it does not judge.
        """
        if self.monitor is None:
            return
        try:
            self.monitor.panel = await self._panel()
        except (SQLAlchemyError, OSError) as error:
            log.warning("judges cannot be read (%s); no tier judges until the next reload", type(error).__name__)
            before = self.monitor.panel
            asking_none = [judge for judge in before.judges if not isinstance(judge, PairwiseJudge)]
            self.monitor.panel = Panel(asking_none, before.calibrations)

    async def close(self) -> None:
        """Stop everything; the next process to start resumes a running retraining."""
        await self._rollout.close()
        await self._judging.close()
        await self.job.close()
        if self._later is not None:
            self._later.cancel()
        if self._retraining is not None:
            self._retraining.cancel()
            await asyncio.gather(self._retraining, return_exceptions=True)
        if self.monitor is not None:
            await self.monitor.close()

    async def upgrade_rate(self) -> UpgradeRate | None:
        """Share of the last verified answers that needed an upgrade; None without a monitor or a database."""
        try:
            return None if self.monitor is None else await self.monitor.upgrade_rate()
        except (SQLAlchemyError, OSError) as error:
            log.warning("the upgrade rate is unknown: %s", error)
            return None

    async def on_alarm(self, alarm: ShiftAlarm | ShareAlarm) -> None:
        """Retrain in the background, unless a retraining is running."""
        self._begin_retraining("drift")

    async def retrain_now(self, actor: str, reason: str) -> bool:
        """Record who wants it and why, and retrain in the background; False if a retraining is running."""
        await record_audit(
            self._engine, at=time.time(), actor=actor, action="retrain.ordered", subject="classifier", reason=reason
        )
        return self._begin_retraining("button")

    def _begin_retraining(self, trigger: Trigger) -> bool:
        if self._retraining is not None and not self._retraining.done():
            return False
        self._retraining = once(self._retrain(trigger), "retraining")
        return True

    async def retraining_ended(self) -> None:
        """Wait for the retraining started by the last alarm or order."""
        if self._retraining is not None:
            await asyncio.shield(self._retraining)

    async def _retrain(self, trigger: Trigger) -> None:
        try:
            result = await self._run(trigger)
        except MissingExtraError:
            return  # the run's row and its line in the log say what to install
        except Exception:
            # The run has its own row with the reason, by which the job makes that of an alarm again; serving goes on.
            log.exception("the retraining (%s) failed", trigger)
            return
        self._repeat_refused(trigger, result)

    async def _run(self, trigger: Trigger, due: datetime | None = None) -> RetrainResult:
        ordered = self._settings.retraining(self.catalog.current)
        return await run_retraining(self._settings.registry, ordered, self._engine, trigger, due=due)

    async def _retrain_owed(self, due: datetime, trigger: Trigger) -> RetrainResult:
        result = await self._run(trigger, due)
        self._repeat_refused(trigger, result)
        return result

    def _repeat_refused(self, trigger: Trigger, result: RetrainResult) -> None:
        if trigger == "drift" and result.outcome == "refused":
            # The shift persists, and its repair was not proven: retry with another day's evidence.
            self._later = asyncio.get_running_loop().call_later(_AGAIN_SECONDS, self._begin_retraining, trigger)

    async def read_standing(self) -> RetrainingStatus:
        self.retrained = await read_standing(self._engine)
        return self.retrained

    def days_without_retraining(self) -> float | None:
        """Days since the last successful retraining, before the first one since the first record; None without either,
        and where this server schedules none."""
        since = self.retrained.known_until
        return None if since is None or not self._settings.retrain_cron.strip() else (time.time() - since) / 86_400.0

    def last_retrainings(self) -> str | None:
        """What went wrong last, for alerts and `health_of`: failures since the last success, and the last refusal."""
        status, said = self.retrained, []
        if status.failures:
            said.append(f"{status.failures} failed since the last success")
        if status.refused is not None:
            said.append(f"last refused because {status.refused}")
        return "; ".join(said) or None

    async def _advance(self) -> bool:
        """Return whether there may be more to do at once: a version just promoted has its watch to start."""
        if (ended := await self._experiments.advance()) is not None:
            log.warning("experiment: %s", ended)
        said = await self._rollouts.advance()
        if said is None or said.act == "go on":
            return False
        log.warning("rollout: %s, because %s", said.act, said.reason)
        return True
