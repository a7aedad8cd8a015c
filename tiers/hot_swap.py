"""A tier that can be replaced by another while it serves; later requests go to the new one."""

from collections.abc import AsyncIterator

import msgspec

from inference_core.tokenization.tokenizer import Tokenizer
from tiers.attempt import ReplicaStatus
from tiers.errors import TierRequestError
from tiers.tier import Delta, GenerationRequest, Tier, TierLoad


class ReloadableTier(Tier):
    """Delegates to the active tier. Running answers stay with the tier that started them."""

    def __init__(self, current: Tier) -> None:
        self.exchange(current)
        self._started = False

    def exchange(self, tier: Tier) -> None:
        """Make `tier`, which has been started, the active one. The caller closes the previous tier."""
        self._current, self._started = tier, True
        self._take_attributes()

    def active_tier(self) -> Tier:
        """See `Tier.active_tier`."""
        return self._current

    async def prepare(self) -> None:
        """See `Tier.prepare`."""
        await self._current.prepare()

    async def start(self) -> None:
        """See `Tier.start`."""
        if not self._started:
            current = self._current
            await current.start()
            self._started = current is self._current or self._started
            self._take_attributes()

    def _take_attributes(self) -> None:
        """Show what the active tier is; its server's model and context are known once it has started."""
        tier = self._current
        self.name, self.number, self.model, self.max_context = tier.name, tier.number, tier.model, tier.max_context
        self.core_name, self.num_layers, self.version = tier.core_name, tier.num_layers, tier.version
        self.max_output, self.takes_chats = tier.max_output, tier.takes_chats
        self.is_local, self.is_target = tier.is_local, tier.is_target
        self.asks_credential = tier.asks_credential

    async def close(self) -> None:
        """See `Tier.close`."""
        await self._current.close()

    def generate(self, request: GenerationRequest) -> AsyncIterator[Delta]:
        """See `Tier.generate`."""
        return self._current.generate(request)

    def count_prompt_tokens(self, request: GenerationRequest) -> int:
        """See `Tier.count_prompt_tokens`."""
        return self._current.count_prompt_tokens(request)

    def refusal(self, request: GenerationRequest) -> TierRequestError | None:
        """See `Tier.refusal`."""
        return self._current.refusal(request)

    @property
    def weights(self) -> str:
        """See `Tier.weights`."""
        return self._current.weights

    def prompt_tokens_up_to(self, request: GenerationRequest, most: int) -> int:
        """See `Tier.prompt_tokens_up_to`."""
        return self._current.prompt_tokens_up_to(request, most)

    @property
    def tokenizer(self) -> Tokenizer | None:
        """See `Tier.tokenizer`."""
        return self._current.tokenizer

    def load(self) -> TierLoad:
        """See `Tier.load`."""
        load = self._current.load()
        return load if self._started else msgspec.structs.replace(load, healthy=False)

    def queues(self) -> dict[str, int]:
        """See `Tier.queues`."""
        return self._current.queues()

    def replicas(self) -> list[ReplicaStatus]:
        """See `Tier.replicas`."""
        return self._current.replicas()
