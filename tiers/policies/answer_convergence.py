"""Early stopping of thoughts: end a thought when its interim answers have converged, or the model is sure of one."""

from contextlib import aclosing
from math import exp
from statistics import fmean

import msgspec

from inference_core.protocol import SamplingParams
from inference_core.protocol.commands import EvidenceRequest
from tiers.catalog.tier_spec import ChainOfThoughtSpec
from tiers.collected_choice import CollectedChoice
from tiers.decoding.decoder import Decoder
from tiers.policies.answer_vote import AnswerKind, answer_kind, extract_answer
from tiers.tier import GenerationRequest, ThoughtEnd

_ENDS_OF_SENTENCES = (".", "!", "?")


class AnswerConvergence:
    """Probes of one thought: short greedy answers to the thought so far, in the same core, whose prefix cache leaves
    only the last tokens to prefill (Fu et al. 2025, "Reasoning without self-doubt"; Liu and Wang 2025, "Answer
    convergence as a signal for early stopping in reasoning").

    The answer has converged once the last `settled_probes` probes gave the same one, or one of them was given with
    `probe_confidence`: `end` says which, and is None before. Only short checkable answers can be compared, so only such
    questions are probed. The thought waits for its probe, although the core continues it meanwhile: where it ends
    depends on the request alone, not on the load. `tokens`: drawn by probes so far.
    """

    def __init__(
        self, decoder: Decoder, request: GenerationRequest, spec: ChainOfThoughtSpec, question: str, kind: AnswerKind
    ) -> None:
        self.tokens = 0
        self.end: ThoughtEnd | None = None
        self._decoder, self._spec = decoder, spec
        # The deadline applied to the thought's first token.
        self._request = msgspec.structs.replace(request, strict_deadline=False)
        self._question, self._kind = question, kind
        self._opening = decoder.own_ids(spec.answer_opening)
        self._answers: list[str | None] = []
        self._probed_at = 0

    @classmethod
    def of(cls, decoder: Decoder, request: GenerationRequest, spec: ChainOfThoughtSpec) -> "AnswerConvergence | None":
        """Return one for a choice of `request`; None if the policy does not probe or the answer cannot be compared."""
        if not spec.settled_probes and not spec.probe_confidence:
            return None
        turns = [message.content for message in request.messages or [] if message.role == "user"]
        kind = answer_kind(turns[-1]) if turns else None
        return None if kind is None else cls(decoder, request, spec, turns[-1], kind)

    def is_due(self, said: str, thought_tokens: int, budget: int) -> bool:
        """Return whether to probe after `thought_tokens` tokens, the last of which said `said`: at the end of a step,
        not too often, and if thought and probes leave enough of `budget` tokens."""
        if thought_tokens - self._probed_at < self._spec.probe_every_tokens:
            return False
        if thought_tokens + self.tokens + self._spec.probe_tokens > budget:
            return False
        return "\n" in said or said.rstrip().endswith(_ENDS_OF_SENTENCES)

    async def has_converged(self, prompt_ids: list[int], thought: list[int]) -> bool:
        """Draw the answer that follows from `thought`; return True once the last probes agree, or this one is sure."""
        self._probed_at = len(thought)
        answer, logprobs = CollectedChoice(), list[float]()
        wanted = EvidenceRequest(tokens=True) if self._spec.probe_confidence else None
        decoding = self._decoder.decode(
            msgspec.structs.replace(self._request, evidence=wanted),
            prompt_ids + thought + self._opening,
            sampling=SamplingParams(temperature=0.0),
            max_tokens=self._spec.probe_tokens,
            stop=("\n",),
            reasoning=True,
            drawn_from=len(prompt_ids),
        )
        async with aclosing(decoding) as deltas:
            async for delta in deltas:
                answer.take(delta)
                if delta.evidence is not None:
                    logprobs += [token.logprob for token in delta.evidence.tokens]
                if delta.end is not None:
                    self.tokens += delta.end.usage.completion_tokens
        self._answers.append(extract_answer(self._question, self._kind, answer.text))
        self.end = self._reached(logprobs)
        return self.end is not None

    def _reached(self, logprobs: list[float]) -> ThoughtEnd | None:
        """Why the thought may end after the last probe, whose tokens had these log-probabilities; None if not yet."""
        threshold, wanted = self._spec.probe_confidence, self._spec.settled_probes
        if self._answers[-1] is None:
            return None
        if threshold and logprobs and exp(fmean(logprobs)) >= threshold:
            return "confidence"
        last = self._answers[-wanted:]
        return "agreement" if wanted and len(last) == wanted and len(set(last)) == 1 else None
