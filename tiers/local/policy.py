"""How a tier decodes: the contract of all policies, and plain decoding, which the others build on.

Echo repeats the prompt before every choice, with its log-probabilities if requested.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from contextlib import aclosing
from hashlib import blake2b

import msgspec

from inference_core.protocol import TokenLogprob
from inference_core.tokenization.tokenizer import Tokenizer
from tiers.errors import TierError
from tiers.local.choice_detokenizer import prompt_text_logprobs
from tiers.local.decoder import Decoder, Prompt
from tiers.tier import AnswerEnd, Delta, GenerationRequest, ModelRequest, TextLogprob, Usage, is_long


async def echoed(
    decoder: Decoder, request: GenerationRequest, prompt_ids: list[int], max_tokens: int
) -> AsyncGenerator[Delta, None]:
    """Continue the prompt plainly as `request` asks; every choice starts with the prompt.

    A `max_tokens` of 0 only scores the prompt: the core always draws one token at its end, which is neither shown nor
    billed. Without log-probabilities the prompt is not even computed.
    """
    scored = request.sampling.logprobs is not None
    opening = _Opening(decoder.tokenizer, request, prompt_ids)
    if not max_tokens and not (scored and len(prompt_ids) > 1):
        for delta in opening.alone():
            yield delta
        yield Delta(end=AnswerEnd(usage=Usage(prompt_tokens=len(prompt_ids), completion_tokens=0)))
        return
    sampling = msgspec.structs.replace(request.sampling, prompt_logprobs=request.sampling.logprobs)
    if not max_tokens:
        sampling = msgspec.structs.replace(sampling, logprobs=None, min_tokens=0)
    source = decoder.decode(
        request,
        prompt_ids,
        sampling=sampling,
        max_tokens=max(max_tokens, 1),
        n=request.n if max_tokens else 1,
        stop=request.stop if max_tokens else (),
    )
    async with aclosing(opening.before(source) if max_tokens else opening.instead_of(source)) as deltas:
        async for delta in deltas:
            yield delta


class _Opening:
    """The start of a request's choices; complete once all requested log-probabilities have arrived."""

    def __init__(self, tokenizer: Tokenizer, request: ModelRequest, prompt_ids: list[int]) -> None:
        self._tokenizer, self._request, self._prompt_ids = tokenizer, request, prompt_ids
        self._text = request.prompt if isinstance(request.prompt, str) else tokenizer.decode(prompt_ids)
        self._scores: list[TokenLogprob] = []
        self._wanted = 0 if request.sampling.logprobs is None else len(prompt_ids) - 1

    async def before(self, source: AsyncGenerator[Delta, None]) -> AsyncGenerator[Delta, None]:
        """Yield the prompt before the output of `source`; output that arrives early waits."""
        held: list[Delta] | None = []
        async with aclosing(source) as deltas:
            async for delta in deltas:
                if held is None:
                    yield _moved(delta, len(self._text))
                    continue
                self._take(delta, held)
                self._check(delta)
                if held and len(self._scores) >= self._wanted:
                    for each in [*self._said(), *(_moved(late, len(self._text)) for late in held)]:
                        yield each
                    held = None

    async def instead_of(self, source: AsyncGenerator[Delta, None]) -> AsyncGenerator[Delta, None]:
        """Yield the prompt, scored by `source`, whose own text is dropped."""
        async with aclosing(source) as deltas:
            async for delta in deltas:
                self._take(delta, [])
                self._check(delta)
                if (end := delta.end) is not None:
                    for each in self.alone():
                        yield each
                    usage = msgspec.structs.replace(end.usage, completion_tokens=0)
                    delta.end = msgspec.structs.replace(end, usage=usage)
                    yield delta

    def alone(self) -> list[Delta]:
        """Yield only the prompt."""
        ends = [Delta(index=index, finish_reason="length") for index in range(self._request.n)]
        return [*self._said(), *ends]

    def _take(self, delta: Delta, held: list[Delta]) -> None:
        if delta.prompt_logprobs is None:
            held.append(delta)
        else:
            self._scores += delta.prompt_logprobs

    def _check(self, delta: Delta) -> None:
        if delta.end is not None and len(self._scores) != self._wanted:
            raise TierError(f"the core scored {len(self._scores)} of {self._wanted} tokens of the prompt")

    def _said(self) -> list[Delta]:
        logprobs: list[TextLogprob] | None = None
        if self._request.sampling.logprobs is not None:
            logprobs = prompt_text_logprobs(self._tokenizer, self._prompt_ids, self._scores)
        return [Delta(index=i, text=self._text, logprobs=logprobs, echo=True) for i in range(self._request.n)]


def _moved(delta: Delta, characters: int) -> Delta:
    """Shift offsets by that many characters."""
    if delta.logprobs:
        delta.logprobs = [
            token if token.start is None else msgspec.structs.replace(token, start=token.start + characters)
            for token in delta.logprobs
        ]
    return delta


class Policy(ABC):
    """Contract: `stream` follows `Tier.generate`, but may already raise at the call; closing it early leaves nothing
    running in the core."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder

    @abstractmethod
    def stream(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        """Answer `request`."""

    def prompt(self, request: GenerationRequest) -> Prompt:
        return self.decoder.prompt(request)

    async def read(self, request: GenerationRequest) -> None:
        """Encode the prompt of `stream`; on a thread if it is long or its template slow. Raises `TierRequestError`."""
        prompt = self.prompt(request)
        if not prompt.is_encoded and (is_long(request) or self.decoder.tokenizer.renders_slowly):
            try:
                await self.decoder.threads.run(request.salt, prompt.ids)
            except asyncio.CancelledError:
                prompt.give_up()
                raise

    def count_prompt_tokens(self, request: GenerationRequest, most: int) -> int:
        """Return the number of tokens that the model reads before it writes; `most` as in `Prompt.count`."""
        return self.prompt(request).count(most)


class Plain(Policy):
    """Decode once per choice."""

    def stream(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        prompt_ids = self.prompt(request).ids()
        max_tokens = self.decoder.room(request, len(prompt_ids))
        if request.echo:
            return echoed(self.decoder, request, prompt_ids, max_tokens)
        return self.decoder.decode(
            request,
            prompt_ids,
            sampling=request.sampling,
            max_tokens=max_tokens,
            n=request.n,
            stop=request.stop,
            include_stop=request.include_stop,
        )


def derive_seed(seed: int | None, *path: object) -> int | None:
    """Return a seed for one of several draws of a seeded request, independent of the others; None stays None."""
    if seed is None:
        return None
    digest = blake2b("/".join(map(str, (seed, *path))).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
