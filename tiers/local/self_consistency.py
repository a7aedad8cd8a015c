"""Self-consistency: draw several samples and return the majority's answer (Wang et al. 2022).

Which prompts ask for a short answer that samples can vote on, and which sample wins.
"""

import re
from collections import Counter
from collections.abc import AsyncGenerator, Sequence, Set
from contextlib import aclosing
from typing import Literal

import msgspec

from inference_core.protocol.commands import Evidence
from tiers.catalog.tier_spec import SelfConsistencySpec
from tiers.final_answer.quantities import asks_for_number, likely_number
from tiers.final_answer.short_answers import asks_yes_or_no, choice_letter, names_yes_and_no, options, yes_or_no
from tiers.local.decoder import Decoder
from tiers.local.policy import Plain, Policy
from tiers.tier import Delta, GenerationRequest, ModelRequest

AnswerKind = Literal["number", "choice", "yes-no"]

WINDOW = 8192
_CREATIVE = re.compile(
    r"\b(write|draft|compose|implement|translate|summari[sz]e|rewrite|paraphrase|essay|poem|story|code|function)\b",
    re.I,
)


def answer_kind(prompt: str) -> AnswerKind | None:
    """Return the kind of short answer that `prompt` asks for, or None. In doubt None.

    In a long prompt only the first and last `WINDOW` characters are searched, which bounds the work.
    """
    if len(prompt) > 2 * WINDOW:
        prompt = f"{prompt[:WINDOW]}\n{prompt[-WINDOW:]}"
    if options(prompt):
        return "choice"
    if _CREATIVE.search(prompt):
        return None
    if names_yes_and_no(prompt):
        return "yes-no"
    if asks_for_number(prompt):
        return "number"
    return "yes-no" if asks_yes_or_no(prompt) else None


def extract_answer(prompt: str, kind: AnswerKind, text: str) -> str | None:
    """Return the answer to `prompt` in `text`, normalised so that equal answers compare equal; None without one."""
    if kind == "number":
        number = likely_number(text)
        return None if number is None else str(number)
    return choice_letter(text, options(prompt)) if kind == "choice" else yes_or_no(text)


def majority(answers: Sequence[str | None]) -> int:
    """Return the index of the first sample with the most frequent answer; the earlier answer wins a tie.

    Samples without an answer do not vote; if none has one, the first sample wins.
    """
    votes = Counter(answer for answer in answers if answer is not None)
    if not votes:
        return 0
    most = max(votes.values())
    return next(i for i, answer in enumerate(answers) if answer is not None and votes[answer] == most)


def still_needed(answers: Sequence[str | None], running: Set[int]) -> set[int]:
    """Return which of the `running` samples, whose answers are unknown, can still change the result of `majority`.

    None can once an answer leads by more votes than there are samples left, except samples before the first one that
    gave it: they may give it too, and would then be shown instead.
    """
    votes = Counter(answer for i, answer in enumerate(answers) if answer is not None and i not in running)
    ranked = votes.most_common(2)
    second = ranked[1][1] if len(ranked) > 1 else 0
    if not ranked or ranked[0][1] <= second + len(running):
        return set(running)
    first = next(i for i, answer in enumerate(answers) if answer == ranked[0][0] and i not in running)
    return {i for i in running if i < first}


FIXED_SEED = 0


class SelfConsistency(Policy):
    """If the prompt asks for a short checkable answer, the text of the majority's first sample; else plain decoding.

    Samples are drawn at the policy's temperature from the request's seed. A request at temperature 0 without a seed
    gets a fixed one, so that its answer is reproducible. All samples are billed as completion tokens. Nothing streams
    before the vote. Samples that can no longer change the result are ended at once and billed for their tokens so far.
    """

    def __init__(self, decoder: Decoder, spec: SelfConsistencySpec) -> None:
        super().__init__(decoder)
        self._spec = spec
        self._plain = Plain(decoder)

    async def stream(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        question = _question(request)
        # A tool call is no short answer.
        may_call = request.tooling is not None and request.tooling.callable_tools
        kind = None if may_call else answer_kind(question)
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
        groups = [_Vote(question, kind, k) for _ in range(request.n)]
        dropped: set[int] = set()
        async with aclosing(self._samples(many, dropped)) as deltas:
            async for delta in deltas:
                if delta.end is not None:
                    yield delta
                    continue
                choice, sample = divmod(delta.index, k)
                if delta.evidence is not None and delta.evidence.state:
                    yield Delta(index=choice, evidence=delta.evidence)
                    continue
                vote = groups[choice]
                dropped |= {choice * k + i for i in vote.take(sample, delta)}
                for said in vote.result(choice):
                    yield said

    def _samples(self, many: GenerationRequest, dropped: set[int]) -> AsyncGenerator[Delta, None]:
        prompt_ids = self.prompt(many).ids()
        return self.decoder.decode(
            many,
            prompt_ids,
            sampling=many.sampling,
            max_tokens=self.decoder.room(many, len(prompt_ids)),
            n=many.n,
            stop=many.stop,
            include_stop=many.include_stop,
            dropped=dropped,
        )


class _Vote:
    """The samples of one choice, and the answers of those that have ended."""

    def __init__(self, question: str, kind: AnswerKind, samples: int) -> None:
        self._question, self._kind = question, kind
        self._samples = [Delta() for _ in range(samples)]
        self._answers: list[str | None] = [None] * samples
        self._running = set(range(samples))
        self._told = False

    def take(self, sample: int, delta: Delta) -> set[int]:
        """Add a sample's delta; return the samples that are no longer needed."""
        said = self._samples[sample]
        _append(said, delta)
        if delta.finish_reason is None or sample not in self._running:
            return set()
        self._running.discard(sample)
        self._answers[sample] = extract_answer(self._question, self._kind, said.text)
        useless = self._running - still_needed(self._answers, self._running)
        self._running -= useless
        return useless

    def result(self, index: int) -> list[Delta]:
        """Return the winner as choice `index`, once; nothing before the vote has ended."""
        if self._running or self._told:
            return []
        self._told = True
        winner = self._samples[majority(self._answers)]
        finish, winner.finish_reason, winner.index = winner.finish_reason, None, index
        ending, winner.stop_sequence = winner.stop_sequence, None
        return [winner, Delta(index=index, finish_reason=finish, stop_sequence=ending)]


def _question(request: ModelRequest) -> str:
    """Return the last user turn; empty for raw prompts, which are continued, not answered."""
    turns = [m.text for m in request.messages or [] if m.role == "user"]
    return turns[-1] if turns else ""


def _append(sample: Delta, delta: Delta) -> None:
    sample.text += delta.text
    sample.token_ids = sample.token_ids + delta.token_ids
    if delta.logprobs is not None:
        sample.logprobs = (sample.logprobs or []) + delta.logprobs
    if delta.evidence is not None:
        told = [] if sample.evidence is None else sample.evidence.tokens
        sample.evidence = Evidence(tokens=told + delta.evidence.tokens)
    sample.finish_reason, sample.stop_sequence = delta.finish_reason, delta.stop_sequence
