"""The seam between a tier and the way it decodes."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from hashlib import blake2b

from tiers.decoder import Decoder
from tiers.tier import Delta, GenerationRequest


class Policy(ABC):
    """Contract: `stream` obeys `Tier.generate`, but may refuse at the call already; closing it early leaves nothing
    running in the core.
    """

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder

    @abstractmethod
    def stream(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        """Answer `request`."""

    def count_prompt_tokens(self, request: GenerationRequest) -> int:
        """Length of what the model reads before it writes the first token."""
        return len(self.decoder.prompt_ids(request))


def derive_seed(seed: int | None, *path: object) -> int | None:
    """A seed for one of several draws of a seeded request, independent of its siblings; None stays None."""
    if seed is None:
        return None
    digest = blake2b("/".join(map(str, (seed, *path))).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
