"""An Escalation: one tier's answer, judged by its own evidence while nothing of it has reached the caller (RT-11)."""

import logging
import time
from typing import Literal, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from classifier.decision import Decision
from classifier.escalation_rule import weigh_escalation
from classifier.probes import TierProbe
from classifier.token_summary import TokenSummary
from gateway.answering.ask import Ask
from gateway.routing.knobs import RoutingKnobs
from inference_core.evidence import Evidence, EvidenceRequest
from tiers.tier import Delta, Tier
from tiers.tier_spec import TierSpec

log = logging.getLogger(__name__)

Stage = Literal["prefill", "opening", "whole"]


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What a stage made of an answer. `p_ok` by tier, that of the answering one of this very answer."""

    stage: Stage
    p_ok: list[float]
    escalate: bool
    reason: str


class Ladder(Protocol):
    """Who knows the next tier."""

    def next_up(self, decision: Decision, tier: int) -> Tier | None:
        """The next allowed tier above `tier`, if there is one."""


class Escalation:
    """Judges the answer of the tier of `spec` to `ask` as its deltas come; whoever owns the answer acts on it.

    Stage 2 speaks with the first delta. Stage 3 speaks once: when a stream has drawn `hold_tokens` tokens or ended
    before, and when a whole answer has ended. `holding`: whether what has come must be kept from the caller, because
    its fate is not decided.
    """

    def __init__(
        self, probe: TierProbe, knobs: RoutingKnobs, ask: Ask, decision: Decision, spec: TierSpec, ladder: Ladder
    ) -> None:
        self.request = EvidenceRequest(layer=probe.spec.layer, pooling=probe.spec.pooling, tokens=knobs.stage_3)
        self.verdict: Verdict | None = None
        self.holding = ask.stream
        self._probe, self._knobs, self._ask, self._decision, self._ladder = probe, knobs, ask, decision, ladder
        self._tier = spec.number
        self._price = spec.price.output_usd_per_million / 1e6
        self._expected = _expected_tokens(ask, decision, spec)
        self._hold = knobs.hold_tokens if knobs.stage_3 else 0
        self._summary = TokenSummary()
        self._logits: npt.NDArray[np.float32] | None = None
        self._drawn = 0
        self._cut_off = False

    def take(self, delta: Delta) -> Verdict | None:
        """Look at the next delta; a verdict if a stage has spoken. After one that escalates nothing more is taken."""
        verdict = None
        if delta.evidence is not None and delta.evidence.state:
            verdict = self._after_prefill(delta.evidence)
        if verdict is None or not verdict.escalate:
            verdict = self._follow(delta) or verdict
        self.verdict = verdict or self.verdict
        return verdict

    def _after_prefill(self, evidence: Evidence) -> Verdict | None:
        state = np.frombuffer(evidence.state, "<f4")
        if len(state) != self._probe.hidden:
            log.error(
                "tier %d: a hidden state of %d numbers came and its probe reads %d; nothing is judged by it",
                self._tier, len(state), self._probe.hidden,
            )  # fmt: skip
            return None
        self._logits = self._probe.after_prefill(state, self._decision.inputs.prediction.p_ok)
        return self._judge("prefill", self._logits) if self._knobs.stage_2 else None

    def _follow(self, delta: Delta) -> Verdict | None:
        tokens = delta.evidence.tokens if delta.evidence is not None else []
        for token in tokens:
            self._summary.add(token.logprob, token.entropy, token.margin)
        self._drawn += max(len(delta.token_ids), len(tokens), bool(delta.text or delta.reasoning))
        self._cut_off |= delta.finish_reason == "length"
        ended = delta.usage is not None
        if not ended and (self._drawn < self._hold or not self._ask.stream):
            return None
        judged = self._ask.stream and not self.holding
        self.holding = False
        if judged or self._logits is None or not self._knobs.stage_3 or not len(self._summary):
            return None
        if ended:
            summary = self._summary.whole(cut_off=self._cut_off)
            return self._judge("whole", self._probe.after_answer(summary, self._logits))
        if not self._hold:
            return None
        return self._judge("opening", self._probe.after_opening(self._summary.opening(), self._logits))

    def _judge(self, stage: Stage, logits: npt.NDArray[np.float32]) -> Verdict:
        p_ok = self._probe.p_ok(logits, self._decision.inputs.prediction.p_ok)
        left = 0.0 if stage == "whole" else self._price * max(self._expected - self._drawn, 0.0)
        higher = self._ladder.next_up(self._decision, self._tier)
        if higher is None:
            return Verdict(stage=stage, p_ok=p_ok, escalate=False, reason="no tier above may take over")
        choice = weigh_escalation(self._decision.inputs, self._tier, higher.number, p_ok, left)
        problem = self._lateness(higher) if choice.advantage > 0 else None
        reason = f"{_STAGE_NAMES[stage]}: {choice.reason}" + (f"; but {problem}" if problem else "")
        return Verdict(stage=stage, p_ok=p_ok, escalate=choice.advantage > 0 and problem is None, reason=reason)

    def _lateness(self, higher: Tier) -> str | None:
        """Why the dearer tier cannot begin in time."""
        if self._ask.deadline_seconds is None:
            return None
        left = self._ask.arrival + self._ask.deadline_seconds - time.monotonic()
        wait = higher.load().predicted_wait_seconds
        if left > 0 and wait <= left:
            return None
        return (
            f"tier {higher.number}'s queue takes {wait * 1e3:.0f} ms, the deadline leaves {max(left, 0) * 1e3:.0f} ms"
        )


_STAGE_NAMES: dict[Stage, str] = {
    "prefill": "stage 2, after prefill",
    "opening": "stage 3, after the opening",
    "whole": "stage 3, on the whole answer",
}


def may_escalate(ask: Ask, decision: Decision) -> bool:
    """Whether probes apply at all: to one free chat answer, of a tier that neither caller nor operator named."""
    single = ask.choices == 1 and ask.best_of in (None, 1)
    named = decision.inputs.pinned_tier is not None or decision.would_be is not None or decision.by_edge
    return ask.messages is not None and single and not ask.is_bound and not named


def _expected_tokens(ask: Ask, decision: Decision, spec: TierSpec) -> float:
    predicted = decision.inputs.prediction.predicted_tokens
    expected = predicted[spec.number - 1] if len(predicted) >= spec.number else None
    tokens = float(spec.expected_answer_tokens) if expected is None else expected
    return tokens if ask.max_tokens is None else min(tokens, float(ask.max_tokens * spec.samples_per_choice))
