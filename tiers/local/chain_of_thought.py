"""Chain of thought within a budget: think first, then answer, as two parts of one sequence (SPEC TI-04).

A thought is ended early when its interim answers have converged, or the model is sure of one.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from math import ceil, exp
from statistics import fmean

import msgspec

from inference_core.protocol import SamplingParams
from inference_core.protocol.commands import EvidenceRequest
from tiers.catalog.tier_spec import ChainOfThoughtSpec
from tiers.conversation import ReasoningEffort
from tiers.deltas import CollectedChoice, merge
from tiers.local.decoder import Decoder, Prompt
from tiers.local.policy import Plain, Policy, derive_seed
from tiers.local.self_consistency import AnswerKind, answer_kind, extract_answer
from tiers.tier import AnswerEnd, Delta, GenerationRequest, ModelRequest, ThoughtEnd, UsageMeter

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
        turns = [message.text for message in request.messages or [] if message.role == "user"]
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


THINK_TAG = "<think>"
# Shares of the tier's own budget, which is also the default of a request.
EFFORT_SHARES: dict[ReasoningEffort, float] = {
    "none": 0.0,
    "minimal": 0.125,
    "low": 0.25,
    "medium": 0.5,
    "high": 1.0,
    "xhigh": 1.0,
    "max": 1.0,
}


class ChainOfThought(Policy):
    """Thinking streams as `reasoning`, the answer as `text` (Wei et al. 2022; budget forcing: Muennighoff et al. 2025).

    The answer continues the same tokens, so the prefix cache saves its prefill. `max_tokens` bounds thinking and answer
    together. Stop strings, log-probabilities, logit bias, minimum length, grammars and tool calls apply to the answer
    only. Raw prompts and a budget of 0 are decoded plainly. With `settled_probes` or `probe_confidence` a thought ends
    early once its answer has converged (`AnswerConvergence`); probes count as thought, in the budget and on the bill.
    """

    def __init__(self, decoder: Decoder, spec: ChainOfThoughtSpec) -> None:
        super().__init__(decoder)
        self._spec = spec
        self._plain = Plain(decoder)
        self._opening = decoder.own_ids(spec.opening)
        self._answer_opening = decoder.own_ids(spec.answer_opening)
        # A marker that is a control token never appears in the text.
        controls = decoder.tokenizer.control_tokens
        self._end_ids = tuple(controls[marker] for marker in spec.end_markers if marker in controls)

    def prompt(self, request: GenerationRequest) -> Prompt:
        """See `Policy.prompt`; instruction included."""
        return self.decoder.prompt(request, self._spec.instruction if request.messages is not None else "")

    def count_prompt_tokens(self, request: GenerationRequest, most: int) -> int:
        """See `Policy.count_prompt_tokens`; instruction and opening included."""
        if request.messages is None:
            return super().count_prompt_tokens(request, most)
        return self.prompt(request).count(most - len(self._opening)) + len(self._opening)

    async def stream(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        prompt_ids = self.prompt(request).ids() + self._opening if request.messages else []
        total, thinking = self._budgets(request, len(prompt_ids)) if prompt_ids else (0, 0)
        if thinking < 1:
            await self._plain.read(request)
            source = self._plain.stream(request)
        else:
            choices = [self._choice(request, index, prompt_ids, total, thinking) for index in range(request.n)]
            source = _billed_once(merge(choices), request.meter)
        async with aclosing(source) as deltas:
            async for delta in deltas:
                yield delta

    def _budgets(self, request: ModelRequest, prompt_tokens: int) -> tuple[int, int]:
        """Return the token limits for everything and for thinking, which is 0 if only the answer has room."""
        prompt_tokens += len(self._answer_opening)
        if self.decoder.max_context - prompt_tokens < 2:
            return 0, 0
        total = self.decoder.room(request, prompt_tokens)
        budget = self._spec.budget_tokens
        if request.reasoning_budget is not None:
            budget = request.reasoning_budget
        elif request.reasoning_effort is not None:
            budget = ceil(budget * EFFORT_SHARES[request.reasoning_effort])
        return total, min(budget, total - min(self._spec.min_answer_tokens, (total + 1) // 2))

    async def _choice(
        self, request: GenerationRequest, index: int, prompt_ids: list[int], total: int, thinking: int
    ) -> AsyncGenerator[Delta, None]:
        thought: list[int] = []
        thought_over: AnswerEnd | None = None
        settling = AnswerConvergence.of(self.decoder, request, self._spec)
        ended: set[int] = set()
        async with aclosing(self._think(request, index, prompt_ids, thinking, ended)) as deltas:
            async for delta in deltas:
                if delta.end is not None:
                    thought_over = delta.end
                if delta.end is not None or ended:
                    continue
                thought += delta.token_ids
                if delta.reasoning or delta.evidence is not None:
                    yield Delta(index=index, reasoning=delta.reasoning, evidence=delta.evidence)
                if settling is not None and await self._has_settled(settling, prompt_ids, thought, delta, thinking):
                    ended.add(0)
        assert thought_over is not None
        probed = 0 if settling is None else settling.tokens
        left = total - thought_over.usage.completion_tokens - probed
        async with aclosing(self._answer(request, index, prompt_ids, thought, left)) as deltas:
            async for delta in deltas:
                if delta.end is not None:
                    delta.end = _joined(thought_over, delta.end, None if settling is None else settling.end)
                yield delta

    async def _has_settled(
        self, settling: AnswerConvergence, prompt_ids: list[int], thought: list[int], last: Delta, budget: int
    ) -> bool:
        """Return whether the thought can end: the probes agree, or have used up the budget."""
        if settling.is_due(last.reasoning, len(thought), budget) and await settling.has_converged(prompt_ids, thought):
            return True
        return len(thought) + settling.tokens >= budget

    async def _think(
        self, request: GenerationRequest, index: int, prompt_ids: list[int], budget: int, ended: set[int]
    ) -> AsyncGenerator[Delta, None]:
        if index:
            request = msgspec.structs.replace(request, evidence=_of_tokens(request.evidence))
        sampling = msgspec.structs.replace(
            request.sampling,
            logprobs=None,
            grammar=None,
            logit_bias={},
            min_tokens=0,
            ignore_eos=False,
            stop_token_ids=self._end_ids,
            seed=derive_seed(request.sampling.seed, index, "thought"),
        )
        thought = _ThoughtText()
        decoding = self.decoder.decode(
            request,
            prompt_ids,
            sampling=sampling,
            max_tokens=budget,
            stop=self._spec.end_markers,
            dropped=ended,
            reasoning=True,
        )
        async with aclosing(decoding) as deltas:
            async for delta in deltas:
                if delta.end is None:
                    last = delta.finish_reason is not None
                    said = thought.push(delta.text, last=last)
                    delta = Delta(reasoning=said, token_ids=delta.token_ids, evidence=delta.evidence)
                yield delta

    async def _answer(
        self, request: GenerationRequest, index: int, prompt_ids: list[int], thought: list[int], max_tokens: int
    ) -> AsyncGenerator[Delta, None]:
        sampling = msgspec.structs.replace(request.sampling, seed=derive_seed(request.sampling.seed, index, "answer"))
        # The deadline applied to the thought's first token; a finished thought gets its answer.
        request = msgspec.structs.replace(request, strict_deadline=False, evidence=_of_tokens(request.evidence))
        decoding = self.decoder.decode(
            request,
            prompt_ids + thought + self._answer_opening,
            sampling=sampling,
            max_tokens=max_tokens,
            drawn_from=len(prompt_ids),
            stop=request.stop,
            include_stop=request.include_stop,
        )
        begun = False
        async with aclosing(decoding) as deltas:
            async for delta in deltas:
                if not begun:
                    # The opening ends before the space, which is part of the first word's token.
                    delta.text = delta.text.lstrip()
                    begun = bool(delta.text)
                delta.index = index
                yield delta


class _ThoughtText:
    """Drops leading white space, and a `<think>` that a model writes although the opening has it."""

    def __init__(self) -> None:
        self._held = ""
        self._begun = False

    def push(self, text: str, *, last: bool) -> str:
        """Return the part of the text that certainly belongs to the thought; `last` releases held-back text."""
        if self._begun:
            return text
        self._held += text
        text = self._held.lstrip()
        if text.startswith(THINK_TAG):
            text = text.removeprefix(THINK_TAG).lstrip()
        elif THINK_TAG.startswith(text) and not last:
            return ""
        self._begun = bool(text)
        return text


def _of_tokens(wanted: EvidenceRequest | None) -> EvidenceRequest | None:
    """Return the evidence without the hidden state, which is the prompt's only before the first thought."""
    return EvidenceRequest(tokens=True) if wanted is not None and wanted.tokens else None


def _joined(thought: AnswerEnd, answer: AnswerEnd, thought_end: ThoughtEnd | None) -> AnswerEnd:
    """Combine the ends of one choice's two parts: what passed before the thought, and the preemptions of both."""
    times = thought.times
    return AnswerEnd(
        usage=answer.usage,
        thought_end=thought_end,
        times=msgspec.structs.replace(times, preemptions=times.preemptions + answer.times.preemptions),
    )


async def _billed_once(merged: AsyncGenerator[Delta, None], meter: UsageMeter) -> AsyncGenerator[Delta, None]:
    """Combine the ends of the choices, with the counts of `meter`: the prompt once, because it is read once, thoughts
    and probes as reasoning."""
    ends: list[AnswerEnd] = []
    async with aclosing(merged) as deltas:
        async for delta in deltas:
            if delta.end is not None:
                ends.append(delta.end)
            else:
                yield delta
    yield Delta(end=msgspec.structs.replace(AnswerEnd.of_all(ends), usage=meter.usage()))
