"""Whole answers as OpenAI shapes them, built from a finished Answer; and log-probabilities in the shapes of both
APIs."""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from gateway.inference.answer import Answer
from quality.records.record import CacheUse, continued_from
from tiers.chat_state import collected_state
from tiers.conversation import Call, UrlCitation
from tiers.deltas import CollectedChoice
from tiers.dialects.constraints import CUSTOM, custom_names, input_of
from tiers.tier import TextLogprob, ThoughtEnd, Usage


class TopLogprob(msgspec.Struct, frozen=True):
    """An alternative at one position; `bytes` are its UTF-8 bytes, which alone need not be valid text: `token` has
    U+FFFD in their place."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprobs(msgspec.Struct, frozen=True):
    """A drawn token of a chat answer with its most likely alternatives, best first. `token` has U+FFFD where its bytes
    are no whole character; `bytes` are exact, and those of all tokens joined are the answer's UTF-8."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True):
    """`choices[].logprobs` of a chat."""

    content: list[TokenLogprobs]
    refusal: None = None


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """`choices[].logprobs` of a text completion: four lists of one entry per token.

    A token that is no text by itself, as a part of a character is not, is written `bytes:\\xf0\\x9f`. `top_logprobs`
    are the most likely tokens and the one that stands there. `text_offset`: characters of the choice's text before
    the token. The first token of a repeated prompt has no log-probabilities.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


def chat_logprobs(drawn: list[TextLogprob]) -> ChatLogprobs:
    """Drawn tokens in chat's shape."""
    return ChatLogprobs(
        [
            TokenLogprobs(
                one.token,
                0.0 if one.logprob is None else one.logprob,
                list(one.token_bytes),
                [TopLogprob(token, logprob, list(raw)) for token, raw, logprob in one.top],
            )
            for one in drawn
        ]
    )


def completion_logprobs(drawn: list[TextLogprob], offset: int = 0) -> CompletionLogprobs:
    """Tokens in the older shape; where the tier does not say where they begin, the first does at `offset`."""
    offsets: list[int] = []
    for one in drawn:
        offsets.append(offset if one.start is None else one.start)
        offset = offsets[-1] + len(one.token)
    return CompletionLogprobs(
        [_written(one.token, one.token_bytes) for one in drawn],
        [one.logprob for one in drawn],
        [_tops(one) for one in drawn],
        offsets,
    )


def _tops(one: TextLogprob) -> dict[str, float] | None:
    if one.logprob is None:
        return None
    tops = {_written(token, raw): logprob for token, raw, logprob in one.top}
    return tops | {_written(one.token, one.token_bytes): one.logprob}


def _written(token: str, raw: bytes) -> str:
    if token.encode("utf-8", errors="replace") == raw:
        return token
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


class PromptDetails(msgspec.Struct, frozen=True):
    """`usage.prompt_tokens_details`: tokens that a prefix cache had, and that a provider wrote into its own."""

    cached_tokens: int
    cache_write_tokens: int


class CompletionDetails(msgspec.Struct, frozen=True):
    """`usage.completion_tokens_details`: tokens spent on thinking."""

    reasoning_tokens: int


