"""Plain decoding: the prompt goes in, the continuation comes out."""

from collections.abc import AsyncGenerator

from tiers.policies.policy import Policy
from tiers.tier import Delta, GenerationRequest


class Plain(Policy):
    """Decode once per choice."""

    def stream(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        """See `Policy.stream`."""
        prompt_ids = self.decoder.prompt_ids(request)
        return self.decoder.decode(
            request,
            prompt_ids,
            sampling=request.sampling,
            max_tokens=self.decoder.room(request, len(prompt_ids)),
            n=request.n,
            stop=request.stop,
        )
