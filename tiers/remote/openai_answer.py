"""Answers of OpenAI's chat and completion API, chunk by chunk or whole, as deltas."""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from inference_core.io.json_errors import JSON_ERRORS
from tiers.errors import TierError
from tiers.remote.openai_format import WireError
from tiers.tier import Delta, FinishReason, TextLogprob, Usage
from tiers.tool_types import ToolCallDelta


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
