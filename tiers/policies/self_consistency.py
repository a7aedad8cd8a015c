"""Self-consistency: several samples, and the answer that most of them agree on (Wang et al. 2022)."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from tiers.decoder import Decoder
from tiers.policies.plain import Plain
from tiers.policies.policy import Policy
from tiers.policies.short_answer import AnswerKind, answer_kind, extract_answer, majority
from tiers.tier import Delta, GenerationRequest
from tiers.tier_spec import SelfConsistencySpec

FIXED_SEED = 0


class SelfConsistency(Policy):
    """Where the prompt asks for a short checkable answer, the text of the majority's first sample; else plain decoding.

    Samples are drawn at the policy's temperature from the request's seed. A request at temperature 0 without a seed
    gets a fixed one, as it may expect the same answer every time. All samples are billed as completion tokens. Nothing
    streams before the vote.
    """

    def __init__(self, decoder: Decoder, spec: SelfConsistencySpec) -> None:
        super().__init__(decoder)
        self._spec = spec
        self._plain = Plain(decoder)

    async def stream(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        """See `Policy.stream`."""
        question = _question(request)
        kind = answer_kind(question)
        source = self._plain.stream(request) if kind is None else self._vote(request, question, kind)
        async with aclosing(source) as deltas:
            async for delta in deltas:
                yield delta

    async def _vote(self, request: GenerationRequest, question: str, kind: AnswerKind) -> AsyncGenerator[Delta, None]:
        k = self._spec.samples
        seed = request.sampling.seed
        if seed is None and request.sampling.temperature == 0:
            seed = FIXED_SEED
        many = msgspec.structs.replace(
            request,
            n=request.n * k,
            sampling=msgspec.structs.replace(request.sampling, temperature=self._spec.temperature, seed=seed),
        )
        samples = [Delta() for _ in range(many.n)]
        async with aclosing(self._plain.stream(many)) as deltas:
            async for delta in deltas:
                if delta.usage is not None:
                    yield delta
                    continue
                _append(samples[delta.index], delta)
                choice = delta.index // k
                group = samples[choice * k : (choice + 1) * k]
                if delta.finish_reason is not None and all(s.finish_reason is not None for s in group):
                    winner = group[majority([extract_answer(question, kind, s.text) for s in group])]
                    finish, winner.finish_reason, winner.index = winner.finish_reason, None, choice
                    yield winner
                    yield Delta(index=choice, finish_reason=finish)


def _question(request: GenerationRequest) -> str:
    """The last user turn; empty for raw prompts, which are continued, not answered."""
    turns = [m.content for m in request.messages or [] if m.role == "user"]
    return turns[-1] if turns else ""


def _append(sample: Delta, delta: Delta) -> None:
    sample.text += delta.text
    sample.token_ids = sample.token_ids + delta.token_ids
    if delta.logprobs is not None:
        sample.logprobs = (sample.logprobs or []) + delta.logprobs
    sample.finish_reason = delta.finish_reason
