"""A chunk of an answer of OpenAI's chat and completion API, or a whole one, with the fields that its servers have."""

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from tiers.conversation import ToolCallDelta, UrlCitation
from tiers.dialects.chat_form import (
    ChatChoice,
    ChatMessageFields,
    CompletionDetails,
    CompletionLogprobs,
    PromptDetails,
    TokenLogprobs,
    TopLogprob,
    UsageBody,
)
from tiers.dialects.chat_opaque import opaque_json
from tiers.dialects.lenient_json import CallPiece
from tiers.dialects.usage_counter import Tally
from tiers.tier import TextLogprob, Usage


class _Written(msgspec.Struct):
    """What Anthropic's models have written to the cache for an hour."""

    ephemeral_1h_input_tokens: int | None = None


class _PromptDetails(PromptDetails, frozen=True):
    """Details of the prompt's tokens, by all names."""

    audio_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_creation_tokens: int | None = None
    """LiteLLM's name of `cache_write_tokens`, which is OpenRouter's."""
    cache_creation_token_details: _Written | None = None


class _CompletionDetails(CompletionDetails, frozen=True):
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


class ChatUsage(UsageBody, frozen=True):
    """The usage of an answer, by all names that servers have for it.

    Cached tokens of the prompt are `cached_tokens` (Moonshot), `num_cached_tokens`, DeepSeek's hits, or Anthropic's
    names as gateways pass them on, whose prompt may be without them. xAI counts reasoning in `total_tokens` and not in
    `completion_tokens`.
    """

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
    """What OpenRouter charges, in US dollars. With a key of one's own (`is_byok`) the provider's own cost comes on top.
    Perplexity gives a sum in an object, DeepInfra `estimated_cost`, and xAI ten billionths of a dollar.
    """
    total_cost: float | None = None
    estimated_cost: float | None = None
    cost_in_usd_ticks: int | None = None
    is_byok: bool | None = None
    cost_details: _CostDetails | None = None
    num_sources_used: int | None = None

    def report(self, tally: Tally) -> None:
        """Note the counts. What is left out here was counted before, or is not counted at all."""
        claimed = tally.claimed
        if claimed is not None and not (self.prompt_tokens or self.completion_tokens or self.input_tokens or self.cost):
            # Zeros after the counts.
            return
        cached, written = self._cached(), self._written()
        prompt, completion = self._prompt((cached or 0) + (written or 0)), self.completion_tokens
        if completion is None or self.total_tokens != completion + (self.prompt_tokens or 0):
            completion = self._completion(prompt)
        if completion is None:
            # The text is estimated until its tokens are counted.
            if prompt is not None and claimed is None:
                tally.read_prompt(prompt)
            return
        read = self.prompt_tokens_details or self.input_tokens_details
        details = self.completion_tokens_details or self.output_tokens_details
        if read is not None or details is not None or self.num_sources_used:
            self._report_extras(read, details, tally)
        reasoning = None if details is None else details.reasoning_tokens
        before = claimed or _NOTHING_USED
        if prompt is None:
            prompt = tally.prompt_tokens if claimed is None else claimed.prompt_tokens
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
        extras = {"num_sources_used": self.num_sources_used}
        if read is not None:
            extras["audio_prompt_tokens"] = read.audio_tokens
        if details is not None:
            extras |= {"audio_completion_tokens": details.audio_tokens, "image_completion_tokens": details.image_tokens}
        tally.note_extras(extras)

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
        if details is not None and (cached := details.cached_tokens or details.cache_read_tokens):
            return cached
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


class Logprobs(CompletionLogprobs, frozen=True):
    """Chats fill `content`, which may stand for it and is the first field; completions fill the lists."""

    content: list[TokenLogprobs] | None = None


class _Function(msgspec.Struct):
    """The function of a call."""

    name: str | None = None
    arguments: Any = None
    """Text; in some servers' answers an object, which may have another name."""
    parameters: Any = None
    input: Any = None
    args: Any = None

    @property
    def any_arguments(self) -> Any:
        """The arguments, by whichever name."""
        named = (self.arguments, self.parameters, self.input, self.args)
        return next((arguments for arguments in named if arguments is not None), None)


