"""Google's Gemini API (`generateContent`): its requests and answers, which callers and servers write alike, and how an
answer is written. Source: https://ai.google.dev/api/generate-content (2026-11).

Requests and parts have no unknown fields: those of callers are named to them, and a server's part that has one is read
leniently.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta

from tiers.conversation import Call, Dialect, ToolCallDelta
from tiers.deltas import BlockOrder, CollectedChoice, Piece, joined_call, pieces_of
from tiers.dialects.chat_opaque import image_blocks
from tiers.dialects.chat_schemas import (
    MAX_STOPS,
    MAX_TOOLS,
    FunctionName,
    NaturalInt,
    Penalty,
    PositiveInt,
    Seed,
    Temperature,
)
from tiers.tier import Delta, TextLogprob, Usage

DIALECT: Dialect = "gemini"
_encode = msgspec.json.Encoder().encode


class Form(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """What all structs of the API have in common."""


class Asked(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Those of requests."""


class Blob(Asked, frozen=True, kw_only=True):
    """Bytes in base64 with their MIME type."""

    mime_type: str = ""
    data: str = ""
    display_name: str | None = None


class FileData(Asked, frozen=True, kw_only=True):
    """A file by its address."""

    file_uri: str = ""
    mime_type: str | None = None
    display_name: str | None = None


class FunctionCall(Asked, frozen=True, kw_only=True):
    """A call of a function; servers of Google's may leave out the `id`."""

    name: str = ""
    id: str | None = None
    args: dict[str, Any] | str | None = None
    """An object; some write its JSON as a text."""


class MediaPart(Asked, frozen=True, kw_only=True):
    """A part of a function's response that is no JSON."""

    inline_data: Blob | None = None
    file_data: FileData | None = None


class FunctionResponse(Asked, frozen=True, kw_only=True):
    """The result of a call."""

    name: str = ""
    id: str | None = None
    response: Any = None
    parts: list[MediaPart] | None = None
    will_continue: bool | None = None
    scheduling: str | None = None


class Part(Asked, frozen=True, kw_only=True):
    """A part of a turn: one field says what it is; the others are about it."""

    text: str | None = None
    inline_data: Blob | None = None
    file_data: FileData | None = None
    function_call: FunctionCall | None = None
    function_response: FunctionResponse | None = None
    executable_code: Any = None
    code_execution_result: Any = None
    thought: bool | None = None
    thought_signature: str | None = None
    video_metadata: Any = None
    media_resolution: Any = None
    part_metadata: Any = None


class Content(Asked, frozen=True, kw_only=True):
    """A turn: of the `user`, who also gives results of functions, or of the `model`."""

    parts: list[Part] = []
    role: Literal["user", "model", "function", "system"] | None = None


class WrittenContent(Content, frozen=True, kw_only=True):
    """A turn for a server: parts of ours, or as they were given."""

    parts: list[Any] = []


class FunctionDeclaration(Asked, frozen=True, kw_only=True):
    """A function that the model may call, with its parameters as a JSON schema or in Google's own form of it."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    parameters_json_schema: dict[str, Any] | None = None
    response: Any = None
    response_json_schema: Any = None
    behavior: Any = None


class ToolEntry(Asked, frozen=True, kw_only=True):
    """Functions of the caller, or one of the tools that Google runs."""

    function_declarations: list[FunctionDeclaration] | None = None
    google_search: Any = None
    google_search_retrieval: Any = None
    code_execution: Any = None
    url_context: Any = None
    google_maps: Any = None
    file_search: Any = None
    computer_use: Any = None
    mcp_servers: Any = None


CallingMode = Literal["MODE_UNSPECIFIED", "AUTO", "ANY", "NONE", "VALIDATED"]


class FunctionCallingConfig(Asked, frozen=True, kw_only=True):
    """Whether functions may be (AUTO, VALIDATED), must be (ANY) or are not called (NONE), and which of them."""

    mode: CallingMode | None = None
    allowed_function_names: list[str] | None = None


class ToolConfig(Asked, frozen=True, kw_only=True):
    """How tools are used."""

    function_calling_config: FunctionCallingConfig | None = None
    retrieval_config: Any = None
    include_server_side_tool_invocations: Any = None


ThinkingLevel = Literal[
    "THINKING_LEVEL_UNSPECIFIED", "MINIMAL", "LOW", "MEDIUM", "HIGH", "minimal", "low", "medium", "high"
]
"""Google's enumeration has the former names, and the examples of its documentation the latter."""