class UsageBody(msgspec.Struct, frozen=True):
    """`usage`, of whole answers and of the last chunk of a stream."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class Routed(msgspec.Struct, frozen=True):
    """`x_aio`: how the answer came about; on streams it travels with the usage, as the headers left long before.

    `latency_ms`: from the request's arrival to the answer's end (SPEC GW-10). `ttft_ms`: to its first text; to its
    end, if it came in one piece or has no text. `classifier`: the version that decided. `version`: hash of all that
    affects the answers of the tier (`Catalog.tier_fingerprint`): its model's file and arithmetic, its server, its
    policy. `cache`: what the response cache had to do with it, null for nothing. `cost_estimated`: there, and true,
    where a tier's price was not given and `cost_usd` rests on an estimate. `thought_end`: there if a thought was ended
    early, and why; `dropped_turns`: how many of the oldest turns were left out for length, there if there are any.
    `target`: the target that answered in place of the tier, there if one did; `continued_from`: the tiers that gave
    the beginning of the answer and failed, there if it went on at `tier`.
    """

    decision_id: str
    tier: int
    model: str
    p_ok: float
    cost_usd: float
    latency_ms: float
    ttft_ms: float
    overhead_ms: float
    classifier: str
    reason: str
    version: str
    cache: CacheUse | None = None
    cost_estimated: Literal[True] | UnsetType = UNSET
    thought_end: ThoughtEnd | UnsetType = UNSET
    dropped_turns: int | UnsetType = UNSET
    target: str | UnsetType = UNSET
    continued_from: list[str] | UnsetType = UNSET


class FunctionBody(msgspec.Struct, frozen=True):
    """The function of a call; `arguments` is JSON text."""

    name: str
    arguments: str


class CustomBody(msgspec.Struct, frozen=True):
    """The custom tool of a call, and the text that it is given."""

    name: str
    input: str


class ToolCallBody(msgspec.Struct, frozen=True):
    """A call of a function or of a custom tool. `extra_content`: as the server gave it, which needs it back."""

    id: str
    type: str
    function: FunctionBody | UnsetType = UNSET
    custom: CustomBody | UnsetType = UNSET
    extra_content: msgspec.Raw | UnsetType = UNSET


FUNCTION_CALL = "function_call"
"""What a call is for a caller that gave `functions`, and why its answer ends."""


class ChatMessageBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """An assistant's turn; `reasoning_content` is what a chain-of-thought tier thought before it answered, and so is
    `reasoning`: clients read one name or the other.

    `content` is null where there is nothing but calls, or a `refusal`: what the model says instead of an answer.
    `annotations`: what the content cites. `reasoning_details`, `extra_content`: as the server gave them, which needs
    them back. `images`, `audio`: what it made. `function_call`: instead of `tool_calls`, for a caller of `functions`.
    """

    role: str
    content: str | None
    refusal: str | None
    annotations: list[Any]
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCallBody] | None = None
    function_call: FunctionBody | UnsetType = UNSET
    reasoning_details: msgspec.Raw | UnsetType = UNSET
    extra_content: msgspec.Raw | UnsetType = UNSET
    images: msgspec.Raw | UnsetType = UNSET
    audio: msgspec.Raw | UnsetType = UNSET


class ChatChoice(msgspec.Struct, frozen=True):
    """One choice of a chat."""

    index: int
    message: ChatMessageBody
    logprobs: ChatLogprobs | None
    finish_reason: str | None


class CompletionChoice(msgspec.Struct, frozen=True):
    """One choice of a text completion."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None


class ChatAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a whole chat answer; `service_tier` is there if the caller asked for one."""

    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageBody
    system_fingerprint: str
    service_tier: str | msgspec.UnsetType = msgspec.UNSET
    x_aio: Routed


class CompletionAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a whole text completion."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageBody
    system_fingerprint: str
    x_aio: Routed


def whole_answer(answer: Answer, fingerprint: str) -> ChatAnswer | CompletionAnswer:
    shared: dict[str, Any] = {
        "id": answer.request.request_id,
        "created": int(answer.request.created_at),
        "model": answer.tier.model,
        "usage": usage_body(answer.usage),
        "system_fingerprint": fingerprint,
        "x_aio": routed(answer),
    }
    numbered = enumerate(answer.choices)
    if answer.request.api == "chat":
        choices = [_chat_choice(place, choice, answer) for place, choice in numbered]
        return ChatAnswer(choices=choices, service_tier=answer.request.service_tier or msgspec.UNSET, **shared)
    return CompletionAnswer(choices=[_completion_choice(place, choice, answer) for place, choice in numbered], **shared)


def _chat_choice(index: int, choice: CollectedChoice, answer: Answer) -> ChatChoice:
    tooling = answer.request.generation.tooling
    custom = frozenset() if tooling is None else custom_names(tooling)
    calls = [_call(call, custom) for call in choice.tool_calls]
    refusal, thoughts = choice.refusal or None, choice.reasoning or None
    content = choice.content or (None if calls or refusal else "")
    cited = annotations_of(choice.annotations) if choice.annotations else []
    message = ChatMessageBody("assistant", content, refusal, cited, thoughts, thoughts, calls or None)
    finish_reason: str | None = choice.finish_reason
    if calls and tooling is not None and tooling.as_functions:
        message = msgspec.structs.replace(message, tool_calls=None, function_call=calls[0].function)
        finish_reason = FUNCTION_CALL if finish_reason == "tool_calls" else finish_reason
    if choice.opaque and (state := collected_state(choice)):
        message = msgspec.structs.replace(message, **{block.type: msgspec.Raw(block.json) for block in state})
    drawn = chat_logprobs(choice.logprobs) if answer.request.generation.sampling.logprobs is not None else None
    return ChatChoice(index, message, drawn, finish_reason)


def annotations_of(cited: list[UrlCitation]) -> list[Any]:
    """What a text cites, as chats show it."""
    return [{"type": "url_citation", "url_citation": msgspec.structs.asdict(one)} for one in cited]


def _call(call: Call, custom: frozenset[str]) -> ToolCallBody:
    if call.name in custom:
        return ToolCallBody(call.id, CUSTOM, custom=CustomBody(call.name, input_of(call.arguments)))
    extra = UNSET if call.source is None else msgspec.Raw(call.source.json)
    return ToolCallBody(call.id, "function", FunctionBody(call.name, call.arguments), extra_content=extra)


def _completion_choice(index: int, choice: CollectedChoice, answer: Answer) -> CompletionChoice:
    drawn = completion_logprobs(choice.logprobs) if answer.request.generation.sampling.logprobs is not None else None
    return CompletionChoice(index, choice.echo + choice.text, drawn, choice.finish_reason)


def usage_body(usage: Usage | None) -> UsageBody:
    """Token counts in OpenAI's shape."""
    usage = usage or Usage(prompt_tokens=0, completion_tokens=0)
    return UsageBody(
        usage.prompt_tokens,
        usage.completion_tokens,
        usage.prompt_tokens + usage.completion_tokens,
        PromptDetails(usage.cached_tokens, usage.cache_write_tokens),
        CompletionDetails(usage.reasoning_tokens),
    )


def routed(answer: Answer) -> Routed:
    """How an answer that has ended came about."""
    before, timings, tier, decision = answer.escalated_from, answer.timings, answer.tier, answer.decision
    return Routed(
        decision_id=answer.request.request_id,
        tier=tier.number,
        model=tier.model,
        p_ok=answer.p_ok,
        cost_usd=answer.cost_usd,
        latency_ms=_to_microseconds(timings.e2e_ms),
        ttft_ms=_to_microseconds(timings.e2e_ms if timings.ttft_ms is None else timings.ttft_ms),
        overhead_ms=_to_microseconds(timings.overhead_ms),
        classifier=decision.inputs.prediction.classifier_version,
        reason=decision.reason if before is None else f"{decision.reason}; {before.reason}",
        version=tier.version,
        cache=answer.source.cached,
        cost_estimated=True if answer.cost_is_estimated else UNSET,
        thought_end=answer.thought_end or UNSET,
        dropped_turns=answer.request.dropped_turns or UNSET,
        target=tier.name if tier.is_target else UNSET,
        continued_from=continued_from(answer.attempts) or UNSET,
    )


def _to_microseconds(ms: float) -> float:
    """Milliseconds to whole microseconds: what `round` returns, which goes by way of a text."""
    return int(ms * 1e3 + 0.5) / 1e3