class ToolCall(_Function):
    """The function's fields stand here where a server knows no `function`."""

    index: int | None = None
    id: str | None = None
    function: _Function | None = None
    extra_content: msgspec.Raw = msgspec.Raw()

    def piece(self) -> CallPiece:
        inner = self.function or _Function()
        arguments = self.any_arguments if inner.any_arguments is None else inner.any_arguments
        return CallPiece(self.index, self.id or "", inner.name or self.name or "", arguments)

    def with_opaque(self, piece: ToolCallDelta) -> ToolCallDelta:
        """Return the piece with what its server needs back."""
        extra = opaque_json(self.extra_content) if self.extra_content else b""
        return msgspec.structs.replace(piece, extra_content=extra) if extra else piece


class _Value(msgspec.Struct):
    value: str = ""


class Part(msgspec.Struct):
    """A part of a content that is a list: of OpenAI's form, Mistral's whose thoughts are lists of their own, or one of
    another API as Databricks passes it on. A text may be an object, as in OpenAI's Assistants."""

    type: str | None = None
    text: str | _Value | None = None
    refusal: str | None = None
    thinking: "str | list[Part | str] | None" = None
    reasoning: "str | list[Part | str] | None" = None
    summary: "str | list[Part | str] | None" = None
    content: "str | list[Part | str] | None" = None
    image_url: msgspec.Raw = msgspec.Raw()
    id: str | None = None
    name: str | None = None
    input: Any = None

    @property
    def said(self) -> str:
        """Its text; "" without any."""
        return self.text.value if isinstance(self.text, _Value) else self.text or ""

    @property
    def inner(self) -> "str | list[Part | str]":
        """The text or the parts that it holds."""
        return self.thinking or self.reasoning or self.summary or self.content or ""


_Text = str | list[Part | str] | None


class _Annotation(msgspec.Struct):
    """What is cited; some servers leave out the table of its own."""

    url_citation: UrlCitation | None = None
    url: str | None = None
    link: str | None = None
    title: str | None = None
    start_index: int | None = None
    end_index: int | None = None

    @property
    def citation(self) -> UrlCitation:
        """Of either form; without an address it is none."""
        return self.url_citation or UrlCitation(
            self.url or self.link or "", self.title or "", self.start_index or 0, self.end_index or 0
        )


class Message(ChatMessageFields):
    """A message of an answer. Thoughts have a name of their own at each server."""

    content: Any = None
    """A text, which may stand for the message and is the first field, parts, or plain JSON in answer to a schema, which
    some call `text`."""
    text: str | None = None
    tool_calls: list[ToolCall] | None = None  # type: ignore[assignment]
    reasoning_content: _Text = None
    reasoning: _Text = None
    reasoning_text: str | None = None
    thinking: _Text = None
    thinking_content: _Text = None
    thought: _Text = None
    thoughts: _Text = None
    thinking_blocks: _Text = None
    cot_summary: _Text = None
    function_call: _Function | None = None  # type: ignore[assignment]
    """A call in the form of the API's first years."""
    annotations: list[_Annotation] | None = None

    @property
    def has_opaque(self) -> bool:
        """Whether there is what the server needs back."""
        return bool(self.reasoning_details or self.extra_content)

    @property
    def thought_text(self) -> str:
        """What was thought, by the first of its names."""
        said: str | list[Part | str] = next(filter(None, (getattr(self, name) for name in _THOUGHTS)), "")
        return text_of(said)

    def drop_thoughts(self) -> None:
        """Leave out what was thought."""
        for name in _THOUGHTS:
            setattr(self, name, None)

    @property
    def calls(self) -> list[ToolCall]:
        """The pieces of calls."""
        legacy = self.function_call
        return self.tool_calls or ([] if legacy is None else [ToolCall(function=legacy)])


_THOUGHTS = ("reasoning_content", "reasoning", "thinking", "reasoning_text", "thinking_content", "thought", "thoughts",
             "thinking_blocks", "cot_summary")  # fmt: skip


