"""Plain decoding: the prompt goes in, the continuation comes out."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from tiers.policies.policy import Policy
from tiers.tier import Delta, GenerationRequest


class Plain(Policy):
    """Decode once per choice."""

    async def stream(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        """See `Policy.stream`."""
        prompt_ids = self.decoder.prompt_ids(request)
        decoding = self.decoder.decode(
            request,
            prompt_ids,
            sampling=request.sampling,
            max_tokens=self.decoder.room(request, len(prompt_ids)),
            n=request.n,
            stop=request.stop,
        )
        async with aclosing(decoding) as deltas:
            async for delta in deltas:
                yield delta