class ThinkingConfig(Asked, frozen=True, kw_only=True):
    """Whether thoughts are shown, and how long they may be: a budget of tokens (-1: as the model likes), or a level."""

    include_thoughts: bool | None = None
    thinking_budget: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    thinking_level: ThinkingLevel | None = None


class GenerationConfig(Asked, frozen=True, kw_only=True):
    """Sampling, limits and the form of the answer."""

    temperature: Temperature | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: NaturalInt | None = None
    candidate_count: Annotated[int, Meta(ge=1, le=8)] | None = None
    max_output_tokens: PositiveInt | None = None
    stop_sequences: Annotated[list[Annotated[str, Meta(max_length=1024)]], Meta(max_length=MAX_STOPS)] | None = None
    seed: Seed | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    response_logprobs: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    response_mime_type: str | None = None
    response_schema: dict[str, Any] | None = None
    response_json_schema: dict[str, Any] | None = None
    response_modalities: list[str] | None = None
    thinking_config: ThinkingConfig | None = None


class GenerateContentRequest(Asked, frozen=True, kw_only=True):
    """`POST /v1beta/models/MODEL:generateContent` and `:streamGenerateContent`. What belongs to Google alone reaches
    its tiers, and is named in `x-aio-ignored-fields` elsewhere."""

    contents: list[Content]
    system_instruction: Content | str | None = None
    tools: Annotated[list[ToolEntry], Meta(max_length=MAX_TOOLS)] | None = None
    tool_config: ToolConfig | None = None
    generation_config: GenerationConfig | None = None
    safety_settings: Any = None
    cached_content: str | None = None
    labels: dict[str, str] | None = None
    model: str | None = None


class CountTokensRequest(GenerateContentRequest, frozen=True, kw_only=True):
    """`:countTokens`, of `contents` or of a whole request."""

    contents: list[Content] = []
    generate_content_request: GenerateContentRequest | None = None


class EmbedContentRequest(Asked, frozen=True, kw_only=True):
    """`:embedContent`, and one of `:batchEmbedContents`."""

    content: Content
    model: str | None = None
    output_dimensionality: Annotated[int, Meta(ge=1)] | None = None


class BatchEmbedContentsRequest(Asked, frozen=True, kw_only=True):
    """`:batchEmbedContents`."""

    requests: list[EmbedContentRequest]


class SaidContent(Form, frozen=True, kw_only=True):
    """What a model says."""

    parts: list[msgspec.Raw] = []
    """`Part`s: a caller of this API gets those of a server with it byte for byte."""
    role: str | None = None


class CitedPage(Form, frozen=True, kw_only=True):
    """A page that an answer cites."""

    uri: str = ""
    title: str | None = None


class GroundingChunk(Form, frozen=True, kw_only=True):
    """A page that an answer rests on: of the web, or of the caller's own documents."""

    web: CitedPage | None = None
    retrieved_context: CitedPage | None = None


class GroundingMetadata(Form, frozen=True, kw_only=True):
    """All pages that it rests on."""

    grounding_chunks: list[GroundingChunk] = []


class CitationMetadata(Form, frozen=True, kw_only=True):
    """What it cites, by the names of Vertex AI and of Gemini's API."""

    citations: list[CitedPage] = []
    citation_sources: list[CitedPage] = []


class Candidate(Form, frozen=True, kw_only=True):
    """One choice."""

    content: SaidContent | None = None
    index: int | None = None
    finish_reason: str | None = None
    avg_logprobs: float | None = None
    logprobs_result: dict[str, Any] | None = None
    grounding_metadata: GroundingMetadata | None = None
    citation_metadata: CitationMetadata | None = None


class ModalityTokenCount(Form, frozen=True, kw_only=True):
    """Tokens of one kind of media."""

    modality: str = ""
    token_count: int = 0


