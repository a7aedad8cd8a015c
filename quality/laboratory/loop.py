"""The closed loop of a simulated deployment: routes, samples, verifies; alarms and the calendar retrain the router.

It knows prompts as vectors, its own predictions and the verdicts it pays for; of the truth it knows nothing else.
"""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from classifier.outcome_model import OutcomeModel
from classifier.recent_memory import Reach, RecentMemory, RecentOutcomes
from classifier.training.encoded_rows import EncodedRows
from quality.estimates import UpgradeSettings, upgrade_rate
from quality.laboratory.books import Books
from quality.laboratory.experience import Experience
from quality.laboratory.router import Predictions, Rule
from quality.laboratory.traffic import Batch
from quality.laboratory.verdicts import Judge, Verdict, verification_cost
from quality.promotion import Judgement
from quality.promotion_account import PromotionAccount
from quality.sampling import Purpose, SamplingSettings, admits, affordable, doubt
from quality.shift_detector import ShiftDetector, ShiftSettings
from quality.shift_watch import VIEWS, changed_tier, judged_worse, streams_of
from quality.training import NewRows

Float = npt.NDArray[np.float32]
Trigger = Literal["drift", "cron"]
Train = Callable[[NewRows, OutcomeModel, Rule], tuple[OutcomeModel, Judgement] | None]
"""A candidate from rows, judged against the incumbent under the rule in force."""


class LoopSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What of the loop is at work, with the knobs of its parts. `retrain_every`: requests between two calendar runs."""

    sampling: SamplingSettings
    shift: ShiftSettings = ShiftSettings()
    upgrade: UpgradeSettings = UpgradeSettings()
    retraining: bool = True
    repair: bool = True
    repair_cost_share: float = 0.10
    retrain_every: int | None = None
    requests_per_day: int


class Alarm(msgspec.Struct, frozen=True):
    """The sequential test's alarm after `request` requests and `samples` verified answers."""

    request: int
    samples: int
    stream: str


class Retraining(msgspec.Struct, frozen=True):
    """A run of the retraining job and how it ended."""

    request: int
    trigger: Trigger
    promoted: bool
    reasons: list[str]


@dataclass
class Log:
    """What happened, in terms that the live system could have written down.

    `served` [days, prompts, tiers]: answers by day of the run; `verified`: the request number, row of the prompt and
    serving tier of each verification; `peak_share`: the largest share of the trailing day's serving cost that
    verification had; `fixed_rule`: requests after which the sources' rule alarmed.
    """

    served: npt.NDArray[np.int32]
    verified: list[tuple[int, int, int]] = field(default_factory=list)
    alarms: list[Alarm] = field(default_factory=list)
    fixed_rule: list[int] = field(default_factory=list)
    retrainings: list[Retraining] = field(default_factory=list)
    serving_cost: float = 0.0
    verification_cost: float = 0.0
    repair_cost: float = 0.0
    peak_share: float = 0.0
    purposes: Counter[str] = field(default_factory=Counter)