class Choice(ChatChoice):
    """A choice of a stream (`delta`), of a whole chat (`message`), or of a completion (`text`). Google's name of
    `finish_reason` is `finishReason`.
    """

    delta: Message | None = None
    message: Message | None = None
    text: str | None = None
    """The text of a completion, or of a server that has it outside the message, as `content` is."""
    content: str | None = None
    logprobs: Logprobs | None = None
    named_otherwise: str | None = msgspec.field(default=None, name="finishReason")
    native_finish_reason: str | None = None
    """What a provider behind OpenRouter said."""
    stop_reason: Any = None
    """vLLM's name of the stop string or the stop token's id that ended it."""
    matched_stop: Any = None
    """SGLang's name of the same."""
    usage: ChatUsage | None = None
    """Where Moonshot's streams have it."""
    error: Any = None
    """OpenRouter's error of a provider that failed in mid-answer."""

    @property
    def stop_sequence(self) -> str | None:
        """The stop string that ended it, if the server reports it."""
        if isinstance(self.stop_reason, str):
            return self.stop_reason
        return self.matched_stop if isinstance(self.matched_stop, str) else None


class _Groq(msgspec.Struct):
    usage: ChatUsage | None = None


class _Timings(msgspec.Struct):
    """llama.cpp's counts, of its versions that send no usage with a stream."""

    prompt_n: int = 0
    """Tokens of the prompt without what was cached."""
    cache_n: int = 0
    predicted_n: int = 0


class _Search(msgspec.Struct):
    search_results: list[_Annotation] = []


class Chunk(msgspec.Struct):
    """One event of a stream, or a whole answer. Unknown fields are ignored, missing ones have neutral values."""

    choices: list[Choice] | None = None
    usage: ChatUsage | None = None
    service_tier: str | None = None
    error: Any = None
    x_groq: _Groq | None = None
    timings: _Timings | None = None
    input_sensitive: bool | None = None
    """Of MiniMax's filters."""
    output_sensitive: bool | None = None
    """Of MiniMax's filters."""
    citations: list[str | _Annotation] | None = None
    """What Perplexity and xAI cite."""
    search_results: list[_Annotation] | None = None
    """What Perplexity and xAI cite."""
    web_search: list[_Annotation] | None = None
    """What Zhipu cites."""
    references: list[_Annotation] | None = None
    """What Volcengine cites."""
    search_info: _Search | None = None
    """What DashScope and Tencent cite."""

    @property
    def cited(self) -> list[str | _Annotation]:
        """What it cites."""
        lists = (self.search_results, self.web_search, self.references)
        searched = [] if self.search_info is None else self.search_info.search_results
        return [*(citation for listed in lists for citation in listed or ()), *searched, *(self.citations or ())]

    @property
    def further_counts(self) -> ChatUsage | None:
        """The usage where `usage` is left out."""
        if self.x_groq is not None:
            return self.x_groq.usage
        if (told := self.timings) is None or not told.predicted_n:
            return None
        prompt = told.prompt_n + told.cache_n
        return ChatUsage(prompt_tokens=prompt, completion_tokens=told.predicted_n, cached_tokens=told.cache_n)


def text_of(said: str | Sequence[Part | str]) -> str:
    """Return the text of a content, which may be parts of parts."""
    if isinstance(said, str):
        return said
    return "".join([part if isinstance(part, str) else part.said or text_of(part.inner) for part in said])


def logprobs_of(logprobs: Logprobs) -> list[TextLogprob] | None:
    """Return those of a chat or of a completion; None without any."""
    if logprobs.content is not None:
        return [
            TextLogprob(
                token=t.token,
                token_bytes=_bytes(t),
                logprob=t.logprob,
                top=[(o.token, _bytes(o), o.logprob) for o in t.top_logprobs],
            )
            for t in logprobs.content
        ]
    if logprobs.tokens is None:
        return None
    tops = logprobs.top_logprobs or [None] * len(logprobs.tokens)
    values = logprobs.token_logprobs or [None] * len(logprobs.tokens)
    starts: Sequence[int | None] = logprobs.text_offset or [None] * len(logprobs.tokens)
    return [
        TextLogprob(
            token=token,
            token_bytes=token.encode(),
            logprob=value if value is not None else 0.0,
            top=[(o, o.encode(), lp) for o, lp in (top or {}).items()],
            start=start,
        )
        for token, value, top, start in zip(logprobs.tokens, values, tops, starts, strict=False)
    ]


def _bytes(token: TopLogprob) -> bytes:
    return bytes(token.bytes) if token.bytes is not None else token.token.encode("utf-8", errors="replace")
