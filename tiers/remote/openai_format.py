"""OpenAI's chat and completion wire format on the client side: request bodies out, stream chunks and errors in."""

import time
from collections.abc import Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Annotated, Any

import msgspec

from inference_core.io.json_errors import JSON_ERRORS
from tiers.catalog.tier_spec import RemoteSpec
from tiers.errors import TierError
from tiers.remote.optional_fields import ALL_SAMPLING, NEUTRAL, SERVICE_FIELDS, sampling_of
from tiers.tier import ChatMessage, Delta, FinishReason, GenerationRequest, TextLogprob, Usage
from tiers.tool_types import Tool, ToolCallDelta

MAX_RETRY_AFTER_SECONDS = 300.0
# Kinds of servers that render the model's own chat template: they take its variables, and earlier thoughts.
TEMPLATED = ("vllm", "sglang", "llama-server")
# All that text completions have of the fields that mean something to a provider alone.
_OF_COMPLETIONS = ("user",)


class WireError(msgspec.Struct):
    """The error object of OpenAI and of most compatible servers. `retry_after_seconds`: as other servers say it in
    their body instead of a header."""

    message: str = ""
    type: str | None = None
    param: str | None = None
    code: str | int | None = None
    retry_after_seconds: float | None = None


class _TopLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[Annotated[int, msgspec.Meta(ge=0, le=255)]] | None = None


class _TokenLogprob(_TopLogprob):
    top_logprobs: list[_TopLogprob] = []


class _Logprobs(msgspec.Struct):
    """Chat replies fill `content`; completions fill the three parallel lists."""

    content: list[_TokenLogprob] | None = None
    tokens: list[str] | None = None
    token_logprobs: list[float | None] | None = None
    top_logprobs: list[dict[str, float] | None] | None = None
    text_offset: list[int] | None = None


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _ToolCall(msgspec.Struct):
    index: int = 0
    id: str | None = None
    function: _Function | None = None

    def delta(self, index: int) -> ToolCallDelta:
        function = self.function or _Function()
        return ToolCallDelta(
            index=index, id=self.id or "", name=function.name or "", arguments=function.arguments or ""
        )


class _Message(msgspec.Struct):
    content: str | None = None
    tool_calls: list[_ToolCall] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(msgspec.Struct):
    """A choice of a stream (`delta`), of a whole chat (`message`), or of a completion (`text`).

    `stop_reason` (vLLM), `matched_stop` (SGLang): the stop string or the stop token's id that ended it.
    """

    index: int = 0
    delta: _Message | None = None
    message: _Message | None = None
    text: str | None = None
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None
    stop_reason: Any = None
    matched_stop: Any = None

    @property
    def stop_sequence(self) -> str | None:
        """The stop string that ended it, if the server reports it."""
        return next((stop for stop in (self.stop_reason, self.matched_stop) if isinstance(stop, str)), None)


class _PromptDetails(msgspec.Struct):
    """`cache_write_tokens` as OpenRouter reports them."""

    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class _CompletionDetails(msgspec.Struct):
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct):
    """`total_tokens` is read for xAI, which counts reasoning there and not in `completion_tokens`."""

    prompt_tokens: int = 0
    completion_tokens: int | None = None
    total_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _CompletionDetails | None = None

    def counts(self) -> Usage:
        """Return the token counts."""
        prompt, completion = self.prompt_tokens_details, self.completion_tokens_details
        return Usage(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=max(
                self.completion_tokens or 0, (self.total_tokens - self.prompt_tokens) if self.total_tokens else 0
            ),
            cached_tokens=(prompt and prompt.cached_tokens) or 0,
            cache_write_tokens=(prompt and prompt.cache_write_tokens) or 0,
            reasoning_tokens=(completion and completion.reasoning_tokens) or 0,
        )


class Chunk(msgspec.Struct):
    """One event of a stream, or a whole answer. Unknown fields are ignored, missing ones have neutral values."""

    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: WireError | str | None = None

    def deltas(self) -> list[Delta]:
        """Return this chunk's deltas in the order that `Delta` promises."""
        choices = self.choices or []
        return _deltas(choices[0]) if len(choices) == 1 else [delta for one in choices for delta in _deltas(one)]


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
        body["messages"] = [_wire_message(message, templated) for message in request.messages]
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