class UsageMetadata(Form, frozen=True, kw_only=True):
    """Token counts; thoughts are not among the candidates'."""

    prompt_token_count: int | None = None
    candidates_token_count: int | None = None
    total_token_count: int | None = None
    cached_content_token_count: int | None = None
    tool_use_prompt_token_count: int | None = None
    thoughts_token_count: int | None = None
    prompt_tokens_details: list[ModalityTokenCount] | None = None
    candidates_tokens_details: list[ModalityTokenCount] | None = None


class PromptFeedback(Form, frozen=True, kw_only=True):
    """Why a prompt was not answered."""

    block_reason: str | None = None


class GenerateContentResponse(Form, frozen=True, kw_only=True):
    """A whole answer, or a piece of a stream; the last one has the usage."""

    candidates: list[Candidate] | None = None
    usage_metadata: UsageMetadata | None = None
    prompt_feedback: PromptFeedback | None = None
    model_version: str = ""
    response_id: str = ""
    error: Any = None
    """What went wrong, in the last piece of a stream that broke."""
    x_aio: Any = msgspec.field(default=UNSET, name="x_aio")
    """How the answer came about."""


_REASONS = {"length": "MAX_TOKENS", "content_filter": "SAFETY", "error": "OTHER"}


class AnswerHead(msgspec.Struct, frozen=True, kw_only=True):
    """What is said of an answer besides what its choices have."""

    id: str
    model: str
    shows_thoughts: bool
    """Whether the caller asked for thoughts."""
    shows_logprobs: bool


def whole_response(
    head: AnswerHead, choices: list[CollectedChoice], usage: Usage | None, x_aio: Any
) -> GenerateContentResponse:
    """Return the body of a finished answer: its parts as a server with this dialect gave them, else thoughts, text,
    calls and images."""
    candidates = [_candidate(head, choice, index, _parts(head, choice)) for index, choice in enumerate(choices)]
    return _response(head, candidates, usage, x_aio)


class ResponseWriter:
    """Writes an answer as a stream of server-sent events, or of the elements of an array. A call is one part, so it is
    written when all of it is there."""

    def __init__(self, head: AnswerHead, *, is_sse: bool) -> None:
        self._head, self._is_sse = head, is_sse
        self._order: dict[int, BlockOrder] = {}  # by choice
        self._calls: dict[int, list[ToolCallDelta]] = {}  # by choice, the pieces of the call that is not written yet
        self._is_first = True
        tail = _encode(GenerateContentResponse(model_version=head.model, response_id=head.id))
        self._tail = b',"role":"model"},"index":%d}],' + tail[1:].replace(b"%", b"%%")

    def piece(self, delta: Delta) -> bytes:
        """Return what one delta adds; a part of a server with this dialect goes on as it is."""
        opaque = delta.opaque
        if opaque is not None and opaque.dialect == DIALECT and opaque.block is not None:
            is_shown = self._head.shows_thoughts or not _is_thought(opaque.block.json)
            return self._event([msgspec.Raw(opaque.block.json)], delta.index) if is_shown else b""
        order = self._order.setdefault(delta.index, BlockOrder())
        ready = [shown for piece in pieces_of(delta) for shown in order.put(piece)]
        ended = delta.finish_reason is not None
        parts = [
            part for piece in (ready + order.rest() if ended else ready) for part in self._parts_of(piece, delta.index)
        ]
        parts += self._whole_call(delta.index) if ended else []
        return self._event(parts, delta.index) if parts else b""

    def end(self, choices: list[CollectedChoice], usage: Usage | None, x_aio: Any) -> bytes:
        """Return why each choice ended, and the usage."""
        candidates = [_candidate(self._head, choice, index, _images(choice)) for index, choice in enumerate(choices)]
        return self._framed(_encode(_response(self._head, candidates, usage, x_aio))) + self._close

    def broken(self, error: Any, usage: Usage | None = None, x_aio: Any = UNSET) -> bytes:
        """Return the last piece of a stream that broke, with what is billed if the answer had started."""
        counts = None if usage is None else usage_of(usage)
        return self._framed(_encode(GenerateContentResponse(error=error, usage_metadata=counts, x_aio=x_aio))) + (
            self._close
        )

    @property
    def _close(self) -> bytes:
        return b"" if self._is_sse else b"]"

    def _parts_of(self, piece: Piece, choice: int) -> list[Any]:
        """The parts that a piece ends or is."""
        waiting = self._calls.get(choice)
        parts = self._whole_call(choice) if waiting and waiting[0].index != piece.key else []
        if piece.call is not None:
            self._calls.setdefault(choice, []).append(piece.call)
        elif piece.key != "thinking":
            parts.append(Part(text=piece.text))
        elif self._head.shows_thoughts:
            parts.append(Part(text=piece.text, thought=True))
        return parts

    def _whole_call(self, choice: int) -> list[Part]:
        pieces = self._calls.pop(choice, [])
        return [_call_part(joined_call(pieces))] if pieces else []

    def _event(self, parts: list[Any], index: int) -> bytes:
        return self._framed(b'{"candidates":[{"content":{"parts":' + _encode(parts) + self._tail % index)

    def _framed(self, element: bytes) -> bytes:
        if self._is_sse:
            return b"data: %b\n\n" % element
        before, self._is_first = (b"[" if self._is_first else b",\n"), False
        return before + element


