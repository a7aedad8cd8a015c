"""A chunk of an answer of OpenAI's chat and completion API, or a whole one, with the fields that its servers have."""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from tiers.chat_state import state_json
from tiers.conversation import ToolCallDelta, UrlCitation
from tiers.dialects.chat import ChatUsage
from tiers.dialects.lenient_json import LEAST_LOGPROB, CallPiece
from tiers.tier import TextLogprob


class _TopLogprob(msgspec.Struct):
    token: str
    logprob: float = LEAST_LOGPROB
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
    """`arguments`: text; an object in some servers' answers, which may have another name for it."""

    name: str | None = None
    arguments: Any = None
    parameters: Any = None
    input: Any = None
    args: Any = None

    @property
    def any_arguments(self) -> Any:
        """The arguments, by whichever name."""
        named = (self.arguments, self.parameters, self.input, self.args)
        return next((one for one in named if one is not None), None)


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

    def with_state(self, piece: ToolCallDelta) -> ToolCallDelta:
        """Return the piece with what its server needs back."""
        extra = state_json(self.extra_content) if self.extra_content else b""
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


class Message(msgspec.Struct):
    """Thoughts have a name of their own at each server. `content`: a text, parts, or plain JSON in answer to a schema,
    which some call `text`. `function_call`: of the API's first years."""

    content: Any = None
    text: str | None = None
    tool_calls: list[ToolCall] | None = None
    reasoning_content: _Text = None
    reasoning: _Text = None
    refusal: str | None = None
    reasoning_text: str | None = None
    thinking: _Text = None
    thinking_content: _Text = None
    thought: _Text = None
    thoughts: _Text = None
    thinking_blocks: _Text = None
    cot_summary: _Text = None
    function_call: _Function | None = None
    annotations: list[_Annotation] | None = None
    reasoning_details: msgspec.Raw = msgspec.Raw()
    extra_content: msgspec.Raw = msgspec.Raw()
    images: msgspec.Raw = msgspec.Raw()
    audio: msgspec.Raw = msgspec.Raw()

    @property
    def has_state(self) -> bool:
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


class Choice(msgspec.Struct):
    """A choice of a stream (`delta`), of a whole chat (`message`), or of a completion (`text`).

    `text`, or `content`: where a server has it outside the message. `stop_reason` (vLLM), `matched_stop` (SGLang): the
    stop string or the stop token's id that ended it. `usage`: where Moonshot's streams have it. `error`: OpenRouter's,
    of a provider that failed in mid-answer; `native_finish_reason`: what that provider said. `finishReason`: Google's.
    """

    index: int = 0
    delta: Message | None = None
    message: Message | None = None
    text: str | None = None
    content: str | None = None
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None
    named_otherwise: str | None = msgspec.field(default=None, name="finishReason")
    native_finish_reason: str | None = None
    stop_reason: Any = None
    matched_stop: Any = None
    usage: ChatUsage | None = None
    error: Any = None

    @property
    def stop_sequence(self) -> str | None:
        """The stop string that ended it, if the server reports it."""
        if isinstance(self.stop_reason, str):
            return self.stop_reason
        return self.matched_stop if isinstance(self.matched_stop, str) else None


class _Groq(msgspec.Struct):
    usage: ChatUsage | None = None


class _Timings(msgspec.Struct):
    """llama.cpp's counts, of its versions that send no usage with a stream. `prompt_n`: without what was cached."""

    prompt_n: int = 0
    cache_n: int = 0
    predicted_n: int = 0


class _Search(msgspec.Struct):
    search_results: list[_Annotation] = []


class Chunk(msgspec.Struct):
    """One event of a stream, or a whole answer. Unknown fields are ignored, missing ones have neutral values.
    `input_sensitive`, `output_sensitive`: MiniMax's filters. `citations`, `search_results`: what Perplexity and xAI
    cite; `web_search`: Zhipu, `references`: Volcengine, `search_info`: DashScope and Tencent."""

    choices: list[Choice] | None = None
    usage: ChatUsage | None = None
    service_tier: str | None = None
    error: Any = None
    x_groq: _Groq | None = None
    timings: _Timings | None = None
    input_sensitive: bool | None = None
    output_sensitive: bool | None = None
    citations: list[str | _Annotation] | None = None
    search_results: list[_Annotation] | None = None
    web_search: list[_Annotation] | None = None
    references: list[_Annotation] | None = None
    search_info: _Search | None = None

    @property
    def cited(self) -> list[str | _Annotation]:
        """What it cites."""
        found = (self.search_results, self.web_search, self.references)
        searched = [] if self.search_info is None else self.search_info.search_results
        return [*(one for listed in found for one in listed or ()), *searched, *(self.citations or ())]

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


def logprobs_of(logprobs: _Logprobs) -> list[TextLogprob] | None:
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


def _bytes(token: _TopLogprob) -> bytes:
    return bytes(token.bytes) if token.bytes is not None else token.token.encode("utf-8", errors="replace")
