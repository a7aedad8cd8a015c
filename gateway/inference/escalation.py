"""Judge a tier's answer by its own evidence before any of it reaches the caller (SPEC RT-11).

The evidence models are loaded at start and when others are promoted, and refused for other models.
"""

import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec

from classifier.decision import Decision
from classifier.errors import ArtefactError
from classifier.evidence import EvidenceModel, EvidenceModels, Float, evidence_features, load_probes, with_agreement
from classifier.model.answer_length import AnswerLength
from classifier.policy.utility import weigh_escalation
from classifier.registry.registry import POINTER, ArtefactRegistry
from gateway.base.inference_request import InferenceRequest
from gateway.base.stores.followed_file import FollowedFile
from gateway.inference.router import RoutingService
from gateway.inference.routing_knobs import RoutingKnobFile, RoutingKnobs
from tiers.catalog.catalog import CatalogInUse
from tiers.catalog.tier_spec import TierSpec
from tiers.deltas import SECOND_TEMPERATURE, CollectedChoice, uncertainty_of
from tiers.final_answer.extract import agreement, final_answer
from tiers.tier import Delta, GenerationRequest, Tier, UsageMeter

Stage = Literal["opening", "whole", "agreement"]


class EscalationDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The judgement of an answer."""

    stage: Stage
    p_ok: list[float]
    """P(good enough) by tier; for the answering tier, of this answer."""
    better: tuple[int, ...]
    """The tiers that may take over and are worth more, the one worth most first."""
    reason: str

    @property
    def escalate(self) -> bool:
        """Whether another tier is to answer."""
        return bool(self.better)


class Escalation:
    """Judges the answer of the tier of `spec` to `request` as its deltas come; the generation acts on the verdict.

    There is one verdict: at the end of a whole answer; for a stream once `hold_tokens` tokens are held, or at its end
    if that comes first. `holding`: whether deltas must be held back because there is no verdict yet. If a second sample
    of the tier likely saves another's price, `second_sample` returns its request and `compared` judges again.
    """

    def __init__(
        self,
        model: EvidenceModel,
        knobs: RoutingKnobs,
        request: InferenceRequest,
        decision: Decision,
        spec: TierSpec,
        routing: RoutingService,
        second_sample_pays: Callable[[str], bool],
    ) -> None:
        """`second_sample_pays`: whether it does for an answer of that kind."""
        self._second_sample_pays = second_sample_pays
        self.verdict: EscalationDecision | None = None
        self.holding = request.stream
        self._model, self._request, self._decision, self._spec, self._routing = model, request, decision, spec, routing
        self._hold = knobs.hold_tokens
        self._answer = CollectedChoice()
        self._uncertainty: list[float] = []
        self._drawn = 0

    def take(self, delta: Delta) -> EscalationDecision | None:
        """Add the next delta; returns the verdict once there is one. After a verdict nothing more is taken."""
        if self.verdict is not None or (self._request.stream and not self.holding):
            return None
        ended = delta.end is not None
        self._answer.take(delta)
        self._uncertainty += uncertainty_of(delta)
        self._drawn += max(len(delta.token_ids), bool(delta.text or delta.reasoning))
        if not (ended or (self.holding and self._drawn >= self._hold)):
            return None
        self.holding = False
        if not ended and not self._answer.text:
            return None  # a chain of thought that is streamed: nothing of the answer has come
        self.verdict = self._judge("whole" if ended else "opening", self._evidence())
        return self.verdict

    def second_sample(self, request: GenerationRequest) -> GenerationRequest | None:
        """Return the request for a second sample of the same tier before escalating, or None if it would not pay.

        Only for a whole answer whose result can be checked and of whose kind verified answers show a gain, if agreement
        would keep it, and if the chance of that times the price of the tier that would take over is above the sample's.
        """
        verdict, tier, inputs = self.verdict, self._spec.number, self._decision.inputs
        if verdict is None or not verdict.escalate or not self._model.spec.reads_agreement:
            return None
        if (
            self._request.stream
            or self._request.options.deadline_seconds is not None
            or inputs.max_cost_usd is not None
        ):
            return None
        end = final_answer(self._question, self._answer.text)
        if end is None or not self._second_sample_pays(end.kind):
            return None
        disagreed, agreed = self._model.p_ok_by_agreement(self._evidence(), inputs.prediction.p_ok)
        low, high = disagreed[tier - 1], agreed[tier - 1]
        if high <= low or weigh_escalation(inputs, tier, sorted(verdict.better), agreed, 0.0).better:
            return None
        # P(good) is the mean over both outcomes, which gives the chance of each.
        chance = min(max((verdict.p_ok[tier - 1] - low) / (high - low), 0.0), 1.0)
        if chance * inputs.costs[verdict.better[0] - 1] <= inputs.costs[tier - 1]:
            return None
        again = msgspec.structs.replace(
            request, request_id=f"{request.request_id}-second", evidence=None, whole=True, meter=UsageMeter()
        )
        drawn = msgspec.structs.replace(request.sampling, temperature=SECOND_TEMPERATURE, seed=None, logprobs=None)
        return msgspec.structs.replace(again, sampling=drawn)

    def compared(self, text: str) -> EscalationDecision:
        """The verdict with the second sample `text`."""
        agreed = agreement(self._question, self._answer.text, text)
        self.verdict = self._judge("agreement", with_agreement(self._evidence(), agreed or 0.0))
        return self.verdict

    @property
    def _question(self) -> str:
        messages = self._request.generation.messages
        return messages[-1].text if messages else ""

    def _evidence(self) -> Float:
        return evidence_features(self._answer.text, self._answer.finish_reason, self._uncertainty)

    def _judge(self, stage: Stage, evidence: Float) -> EscalationDecision:
        p_ok = self._model.p_ok(evidence, self._decision.inputs.prediction.p_ok)
        above = self._routing.above(self._request, self._decision, self._spec.number)
        if not above:
            return EscalationDecision(stage=stage, p_ok=p_ok, better=(), reason="no tier above may take over")
        late = {tier.number: said for tier in above if (said := self._lateness(tier)) is not None}
        # Where all are late, the verdict says what that loses.
        asked = [tier.number for tier in above if tier.number not in late] or list(late)
        left_usd = self._left_usd() if stage == "opening" else 0.0
        choice = weigh_escalation(self._decision.inputs, self._spec.number, asked, p_ok, left_usd)
        problem = late.get(choice.better[0]) if choice.better else None
        reason = f"{_STAGE_NAMES[stage]}: {choice.reason}" + (f"; but {problem}" if problem else "")
        return EscalationDecision(stage=stage, p_ok=p_ok, better=() if problem else choice.better, reason=reason)

    def _left_usd(self) -> float:
        """Predicted US dollars of the rest of the answer."""
        left = max(_expected_tokens(self._request, self._decision, self._spec) - self._drawn, 0.0)
        return left * self._spec.price.output_usd_per_million / 1e6

    def _lateness(self, higher: Tier) -> str | None:
        """Why a tier above cannot start in time; None if it can."""
        if self._request.options.deadline_seconds is None:
            return None
        left = self._request.generation.arrival + self._request.options.deadline_seconds - time.monotonic()
        wait = higher.load().predicted_wait_seconds
        if left > 0 and wait <= left:
            return None
        return (
            f"tier {higher.number}'s queue takes {wait * 1e3:.0f} ms, the deadline leaves {max(left, 0) * 1e3:.0f} ms"
        )


_STAGE_NAMES: dict[Stage, str] = {
    "opening": "judged by its beginning",
    "whole": "judged by the whole answer",
    "agreement": "judged by the whole answer and a second sample",
}


def may_escalate(request: InferenceRequest, decision: Decision, hold_tokens: int) -> bool:
    """Whether an answer is judged: a single unconstrained chat answer by a tier that neither caller nor operator named;
    a stream only if part of it is held."""
    named = decision.inputs.pinned_tier is not None or decision.would_be is not None or decision.by_edge
    rules = decision.inputs.rules
    named = named or decision.inputs.is_constant or (rules is not None and rules.tier is not None)
    seen = not request.stream or hold_tokens > 0
    chat = request.generation.messages is not None
    return seen and chat and request.is_single and not request.is_bound and not named


def _expected_tokens(request: InferenceRequest, decision: Decision, spec: TierSpec) -> float:
    predicted = decision.inputs.prediction.predicted_tokens
    expected = predicted[spec.number - 1] if len(predicted) >= spec.number else None
    tokens = float(spec.expected_answer_tokens) if expected is None else expected
    most = request.generation.max_tokens
    return tokens if most is None else min(tokens, float(most * spec.samples_per_choice))


log = logging.getLogger(__name__)


SecondSamplePays = Callable[[InferenceRequest, Decision, int, str], bool]


class ActiveProbes:
    """Serves the current version of the registry at `root`; without one nothing is judged.

    A version that cannot be loaded changes nothing, and the log says why. `knobs` are read for each answer that begins.
    `on_lengths` is called with the predictor of answers' lengths, or None. `second_sample_pays`: whether a second
    sample of a tier is worth its price for an answer of some kind; by default none is.
    """

    def __init__(
        self,
        root: Path,
        catalog: CatalogInUse,
        knobs: RoutingKnobFile,
        on_lengths: Callable[[AnswerLength | None], None] = lambda lengths: None,
        second_sample_pays: SecondSamplePays = lambda request, decision, tier, kind: False,
    ) -> None:
        self._registry = ArtefactRegistry(root)
        self._catalog, self._knobs, self._on_lengths = catalog, knobs, on_lengths
        self._second_sample_pays = second_sample_pays
        self.models: dict[int, EvidenceModel] = {}
        """What judges answers, by tier."""
        self._pointer = FollowedFile(root / POINTER, lambda _: self._load(), "evidence models")

    def escalation(
        self, request: InferenceRequest, decision: Decision, tier: int, routing: RoutingService
    ) -> Escalation | None:
        """What will judge the answer of `tier` to `request`; None where nothing can or may."""
        model = self.models.get(tier)
        knobs = self._knobs.active
        if model is None or not knobs.judge_answers or not may_escalate(request, decision, knobs.hold_tokens):
            return None
        if not routing.above(request, decision, tier):
            return None
        pays = partial(self._second_sample_pays, request, decision, tier)
        return Escalation(model, knobs, request, decision, self._catalog.current.tier(tier), routing, pays)

    def load(self) -> None:
        """Load what is current now, if that has changed; never raises."""
        self._pointer.refresh()

    async def follow(self, seconds: float) -> None:
        """Look at the registry's pointer every `seconds` and load what it names when it has changed."""
        await self._pointer.follow_in_thread(seconds)

    def _load(self) -> None:
        self.use(load_probes(self._registry.current()))

    def use(self, evidence: EvidenceModels) -> None:
        """Activate `evidence`, as far as it belongs to this catalogue's tiers."""
        models: dict[int, EvidenceModel] = {}
        catalog = self._catalog.current
        for tier in evidence.tiers:
            if tier > len(catalog.tiers):
                continue
            try:
                model = evidence.model(tier, catalog.tier_fingerprint(tier))
            except ArtefactError as error:
                log.error("%s", error)
            else:
                if model is not None:
                    models[tier] = model
        self.models = models
        self._on_lengths(
            evidence.lengths_for({spec.number: catalog.tier_fingerprint(spec.number) for spec in catalog.tiers})
        )
        log.info("%s judge the answers of tiers %s", evidence.version, ", ".join(map(str, models)) or "none")
