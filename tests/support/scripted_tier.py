"""A tier with scripted answers, one delta per word, which records what happened to it."""

import asyncio
from collections.abc import AsyncGenerator

from inference_core.protocol import StepTimes
from inference_core.protocol.commands import Evidence, TokenEvidence
from inference_core.tokenization.tokenizer import Tokenizer
from tiers.conversation import ToolCallDelta
from tiers.errors import TierError
from tiers.tier import AnswerEnd, Delta, FinishReason, GenerationRequest, TextLogprob, ThoughtEnd, Tier, TierLoad, Usage

WORDS = ("Hello", " there,", " how", " are", " you?")


class ScriptedTier(Tier):
    """Answers with `words`, and `calls` if there are any; `fail_at` raises `error` instead of the word of that number.

    A word in bytes is a token that is no text by itself. `likelihoods`: choice i says `#i` at its end, with that
    log-probability of every word. `sureness` (a log-probability per word, the last one for all further words) is its
    evidence, for requests that ask for any. `later_words`: what it answers to all requests but the first, if set.

    `stop_sequence`: the stop string that ended an answer. `thought_end`: why its thoughts ended early.
    `num_layers`: as of a tier that tells evidence.
    `vocabulary`: the tokeniser that it has, as a tier in this process would.
    `tells_token_ids`: as a tier in this process does and a remote one does not; what was drawn is metered either way.
    `hold_at`: waits before that word until `go` is set; `holding` is set when it gets there. `slow_close`: closing a
    generation takes until that is set; `closing` is set when it starts.
    `ended` is set when a generation ended or was closed; `closed_early` counts those that were closed.
    """

    def __init__(self, number: int, *, model: str = "smollm2-int4", max_context: int = 256) -> None:
        self.number, self.name, self.model, self.max_context = number, f"tier-{number}", model, max_context
        self.started = False
        self.reset()

    def reset(self) -> None:
        """Restore the first script and clear the records."""
        self.words: tuple[str | bytes, ...] = WORDS
        self.likelihoods: tuple[float, ...] = ()
        self.later_words: tuple[str | bytes, ...] | None = None
        self.sureness: tuple[float, ...] = (-0.1,)
        self.reasoning: tuple[str, ...] = ()
        self.calls: tuple[ToolCallDelta, ...] = ()
        self.stop_sequence: str | None = None
        self.thought_end: ThoughtEnd | None = None
        self.fail_at: int | None = None
        self.error: Exception = TierError("scripted failure")
        self.hold_at: int | None = None
        self.go = asyncio.Event()
        self.holding = asyncio.Event()
        self.ended = asyncio.Event()
        self.closed_early = 0
        self.slow_close: asyncio.Event | None = None
        self.closing = asyncio.Event()
        self.requests: list[GenerationRequest] = []
        self.health = TierLoad()
        self.vocabulary: Tokenizer | None = None
        self.tells_token_ids = True
        self.num_layers = 30

    @property
    def tokenizer(self) -> Tokenizer | None:
        return self.vocabulary

    async def start(self) -> None:
        self.started = True

    async def close(self) -> None:
        self.started = False

    def count_prompt_tokens(self, request: GenerationRequest) -> int:
        if request.messages is not None:
            return sum(len(message.text.split()) + 4 for message in request.messages)
        return len(request.prompt.split() if isinstance(request.prompt, str) else request.prompt or [])

    def load(self) -> TierLoad:
        return self.health

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        self.requests.append(request)
        words = self.words if len(self.requests) == 1 or self.later_words is None else self.later_words
        drawn: list[Delta] = []
        prompt = self.count_prompt_tokens(request)
        request.meter.add(lambda: _used(prompt, drawn))
        try:
            for delta in self._reasoning(request):
                drawn.append(delta)
                yield delta
            for place, word in enumerate(words):
                await asyncio.sleep(0)  # an engine's step takes at least one turn of the loop
                if self.hold_at == place:
                    self.holding.set()
                    await self.go.wait()
                if self.fail_at == place:
                    raise self.error
                for index in range(request.n):
                    drawn.append(self._said(request, index, place, word, last=place + 1 == len(words)))
                    yield drawn[-1]
            for call in self.calls:
                for index in range(request.n):
                    yield Delta(index=index, tool_calls=[call])
            for index in range(request.n):
                reason: FinishReason = "tool_calls" if self.calls else "stop"
                yield Delta(index=index, finish_reason=reason, stop_sequence=self.stop_sequence)
            usage = self.usage(request, len(words))
            times = StepTimes(queue_seconds=0.001, preemptions=1)
            yield Delta(end=AnswerEnd(usage=usage, times=times, thought_end=self.thought_end))
        except (asyncio.CancelledError, GeneratorExit):
            self.closed_early += 1
            if self.slow_close is not None:
                self.closing.set()
                await self.slow_close.wait()
            raise
        finally:
            self.ended.set()

    def usage(self, request: GenerationRequest, num_words: int | None = None) -> Usage:
        said = len(self.words) if num_words is None else num_words
        words = (said + len(self.reasoning)) * request.n
        return Usage(
            prompt_tokens=self.count_prompt_tokens(request),
            completion_tokens=words,
            cached_tokens=2,
            reasoning_tokens=len(self.reasoning) * request.n,
        )

    def _said(self, request: GenerationRequest, index: int, place: int, word: str | bytes, *, last: bool) -> Delta:
        raw = word if isinstance(word, bytes) else word.encode()
        text = raw.decode("utf-8", errors="replace")
        logprob = self.likelihoods[index] if self.likelihoods else -0.25
        logprobs = _logprobs(request, text, raw, logprob)
        mark = f"#{index}" if self.likelihoods and last else ""
        evidence = self._evidence(request, place)
        token_ids = [place] if self.tells_token_ids else []
        return Delta(index=index, text=text + mark, token_ids=token_ids, logprobs=logprobs, evidence=evidence)

    def _evidence(self, request: GenerationRequest, place: int) -> Evidence | None:
        if request.evidence is None:
            return None
        logprob = self.sureness[min(place, len(self.sureness) - 1)]
        tokens = [TokenEvidence(logprob, -logprob, 1.0)] if request.evidence.tokens else []
        return Evidence(tokens=tokens)

    def _reasoning(self, request: GenerationRequest) -> list[Delta]:
        thoughts = [(index, thought) for index in range(request.n) for thought in self.reasoning]
        token_ids = [7] if self.tells_token_ids else []
        return [Delta(index=index, reasoning=thought, token_ids=token_ids) for index, thought in thoughts]


def _used(prompt_tokens: int, drawn: list[Delta]) -> Usage:
    thoughts = sum(bool(delta.reasoning) for delta in drawn)
    return Usage(prompt_tokens=prompt_tokens, completion_tokens=len(drawn), reasoning_tokens=thoughts)


def _logprobs(request: GenerationRequest, text: str, raw: bytes, logprob: float) -> list[TextLogprob] | None:
    if request.sampling.logprobs is None:
        return None
    top = [(text, raw, logprob), (" other", b" other", -2.5)][: request.sampling.logprobs]
    return [TextLogprob(token=text, token_bytes=raw, logprob=logprob, top=top)]
