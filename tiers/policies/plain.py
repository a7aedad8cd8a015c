"""Plain decoding: continue the prompt."""

from collections.abc import AsyncGenerator

from tiers.policies.echo import echoed
from tiers.policies.policy import Policy
from tiers.tier import Delta, GenerationRequest


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