def _is_thought(part: bytes) -> bool:
    return b'"thought"' in part and bool(msgspec.json.decode(part, type=dict[str, Any]).get("thought"))


def _response(
    head: AnswerHead, candidates: list[Candidate], usage: Usage | None, x_aio: Any
) -> GenerateContentResponse:
    return GenerateContentResponse(
        candidates=candidates,
        usage_metadata=usage_of(usage or Usage()),
        model_version=head.model,
        response_id=head.id,
        x_aio=x_aio,
    )


def usage_of(usage: Usage) -> UsageMetadata:
    """Return the counts as Google divides them."""
    return UsageMetadata(
        prompt_token_count=usage.prompt_tokens,
        candidates_token_count=usage.completion_tokens - usage.reasoning_tokens,
        total_token_count=usage.prompt_tokens + usage.completion_tokens,
        cached_content_token_count=usage.cached_tokens or None,
        thoughts_token_count=usage.reasoning_tokens or None,
    )


def _candidate(head: AnswerHead, choice: CollectedChoice, index: int, parts: list[msgspec.Raw]) -> Candidate:
    """A choice that has ended."""
    drawn = choice.logprobs if head.shows_logprobs else []
    told = [draw.logprob for draw in drawn if draw.logprob is not None]
    cited = [GroundingChunk(web=CitedPage(uri=citation.url, title=citation.title)) for citation in choice.annotations]
    return Candidate(
        content=SaidContent(parts=parts or [_raw(Part(text=""))], role="model"),
        index=index,
        finish_reason=_REASONS.get(choice.finish_reason or "stop", "STOP"),
        avg_logprobs=sum(told) / len(told) if told else None,
        logprobs_result=_logprobs(drawn) if drawn else None,
        grounding_metadata=GroundingMetadata(grounding_chunks=cited) if cited else None,
    )


def _parts(head: AnswerHead, choice: CollectedChoice) -> list[msgspec.Raw]:
    """All parts of a choice."""
    own = [block.json for block in choice.opaque.get(DIALECT, ())]
    if own:
        return [msgspec.Raw(part) for part in own if head.shows_thoughts or not _is_thought(part)]
    parts = [Part(text=choice.reasoning, thought=True)] if choice.reasoning and head.shows_thoughts else []
    parts += [Part(text=choice.text)] if choice.text else []
    return [*map(_raw, parts), *[_raw(_call_part(call)) for call in choice.tool_calls], *_images(choice)]


def _images(choice: CollectedChoice) -> list[msgspec.Raw]:
    sources = [block["source"] for block in image_blocks(choice)]
    return [_raw(Part(inline_data=Blob(mime_type=source["media_type"], data=source["data"]))) for source in sources]


def _call_part(call: Call) -> Part:
    return Part(function_call=FunctionCall(id=call.id, name=call.name, args=call.object_arguments()))


def _raw(part: Part) -> msgspec.Raw:
    return msgspec.Raw(_encode(part))


def _logprobs(drawn: list[TextLogprob]) -> dict[str, Any]:
    chosen = [{"token": draw.token, "logProbability": draw.logprob or 0.0} for draw in drawn]
    tops = [
        {"candidates": [{"token": token, "logProbability": logprob} for token, _, logprob in draw.top]}
        for draw in drawn
    ]
    return {"chosenCandidates": chosen, "topCandidates": tops}