def _wire_message(message: ChatMessage, with_thoughts: bool) -> dict[str, Any]:
    wire: dict[str, Any] = {"role": message.role, "content": message.content}
    if with_thoughts and message.reasoning:
        # Older and newer servers read one name or the other.
        wire["reasoning_content"] = wire["reasoning"] = message.reasoning
    if message.parts:
        wire["content"] = [part.wire for part in message.parts]
    if message.name is not None:
        wire["name"] = message.name
    if message.tool_call_id is not None:
        wire["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        wire["content"] = wire["content"] or None
        wire["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    return wire


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


def parse_chunk(data: bytes) -> Chunk:
    """Parse one event's data, or a whole answer. Bytes that are not UTF-8 become U+FFFD.

    Raises TierError if it violates the protocol.
    """
    try:
        try:
            return _decode(data)
        except UnicodeDecodeError:
            return _decode(data.decode(errors="replace"))
    except JSON_ERRORS as error:
        shown = data[:200].decode(errors="replace")
        raise TierError(f"the server sent what is not a chunk of an answer ({error}): {shown!r}") from error


def parse_error(body: bytes) -> WireError:
    """Return the error of a reply: OpenAI's envelope, a bare error object, `detail`, or else the text itself."""
    try:
        table = msgspec.json.decode(body)
        inner = table.get("error", table) if isinstance(table, dict) else table
        if isinstance(inner, dict):
            message = inner.get("message") or inner.get("detail") or inner
            param, code = inner.get("param"), inner.get("code")
            return WireError(
                message=str(message),
                param=param if isinstance(param, str) else None,
                code=code if isinstance(code, str | int) else None,
            )
        return WireError(message=str(inner))
    except JSON_ERRORS:
        return WireError(message=body.decode("utf-8", errors="replace")[:500].strip())


def parse_retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of a `Retry-After` header, at most `MAX_RETRY_AFTER_SECONDS`; None without one.

    Seconds or a date (RFC 9110, 10.2.3). An invalid value is ignored.
    """
    stated = headers.get("retry-after", "").strip()
    try:
        seconds = float(stated) if stated[:1].isdigit() else parsedate_to_datetime(stated).timestamp() - time.time()
        return min(max(seconds, 0.0), MAX_RETRY_AFTER_SECONDS)
    except (ValueError, OverflowError):
        return None


def _deltas(choice: _Choice) -> list[Delta]:
    message = choice.delta or choice.message or _NO_MESSAGE
    text = message.content or choice.text or ""
    reasoning = message.reasoning_content or message.reasoning or ""
    deltas: list[Delta] = []
    if not (reasoning or choice.logprobs or message.tool_calls):
        # Only a piece of text, as nearly every chunk is.
        if text:
            deltas.append(Delta(index=choice.index, text=text))
    else:
        logprobs = _logprobs(choice.logprobs) if choice.logprobs is not None else None
        # In a whole message calls are numbered by their position alone.
        numbered = enumerate(message.tool_calls or [])
        calls = [call.delta(call.index if choice.message is None else place) for place, call in numbered]
        if text or reasoning or logprobs or calls:
            more = Delta(index=choice.index, text=text, reasoning=reasoning, logprobs=logprobs, tool_calls=calls)
            deltas.append(more)
    if choice.finish_reason:
        reason = _FINISH_REASONS.get(choice.finish_reason, "stop")
        deltas.append(Delta(index=choice.index, finish_reason=reason, stop_sequence=choice.stop_sequence))
    return deltas


_decode = msgspec.json.Decoder(Chunk).decode
_NO_MESSAGE = _Message()
# OpenAI's reasons and `error`; every other reason is a stop.
_FINISH_REASONS: dict[str, FinishReason] = {
    "length": "length",
    "tool_calls": "tool_calls",
    "content_filter": "content_filter",
    "error": "error",
}


def _logprobs(logprobs: _Logprobs) -> list[TextLogprob] | None:
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


def _bytes(token: _TopLogprob) -> bytes:
    return bytes(token.bytes) if token.bytes is not None else token.token.encode("utf-8", errors="replace")