class ClosedLoop:
    """One deployment. `take` a batch at a time; `model` is the artefact in force."""

    def __init__(
        self,
        model: OutcomeModel,
        prompts: EncodedRows,
        rule: Rule,
        judge: Judge,
        train: Train,
        settings: LoopSettings,
        rng: np.random.Generator,
        *,
        batch: int,
        requests: int,
    ) -> None:
        self.model, self.rule = model, rule
        self._prompts, self._judge, self._train, self._settings, self._rng = prompts, judge, train, settings, rng
        self._experience = Experience(prompts)
        self._detector = ShiftDetector(settings.shift, VIEWS)
        self._recent: deque[bool] = deque(maxlen=settings.upgrade.window)
        self._books = Books(settings.requests_per_day // batch, len(rule.prices))
        days = -(-requests // settings.requests_per_day)
        self.log = Log(np.zeros((days, len(prompts), len(rule.prices)), np.int32))
        self._account = PromotionAccount()
        self._snapshot: RecentOutcomes | None = None
        self._tiers = self._repaired_tiers = np.zeros(len(prompts), np.intp)
        self._drift = False
        self._changed: dict[int, float] = {}
        self._trained_on = self._retrained_at = 0
        self._put_in_force(model)

    def take(self, batch: Batch) -> None:
        """Serve a batch, verify what is drawn of it, and retrain if that is due."""
        now = self._seconds(batch.start)
        tiers = self._repaired(now)[batch.rows]
        self._serve(batch, tiers, now)
        self._verify(batch, tiers)
        self.log.peak_share = max(self.log.peak_share, self._books.share)
        end, every = batch.start + len(batch.rows), self._settings.retrain_every
        # An alarm stands until a version was promoted; it is looked at again with another day's evidence.
        if self._drift and (not self._retrained_at or end - self._retrained_at >= self._settings.requests_per_day):
            self._retrain(end, "drift")
        elif every is not None and end % every == 0:
            self._retrain(end, "cron")

    def reprice(self, rule: Rule) -> None:
        """Route at other prices from now on."""
        self.rule = rule
        self._route()

    def tiers(self, prompts: EncodedRows, request: int) -> npt.NDArray[np.intp]:
        """The tiers that the router would give these prompts after `request` requests."""
        predictions = Predictions.of(self.model, prompts)
        if not self._repairs_now(self._seconds(request)):
            return predictions.tiers(self.rule)
        return self._recent_outcomes(predictions, prompts.embedding, self._seconds(request))

    def _seconds(self, request: int) -> float:
        return request * 86_400.0 / self._settings.requests_per_day

    def _repairs_now(self, now: float) -> bool:
        return self._settings.repair and self._account.admits(self._settings.repair_cost_share, now)

    def _repaired(self, now: float) -> npt.NDArray[np.intp]:
        """The tiers of all prompts, by the artefact and by what was verified since it was trained."""
        if not self._repairs_now(now):
            return self._tiers
        snapshot = self._memory.snapshot(now)
        if snapshot is not self._snapshot:
            self._snapshot = snapshot
            self._repaired_tiers = self._recent_outcomes(self._predictions, self._prompts.embedding, now)
        return self._repaired_tiers

    def _recent_outcomes(self, predictions: Predictions, embeddings: Float, now: float) -> npt.NDArray[np.intp]:
        """As `classifier.policy.decide`: recent outcomes may lift a prompt, and never move it down."""
        weaker = predictions.p_ok[:, :-1].astype(np.float32)
        adjusted = self._memory.adjust(embeddings, weaker, now).astype(np.float64)
        lifted = predictions.tiers(self.rule, np.hstack([adjusted, predictions.p_ok[:, -1:]]))
        tiers: npt.NDArray[np.intp] = np.maximum(lifted, predictions.tiers(self.rule))
        return tiers

    def _put_in_force(self, model: OutcomeModel) -> None:
        self.model = model
        self._predictions = Predictions.of(model, self._prompts)
        self._clusters = model.clusters.nearest(self._prompts.embedding)
        self._memory = RecentMemory(Reach.of(model.memory), model.manifest.tiers)
        self._route()

    def _route(self) -> None:
        self._tiers = self._repaired_tiers = self._predictions.tiers(self.rule)
        self._snapshot = None

    def _serve(self, batch: Batch, tiers: npt.NDArray[np.intp], now: float) -> None:
        served = np.bincount(tiers - 1, minlength=len(self.rule.prices))
        np.add.at(self.log.served[batch.start // self._settings.requests_per_day], (batch.rows, tiers - 1), 1)
        self._books.open_batch(served, self.rule.prices)
        prices = np.asarray(self.rule.prices)
        cost = float(served @ prices)
        extra = float((prices[tiers - 1] - prices[self._tiers[batch.rows] - 1]).sum())
        self._account.book(cost, extra, now)
        self.log.serving_cost += cost
        self.log.repair_cost += extra

    def _verify(self, batch: Batch, tiers: npt.NDArray[np.intp]) -> None:
        """Draw by the sampling rules, then verify one after the other while the budget admits it."""
        for place, purpose in self._drawn(batch, tiers):
            row, tier = int(batch.rows[place]), int(tiers[place])
            price = verification_cost(purpose, tier, self.rule.prices)
            if not admits(self._books.spending(), price, purpose, self._settings.sampling):
                continue
            verdict = self._judge.verify(row, purpose, tier, self.rule.prices)
            self._books.spend(purpose, verdict.cost)
            self.log.verification_cost += verdict.cost
            self.log.purposes[purpose] += 1
            self.log.verified.append((batch.start + place, row, tier))
            self._learn(batch.start + place, row, tier, verdict)

    def _drawn(self, batch: Batch, tiers: npt.NDArray[np.intp]) -> list[tuple[int, Purpose]]:
        """Places in the batch that are drawn, and what for, in the order of the requests."""
        sampling, spending = self._settings.sampling, self._books.spending()
        prices, strongest = self.rule.prices, len(self.rule.prices)
        p = self._predictions.p_ok[batch.rows, np.minimum(tiers, strongest - 1) - 1]
        attention = sampling.least_attention
        attention = attention + (1.0 - attention) * doubt(p, self._predictions.novelty[batch.rows])
        spending = msgspec.structs.replace(spending, attention=float(attention.mean()))
        affordable_probes = affordable(spending, sum(prices), "probe", sampling)
        probes = self._rng.random(len(tiers)) < sampling.probe_rate * affordable_probes
        share = affordable(spending, prices[-1], "sample", sampling)
        rates = np.array([sampling.rate(k) for k in range(1, strongest + 1)])[tiers - 1]
        samples = self._rng.random(len(tiers)) < rates * attention * share
        return [
            (int(place), "probe" if probes[place] else sampling.purpose(int(tiers[place])))
            for place in np.flatnonzero(probes | samples)
        ]

    def _learn(self, request: int, row: int, tier: int, verdict: Verdict) -> None:
        """Keep the row, and feed the verdict on the served answer to the test and to the sources' rule."""
        reliability = self._judge.reliability
        sure = 2 * reliability - 1
        self._experience.add(request, row, verdict, sure, self._rng.random())
        if self._settings.repair:
            self._memory.add(
                self._prompts.embedding[[row]],
                verdict.no_worse[None],
                self._predictions.p_ok[[row], :-1].astype(np.float32),
                np.array([sure], np.float32),
                [self._seconds(request)],
            )
        for judged in np.flatnonzero(~np.isnan(verdict.no_worse)) + 1:
            if judged == tier or verdict.purpose == "probe":
                self._watch(request, row, int(judged), bool(verdict.no_worse[judged - 1] < 0.5), served=judged == tier)
        if tier > len(verdict.no_worse) or np.isnan(verdict.no_worse[tier - 1]):
            return
        self._recent.appendleft(bool(verdict.no_worse[tier - 1] >= 0.5))
        if upgrade_rate(list(self._recent), self._settings.upgrade).alarm:
            self.log.fixed_rule.append(request)
            # A retraining answers the alarm, and the rule begins anew.
            self._recent.clear()

    def _watch(self, request: int, row: int, tier: int, worse: bool, *, served: bool) -> None:
        """As the live watch takes in a verdict."""
        predicted = judged_worse(1.0 - float(self._predictions.p_ok[row, tier - 1]), self._judge.reliability)
        novelty, cluster = float(self._predictions.novelty[row]), int(self._clusters[row])
        for stream in streams_of(tier, novelty, cluster, served=served):
            alarm = self._detector.observe(stream, worse, predicted, request)
            if alarm is None:
                continue
            self.log.alarms.append(Alarm(request, len(self.log.verified), stream))
            self._drift = self._settings.retraining
            if (changed := changed_tier(stream)) is not None:
                self._changed[changed] = max(alarm.since, self._changed.get(changed, 0.0))

    def _retrain(self, request: int, trigger: Trigger) -> None:
        self._retrained_at = request
        trained = None
        if len(self._experience):
            trained = self._train(self._experience.exported(self._trained_on, self._changed), self.model, self.rule)
        reasons = ["nothing to train on"] if trained is None else trained[1].reasons
        self.log.retrainings.append(Retraining(request, trigger, not reasons, reasons))
        if trained is None or reasons:
            return
        self._drift = False
        self._trained_on = len(self._experience)
        self._put_in_force(trained[0])
        # As in the live watch, evidence starts anew with a promotion.
        self._detector = ShiftDetector(self._settings.shift, VIEWS)
