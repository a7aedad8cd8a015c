"""How a tier decodes: the contract of all policies, and plain decoding, which the others build on."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from hashlib import blake2b

from tiers.decoding.decoder import Decoder
from tiers.decoding.prompt import Prompt
from tiers.policies.echo import echoed
from tiers.tier import Delta, GenerationRequest, is_long


class Policy(ABC):
    """Contract: `stream` follows `Tier.generate`, but may already raise at the call; closing it early leaves nothing
    running in the core."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder

    @abstractmethod
    def stream(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        """Answer `request`."""

    def prompt(self, request: GenerationRequest) -> Prompt:
        """Return what the model reads of the request."""
        return self.decoder.prompt(request)

    async def read(self, request: GenerationRequest) -> None:
        """Encode the prompt that `stream` needs; on a thread where it is long or its template slow. Raises
        `TierRequestError`."""
        prompt = self.prompt(request)
        if not prompt.is_encoded and (is_long(request) or self.decoder.tokenizer.renders_slowly):
            try:
                await self.decoder.threads.run(request.salt, prompt.ids)
            except asyncio.CancelledError:
                prompt.give_up()
                raise

    def count_prompt_tokens(self, request: GenerationRequest, most: int) -> int:
        """Return the number of tokens that the model reads before it writes the first one; `most` as in
        `Prompt.count`."""
        return self.prompt(request).count(most)


class Plain(Policy):
    """Decode once per choice."""

    def stream(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        """See `Policy.stream`."""
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
