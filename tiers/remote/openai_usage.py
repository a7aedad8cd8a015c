"""Token counts in OpenAI's form, by all the names that servers have for them."""

import math
from typing import Any

import msgspec

from tiers.remote.usage_counter import Tally
from tiers.tier import Usage


class _PromptDetails(msgspec.Struct):
    """`cache_write_tokens`: OpenRouter's name, `cache_creation_tokens`: LiteLLM's."""

    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    cache_creation_tokens: int | None = None


class _CompletionDetails(msgspec.Struct):
    reasoning_tokens: int | None = None


class _CostDetails(msgspec.Struct):
    upstream_inference_cost: float | None = None


class ChatUsage(msgspec.Struct):
    """`total_tokens` is read for xAI, which counts reasoning there and not in `completion_tokens`.

    Cached tokens of the prompt: `cached_tokens` (Moonshot), `num_cached_tokens`, DeepSeek's hits, or Anthropic's names
    as gateways pass them on, whose prompt may be without them. `cost`: what OpenRouter charges, in US dollars; of a key
    of one's own (`is_byok`) the provider's own cost comes on top.
    """

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _CompletionDetails | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    num_cached_tokens: int | None = None
    prompt_cache_hit_tokens: int | None = None
    prompt_cache_miss_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cost: float | None = None
    is_byok: bool | None = None
    cost_details: _CostDetails | None = None

    def report(self, tally: Tally) -> None:
        """Note the counts. What is left out here was counted before, or is not counted at all."""
        known = tally.claimed
        prompt, completion = self.prompt_tokens, self.completion_tokens
        if prompt is None or self.cache_read_input_tokens or self.cache_creation_input_tokens:
            prompt = self._prompt()
        if completion is None or self.total_tokens != completion + (self.prompt_tokens or 0):
            completion = self._completion()
        if completion is None:
            # The text is estimated until its tokens are counted.
            if prompt is not None and known is None:
                tally.read_prompt(prompt)
            return
        cached, written = self._cached(), self._written()
        details = self.completion_tokens_details
        reasoning = None if details is None else details.reasoning_tokens
        before = known or Usage(prompt_tokens=tally.prompt_tokens)
        tally.report(
            Usage(
                prompt_tokens=before.prompt_tokens if prompt is None else prompt,
                completion_tokens=completion,
                cached_tokens=before.cached_tokens if cached is None else cached,
                cache_write_tokens=before.cache_write_tokens if written is None else written,
                reasoning_tokens=before.reasoning_tokens if reasoning is None else reasoning,
                cost_usd=(self._cost() if self.cost or self.is_byok else 0.0) or before.cost_usd,
            )
        )

    def _prompt(self) -> int | None:
        stated = self.input_tokens if self.prompt_tokens is None else self.prompt_tokens
        if stated is None and self.prompt_cache_hit_tokens is not None:
            return self.prompt_cache_hit_tokens + (self.prompt_cache_miss_tokens or 0)
        apart = (self.cache_read_input_tokens or 0) + (self.cache_creation_input_tokens or 0)
        # More than all of the prompt: then it is counted without them.
        return stated + apart if stated is not None and apart > stated else stated

    def _completion(self) -> int | None:
        stated = self.output_tokens if self.completion_tokens is None else self.completion_tokens
        if self.total_tokens is None or self.prompt_tokens is None:
            return stated
        return max(stated or 0, self.total_tokens - self.prompt_tokens)

    def _cached(self) -> int | None:
        details = self.prompt_tokens_details
        if details is not None and details.cached_tokens:
            return details.cached_tokens
        for named in (
            self.cached_tokens,
            self.prompt_cache_hit_tokens,
            self.cache_read_input_tokens,
            self.num_cached_tokens,
        ):
            if named:
                return named
        return None if details is None else details.cached_tokens

    def _written(self) -> int | None:
        details = self.prompt_tokens_details
        if details is None:
            return self.cache_creation_input_tokens
        return details.cache_write_tokens or details.cache_creation_tokens or self.cache_creation_input_tokens

    def _cost(self) -> float:
        """US dollars; 0 where the server does not tell, or nothing that can be."""
        cost: Any = self.cost or 0.0
        if self.is_byok and self.cost_details is not None:
            cost += self.cost_details.upstream_inference_cost or 0.0
        return cost if math.isfinite(cost) and cost > 0 else 0.0
