"""The interface between a tier and its way of decoding."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from hashlib import blake2b

from tiers.decoding.decoder import Decoder
from tiers.decoding.prompt import Prompt
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
        """Encode the prompt that `stream` needs; a long one on a thread. Raises `TierRequestError`."""
        prompt = self.prompt(request)
        if not prompt.is_encoded and is_long(request):
            try:
                await self.decoder.threads.run(request.salt, prompt.ids)
            except asyncio.CancelledError:
                prompt.give_up()
                raise

    def count_prompt_tokens(self, request: GenerationRequest, most: int) -> int:
        """Return the number of tokens that the model reads before it writes the first one; `most` as in
        `Prompt.count`."""
        return self.prompt(request).count(most)


def derive_seed(seed: int | None, *path: object) -> int | None:
    """Return a seed for one of several draws of a seeded request, independent of the others; None stays None."""
    if seed is None:
        return None
    digest = blake2b("/".join(map(str, (seed, *path))).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
