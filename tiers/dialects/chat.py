"""OpenAI's chat and completion wire format on the client side: request bodies out, errors and token counts in.

Servers have several names for the counts; all are read.
"""

import math
from typing import Any

import msgspec

from tiers.catalog.tier_spec import RemoteSpec
from tiers.chat_state import PART_TYPES
from tiers.conversation import BREAKPOINT, Content, Text, Tool, Turn
from tiers.dialects.rules import ALL_SAMPLING, NEUTRAL, SERVICE_FIELDS, sampling_of
from tiers.dialects.usage_counter import Tally
from tiers.tier import GenerationRequest, Usage

# Kinds of servers that render the model's own chat template, and take its variables.
TEMPLATED = ("vllm", "sglang", "llama-server")
SEEN = "OK."
"""What an assistant says between a result and the user, where a server wants that."""
# Stands for the media of a result.
MEDIA_FOLLOW = "(The image of this result follows in the next message.)"
# All that text completions have of the fields that mean something to a provider alone.
_OF_COMPLETIONS = ("user",)


def request_body(
    remote: RemoteSpec, request: GenerationRequest, max_tokens: int | None, *, streamed: bool = True
) -> dict[str, Any]:
    """Return the JSON body of a call: what caller or catalogue set, the model, and what reading the answer needs."""
    sampling, given = request.sampling, request.given
    is_chat = request.messages is not None
    body: dict[str, Any] = {"model": remote.model, "stream": streamed}
    if max_tokens is not None:
        body[remote.max_tokens_field if is_chat else "max_tokens"] = max_tokens
    if request.messages is not None:
        templated = remote.kind in TEMPLATED
        body["messages"] = [_wire_message(message) for message in request.messages]
        if templated and request.template_variables:
            body["chat_template_kwargs"] = request.template_variables
    else:
        body["prompt"] = request.prompt
    if streamed and remote.stream_usage:
        body["stream_options"] = {"include_usage": True}
    if given or sampling_of(sampling) != NEUTRAL:
        triples = zip(ALL_SAMPLING, sampling_of(sampling), NEUTRAL, strict=True)
        body |= {name: value for name, value, neutral in triples if value != neutral or name in given}
    if sampling.logit_bias:
        body["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias.items()}
    if request.stop:
        body["stop"] = list(request.stop)
    if request.include_stop:
        body["include_stop_str_in_output"] = True
    if request.n != 1 or "n" in given:
        body["n"] = request.n
    if is_chat and request.reasoning_effort is not None:
        body["reasoning_effort"] = request.reasoning_effort
    if is_chat and request.reasoning_budget is not None:
        body["thinking_token_budget"] = request.reasoning_budget
    body |= _constraints(request)
    if sampling.logprobs is not None:
        body["logprobs"] = is_chat or sampling.logprobs
        if is_chat and (sampling.logprobs or "top_logprobs" in given):
            body["top_logprobs"] = sampling.logprobs
    if request.passed:
        for name in SERVICE_FIELDS if is_chat else _OF_COMPLETIONS:
            if name in request.passed:
                body[name] = request.passed[name]
    return body


def part_of(block: Content) -> dict[str, Any]:
    """Return a part of a message."""
    kind = "text" if isinstance(block, Text) else PART_TYPES[block.kind]
    part = {"type": kind, kind: block.text if isinstance(block, Text) else block.data}
    return part if block.breakpoint is None else part | {BREAKPOINT: block.breakpoint}


def _wire_message(message: Turn) -> dict[str, Any]:
    wire: dict[str, Any] = {"role": message.role, "content": message.text}
    if parts := message.parts:
        wire["content"] = [part_of(block) for block in parts]
    if message.name is not None:
        wire["name"] = message.name
    if message.call_id is not None:
        wire["tool_call_id"] = message.call_id
    if message.calls:
        wire["content"] = wire["content"] or None
        wire["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.calls
        ]
    return wire


def with_text_results(messages: list[dict[str, Any]], *, answered: bool) -> list[dict[str, Any]]:
    """Return the conversation with results of tools as texts, which is all that the API has of them; their media are
    with what the user says next, and after a word of the assistant where results are to be `answered`."""
    found: list[dict[str, Any]] = []
    shown: list[Any] = []
    for message in [*messages, None]:
        if shown and (message is None or message["role"] != "tool"):
            said = message["content"] if message is not None and message["role"] == "user" else []
            shown += [{"type": "text", "text": said}] if isinstance(said, str) else said
            if answered and found[-1]["role"] == "tool":
                found.append({"role": "assistant", "content": SEEN})
            found.append({"role": "user", "content": shown})
            shown = []
            if said:
                continue
        if message is not None and message["role"] == "tool" and isinstance(message["content"], list):
            texts = [part["text"] for part in message["content"] if part["type"] == "text"]
            media = [part for part in message["content"] if part["type"] != "text"]
            if media:
                shown += media
                texts.append(MEDIA_FOLLOW)
            message = message | {"content": "\n\n".join(texts)}
        if message is not None:
            found.append(message)
    return found


def _constraints(request: GenerationRequest) -> dict[str, Any]:
    """Return the fields for tools and grammars; vLLM's fields where OpenAI's API has none."""
    body: dict[str, Any] = {}
    grammar, tooling = request.sampling.grammar, request.tooling
    if request.response_format is not None:
        body["response_format"] = request.response_format
    elif grammar is not None:
        text = grammar.text
        value = {"json_object": True, "json_schema": text, "regex": text, "lark": text}.get(grammar.kind)
        name = {"json_schema": "json", "lark": "grammar"}.get(grammar.kind, grammar.kind)
        body["structured_outputs"] = {name: msgspec.json.decode(text) if grammar.kind == "choice" else value}
    if tooling is not None:
        body["tools"] = [_wire_tool(tool) for tool in tooling.tools]
        if tooling.choice == "named":
            body["tool_choice"] = {"type": "function", "function": {"name": tooling.name}}
        elif tooling.choice != "auto" or "tool_choice" in request.given:
            body["tool_choice"] = tooling.choice
        if "parallel_tool_calls" in request.given or not (tooling.parallel or tooling.choice == "named"):
            body["parallel_tool_calls"] = tooling.parallel
    return body


def _wire_tool(tool: Tool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.parameters is not None:
        function["parameters"] = tool.parameters
    if tool.strict:
        function["strict"] = True
    return {"type": "function", "function": function}


class _Written(msgspec.Struct):
    """What Anthropic's models have written to the cache for an hour."""

    ephemeral_1h_input_tokens: int | None = None


class _PromptDetails(msgspec.Struct):
    """`cache_write_tokens`: OpenRouter's name, `cache_creation_tokens`: LiteLLM's."""

    cached_tokens: int | None = None
    audio_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    cache_creation_tokens: int | None = None
    cache_creation_token_details: _Written | None = None


class _CompletionDetails(msgspec.Struct):
    reasoning_tokens: int | None = None
    audio_tokens: int | None = None
    image_tokens: int | None = None


class _CostDetails(msgspec.Struct):
    upstream_inference_cost: float | None = None


class _Cost(msgspec.Struct):
    total_cost: float | None = None
    total: float | None = None


_NOTHING_USED = Usage()
TICKS = 10**10
"""Of xAI's, in a US dollar."""


class ChatUsage(msgspec.Struct):
    """`total_tokens` is read for xAI, which counts reasoning there and not in `completion_tokens`.

    Cached tokens of the prompt: `cached_tokens` (Moonshot), `num_cached_tokens`, DeepSeek's hits, or Anthropic's names
    as gateways pass them on, whose prompt may be without them. `cost`: what OpenRouter charges, in US dollars; of a key
    of one's own (`is_byok`) the provider's own cost comes on top. Perplexity gives a sum in an object, DeepInfra
    `estimated_cost`, and xAI ten billionths of a dollar.
    """

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _CompletionDetails | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _PromptDetails | None = None
    cached_tokens: int | None = None
    num_cached_tokens: int | None = None
    prompt_cache_hit_tokens: int | None = None
    prompt_cache_miss_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    output_tokens_details: _CompletionDetails | None = None
    cache_creation: _Written | None = None
    cost: float | _Cost | None = None
    total_cost: float | None = None
    estimated_cost: float | None = None
    cost_in_usd_ticks: int | None = None
    is_byok: bool | None = None
    cost_details: _CostDetails | None = None
    num_sources_used: int | None = None

    def report(self, tally: Tally) -> None:
        """Note the counts. What is left out here was counted before, or is not counted at all."""
        known = tally.claimed
        if known is not None and not (self.prompt_tokens or self.completion_tokens or self.input_tokens or self.cost):
            # Zeros after the counts.
            return
        cached, written = self._cached(), self._written()
        prompt, completion = self._prompt((cached or 0) + (written or 0)), self.completion_tokens
        if completion is None or self.total_tokens != completion + (self.prompt_tokens or 0):
            completion = self._completion(prompt)
        if completion is None:
            # The text is estimated until its tokens are counted.
            if prompt is not None and known is None:
                tally.read_prompt(prompt)
            return
        read = self.prompt_tokens_details or self.input_tokens_details
        details = self.completion_tokens_details or self.output_tokens_details
        if read is not None or details is not None or self.num_sources_used:
            self._report_extras(read, details, tally)
        reasoning = None if details is None else details.reasoning_tokens
        before = known or _NOTHING_USED
        if prompt is None:
            prompt = tally.prompt_tokens if known is None else known.prompt_tokens
        tally.report(
            Usage(
                prompt_tokens=prompt,
                completion_tokens=completion,
                cached_tokens=before.cached_tokens if cached is None else cached,
                cache_write_tokens=before.cache_write_tokens if written is None else written,
                cache_write_1h_tokens=self._written_for_an_hour() or before.cache_write_1h_tokens,
                reasoning_tokens=before.reasoning_tokens if reasoning is None else reasoning,
                cost_usd=self._cost() or before.cost_usd,
            )
        )

    def _report_extras(self, read: _PromptDetails | None, details: _CompletionDetails | None, tally: Tally) -> None:
        found = {"num_sources_used": self.num_sources_used}
        if read is not None:
            found["audio_prompt_tokens"] = read.audio_tokens
        if details is not None:
            found |= {"audio_completion_tokens": details.audio_tokens, "image_completion_tokens": details.image_tokens}
        tally.note_extras(found)

    def _prompt(self, apart: int) -> int | None:
        stated = self.input_tokens if self.prompt_tokens is None else self.prompt_tokens
        if stated is None and self.prompt_cache_hit_tokens is not None:
            return self.prompt_cache_hit_tokens + (self.prompt_cache_miss_tokens or 0)
        # The cache has more than all of the prompt: then it is counted without that.
        return stated + apart if stated is not None and apart > stated else stated

    def _completion(self, prompt: int | None) -> int | None:
        stated = self.output_tokens if self.completion_tokens is None else self.completion_tokens
        if self.total_tokens is None or self.prompt_tokens is None or prompt is None:
            return stated
        return max(stated or 0, self.total_tokens - prompt)

    def _cached(self) -> int | None:
        details = self.prompt_tokens_details or self.input_tokens_details
        if details is not None and (found := details.cached_tokens or details.cache_read_tokens):
            return found
        named = self.cached_tokens or self.prompt_cache_hit_tokens
        named = named or self.cache_read_input_tokens or self.num_cached_tokens
        return named or (None if details is None else details.cached_tokens)

    def _written(self) -> int | None:
        details = self.prompt_tokens_details or self.input_tokens_details
        if details is None:
            return self.cache_creation_input_tokens
        return details.cache_write_tokens or details.cache_creation_tokens or self.cache_creation_input_tokens

    def _written_for_an_hour(self) -> int | None:
        """By Anthropic's name or LiteLLM's."""
        details = self.prompt_tokens_details or self.input_tokens_details
        told = self.cache_creation or (details and details.cache_creation_token_details)
        return (told and told.ephemeral_1h_input_tokens) or None

    def _cost(self) -> float:
        """US dollars; 0 where the server does not tell, or nothing that can be."""
        cost: Any = self.cost.total_cost or self.cost.total if isinstance(self.cost, _Cost) else self.cost
        cost = cost or self.total_cost or self.estimated_cost or (self.cost_in_usd_ticks or 0) / TICKS
        if self.is_byok and self.cost_details is not None:
            cost += self.cost_details.upstream_inference_cost or 0.0
        return cost if math.isfinite(cost) and cost > 0 else 0.0
