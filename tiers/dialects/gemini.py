"""Google's Gemini API (`generateContent`): the form of requests and answers, as callers and servers write them, and how
its servers are asked. Source: https://ai.google.dev/api/generate-content."""

import re
from collections.abc import Iterator, Sequence
from mimetypes import guess_type
from typing import Annotated, Any, Literal
from urllib.parse import quote

import msgspec
from msgspec import UNSET, Meta, UnsetType

from inference_core.io.files import JSON_ERRORS
from tiers.catalog.tier_spec import RemoteSpec
from tiers.conversation import Dialect, Opaque, OpaquePiece, Text, Turn
from tiers.dialects.chat_schemas import MAX_TOOLS, FunctionName
from tiers.dialects.chat_state import media_piece
from tiers.dialects.dialect import (
    THINKING_TOKENS,
    Blocks,
    ServerCall,
    ServerDialect,
    alternating,
    answer_schema,
    blocks_of,
    check_provider,
    media_of,
    media_parts,
    missing_model,
    published_by,
    system_text,
)
from tiers.dialects.event_stream import ServerSentEvent
from tiers.dialects.lenient_json import LenientDecoder, arguments_text
from tiers.dialects.rules import BUDGET, MODALITIES, dropped_fields
from tiers.dialects.server_error import ErrorObject, ServerSaidError, parse_error
from tiers.dialects.usage_counter import MOST_NAME, Tally
from tiers.tier import Delta, GenerationRequest, Usage

NAME = "Gemini"
# Google's own value for calls whose thoughts come from elsewhere, or are not known here any more: without any signature
# Gemini 3 refuses the turn.
UNSIGNED = "skip_thought_signature_validator"
LEVELS = {"none": "low", "minimal": "low", "low": "low", "medium": "medium"} | dict.fromkeys(
    ("high", "xhigh", "max"), "high"
)
# OpenAI's names, Gemini's and the neutral values.
_SAMPLING = (("temperature", "temperature", 1.0), ("top_p", "topP", 1.0), ("top_k", "topK", 0), ("seed", "seed", None))
_KNOWN = frozenset({*(name for name, _, _ in _SAMPLING), "reasoning_effort", BUDGET})
_VERSION = re.compile(r"gemini-(\d+)")
# Least budget of the models that cannot stop thinking.
_LEAST_BUDGET = 128
# Of other models, and of the large ones: https://ai.google.dev/gemini-api/docs/thinking
_MOST_BUDGETS = (24_576, 32_768)


class GeminiServer(ServerDialect):
    """Gemini with an API key."""

    form: Dialect | None = "gemini"

    def __init__(self, remote: RemoteSpec) -> None:
        super().__init__(remote)
        self._path = f"models/{quote(remote.model.removeprefix('models/'), safe='')}"

    def model_problem(self, status: int, body: bytes) -> str | None:
        if status == 404:
            return missing_model(self._remote.model, body)
        return None

    def published_output(self, body: bytes) -> int | None:
        return published_by(body, ("outputTokenLimit",))

    def is_about_model(self, error: ErrorObject) -> bool:
        """See `ServerDialect.is_about_model`: a wrong key is refused with 400."""
        return "API key" in error.words or "API Key" in error.words

    def check(self, request: GenerationRequest) -> None:
        check_provider(request, NAME)
        answer_schema(request, NAME)
        for block in media_parts(request):
            media_of(block, NAME)

    def call(self, request: GenerationRequest, max_tokens: int | None) -> ServerCall:
        messages = request.messages or []
        streamed = self.is_streamed(request)
        body: dict[str, Any] = {
            "contents": contents(messages),
            "generationConfig": self._generation(request, max_tokens),
        }
        if system := system_text(messages):
            body["systemInstruction"] = {"parts": [{"text": system}]}
        method = "streamGenerateContent?alt=sse" if streamed else "generateContent"
        dropped = dropped_fields(request, _KNOWN)
        body, unknown = self.with_own_fields(body | _tools(request) | _own_fields(request), request)
        dropped += tuple(name for name in unknown if name != MODALITIES)
        return ServerCall(f"{self._path}:{method}", _encode(body), streamed, dropped)

    def read_event(self, event: ServerSentEvent, tally: Tally) -> list[Delta] | None:
        """See `ServerDialect.read_event`. The stream has no last event: it ends with the connection's body."""
        data = _in_camel_case(event.data)
        answer = _decode.event(ServerSentEvent(event.event, data), tally)
        return None if answer is None else _deltas(answer, data, tally)

    def read_whole(self, body: bytes, tally: Tally) -> list[Delta]:
        return _deltas(_decode(_in_camel_case(body), tally), body, tally)

    def _generation(self, request: GenerationRequest, max_tokens: int | None) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for name, theirs, neutral in _SAMPLING:
            value = getattr(request.sampling, name)
            if value != neutral or (name in request.given and value):
                fields[theirs] = value
        if max_tokens is not None:
            fields["maxOutputTokens"] = max_tokens
        if request.stop:
            fields["stopSequences"] = list(request.stop)
        if (kinds := request.extra.get(MODALITIES)) is not None:
            fields["responseModalities"] = [str(kind).upper() for kind in kinds]
        if (schema := answer_schema(request, NAME)) is not None:
            fields["responseMimeType"] = "application/json"
            if schema:
                fields["responseJsonSchema"] = schema
        if request.native is not None and (said := request.native.fields.get("thinkingConfig")) is not None:
            return fields | {"thinkingConfig": msgspec.Raw(said)}
        thinking = _thinking(self._remote.model, request)
        return fields | ({"thinkingConfig": thinking} if thinking else {})


class VertexGeminiServer(GeminiServer):
    """Gemini on Vertex AI."""

    def __init__(self, remote: RemoteSpec) -> None:
        super().__init__(remote)
        self._path = f"publishers/google/{self._path}"


class Form(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, rename="camel"):
    """What all structs of a request have in common."""


class Blob(Form, frozen=True, kw_only=True):
    """Bytes in base64 with their MIME type."""

    mime_type: str
    data: str
    display_name: str | None = None


class FileData(Form, frozen=True, kw_only=True):
    """A file by its address."""

    file_uri: str
    mime_type: str | None = None
    display_name: str | None = None


class Call(Form, frozen=True, kw_only=True):
    """A call of a function; servers of Google's may leave out the `id`."""

    name: str
    id: str | None = None
    args: dict[str, Any] | str | None = None


class MediaPart(Form, frozen=True, kw_only=True):
    """A part of a function's response that is no JSON."""

    inline_data: Blob | None = None
    file_data: FileData | None = None


class CallResponse(Form, frozen=True, kw_only=True):
    """The result of a call."""

    name: str
    id: str | None = None
    response: Any = None
    parts: list[MediaPart] | None = None
    will_continue: bool | None = None
    scheduling: str | None = None


class Part(Form, frozen=True, kw_only=True):
    """A part of a turn: one field says what it is; the others are about it."""

    text: str | None = None
    inline_data: Blob | None = None
    file_data: FileData | None = None
    function_call: Call | None = None
    function_response: CallResponse | None = None
    executable_code: Any = None
    code_execution_result: Any = None
    thought: bool | None = None
    thought_signature: str | None = None
    video_metadata: Any = None
    media_resolution: Any = None
    part_metadata: Any = None


class Content(Form, frozen=True, kw_only=True):
    """A turn: of the `user`, who also gives results of functions, or of the `model`."""

    parts: list[Part] = []
    role: Literal["user", "model", "function", "system"] | None = None


class Declaration(Form, frozen=True, kw_only=True):
    """A function that the model may call, with its parameters as a JSON schema or in Google's own form of it."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    parameters_json_schema: dict[str, Any] | None = None
    response: Any = None
    response_json_schema: Any = None
    behavior: Any = None


class Tool(Form, frozen=True, kw_only=True):
    """Functions of the caller, or one of the tools that Google runs."""

    function_declarations: list[Declaration] | None = None
    google_search: Any = None
    google_search_retrieval: Any = None
    code_execution: Any = None
    url_context: Any = None
    google_maps: Any = None
    file_search: Any = None
    computer_use: Any = None
    mcp_servers: Any = None


class CallingConfig(Form, frozen=True, kw_only=True):
    """Whether functions may be (AUTO, VALIDATED), must be (ANY) or are not called (NONE), and which of them."""

    mode: Literal["MODE_UNSPECIFIED", "AUTO", "ANY", "NONE", "VALIDATED"] | None = None
    allowed_function_names: list[str] | None = None


class ToolConfig(Form, frozen=True, kw_only=True):
    """How tools are used."""

    function_calling_config: CallingConfig | None = None
    retrieval_config: Any = None
    include_server_side_tool_invocations: Any = None


class ThinkingConfig(Form, frozen=True, kw_only=True):
    """Whether thoughts are shown, and how long they may be: a budget of tokens (-1: as the model likes), or a level."""

    include_thoughts: bool | None = None
    thinking_budget: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    thinking_level: Literal["THINKING_LEVEL_UNSPECIFIED", "MINIMAL", "LOW", "MEDIUM", "HIGH"] | None = None


class GenerationConfig(Form, frozen=True, kw_only=True):
    """Sampling, limits and the form of the answer."""

    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    candidate_count: Annotated[int, Meta(ge=1, le=8)] | None = None
    max_output_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    stop_sequences: Annotated[list[str], Meta(max_length=16)] | None = None
    seed: int | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    response_logprobs: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    response_mime_type: str | None = None
    response_schema: dict[str, Any] | None = None
    response_json_schema: dict[str, Any] | None = None
    response_modalities: list[str] | None = None
    thinking_config: ThinkingConfig | None = None


class GenerateContentRequest(Form, frozen=True, kw_only=True):
    """`POST /v1beta/models/MODEL:generateContent` and `:streamGenerateContent`. What belongs to Google alone reaches
    its tiers, and is named in `x-aio-ignored-fields` elsewhere."""

    contents: list[Content]
    system_instruction: Content | str | None = None
    tools: Annotated[list[Tool], Meta(max_length=MAX_TOOLS)] | None = None
    tool_config: ToolConfig | None = None
    generation_config: GenerationConfig | None = None
    safety_settings: Any = None
    cached_content: str | None = None
    labels: dict[str, str] | None = None
    model: str | None = None


class CountTokensRequest(Form, frozen=True, kw_only=True):
    """`:countTokens`, of `contents` alone or of a whole request."""

    contents: list[Content] | None = None
    generate_content_request: GenerateContentRequest | None = None
    system_instruction: Content | str | None = None
    tools: Annotated[list[Tool], Meta(max_length=MAX_TOOLS)] | None = None
    generation_config: GenerationConfig | None = None
    model: str | None = None

    def whole(self) -> GenerateContentRequest:
        if self.generate_content_request is not None:
            return self.generate_content_request
        return GenerateContentRequest(
            contents=self.contents or [], system_instruction=self.system_instruction, tools=self.tools
        )


class EmbedContentRequest(Form, frozen=True, kw_only=True):
    """`:embedContent`, and one of `:batchEmbedContents`."""

    content: Content
    model: str | None = None
    output_dimensionality: Annotated[int, Meta(ge=1)] | None = None


class BatchEmbedContentsRequest(Form, frozen=True, kw_only=True):
    """`:batchEmbedContents`."""

    requests: list[EmbedContentRequest]


class SaidCall(Call, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """A call of a server, some of which leave fields out."""

    name: str = ""
    args: dict[str, Any] = {}


class SaidBlob(Blob, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """Bytes of a server."""

    mime_type: str = ""
    data: str = ""


class SaidPart(Part, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """A part of an answer."""

    function_call: SaidCall | None = None
    inline_data: SaidBlob | None = None


class SaidContent(msgspec.Struct, frozen=True, kw_only=True):
    """What a model says."""

    parts: list[msgspec.Raw] = []
    role: str = "model"


class CitedPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page that an answer cites."""

    uri: str = ""
    title: str = ""


class GroundingChunk(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """What an answer rests on."""

    web: CitedPage | None = None
    retrieved_context: CitedPage | None = None


class Grounding(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """All that it rests on."""

    grounding_chunks: list[GroundingChunk] = []


class Citations(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What it cites, by the names of Gemini's API and of Vertex AI's."""

    citation_sources: list[CitedPage] = []
    citations: list[CitedPage] = []


class Candidate(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One choice."""

    content: SaidContent | None = None
    index: int = 0
    finish_reason: str | UnsetType | None = UNSET
    avg_logprobs: float | UnsetType = UNSET
    logprobs_result: dict[str, Any] | UnsetType = UNSET
    grounding_metadata: Grounding | UnsetType | None = UNSET
    citation_metadata: Citations | UnsetType | None = UNSET


class ModalityCount(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Tokens of one kind of media."""

    modality: str = ""
    token_count: int = 0


class UsageMetadata(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Token counts; thoughts are not among the candidates'."""

    prompt_token_count: int = 0
    candidates_token_count: int = 0
    total_token_count: int = 0
    cached_content_token_count: int | UnsetType = UNSET
    thoughts_token_count: int | UnsetType = UNSET
    tool_use_prompt_token_count: int | UnsetType = UNSET
    prompt_tokens_details: list[ModalityCount] | UnsetType | None = UNSET
    candidates_tokens_details: list[ModalityCount] | UnsetType | None = UNSET


class PromptFeedback(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Why a prompt was not answered."""

    block_reason: str | None = None


class ContentResponse(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A whole answer, or a piece of a stream; the last one has the usage."""

    candidates: list[Candidate] | None = None
    usage_metadata: UsageMetadata | UnsetType | None = UNSET
    model_version: str = ""
    response_id: str = ""
    prompt_feedback: PromptFeedback | UnsetType | None = UNSET


class SaidResponse(ContentResponse, frozen=True, kw_only=True):
    """A response of a server, or what went wrong."""

    error: Any = None


# Google's own libraries write these names so in Python, and so do servers that are built with them. A quote within a
# text is escaped, so that only names match.
_SNAKE = re.compile(
    rb'"(?:(?:finish|block)_reason|usage_metadata|prompt_feedback|function_call|thought_signature|'
    rb'(?:prompt|cached_content|tool_use_prompt|candidates|thoughts)_token_count)"(?=\s*:)'
)


def _in_camel_case(data: bytes) -> bytes:
    """Return an answer with the names of the API, whichever form of them its server has."""
    return _SNAKE.sub(lambda name: re.sub(rb"_(\w)", lambda letter: letter[1].upper(), name[0]), data)


def contents(messages: list[Turn]) -> list[dict[str, Any]]:
    """Return the conversation as Gemini has it: an assistant is a `model`, and a result names its function."""
    names = {call.id: call.name for message in messages for call in message.calls}
    # Ids are the server's own, or ours, which it does not know.
    own_ids = {call_id for message in messages for call_id in _call_ids(message.written("gemini"))}
    return alternating(
        messages, lambda message: _message_parts(message, names, own_ids), assistant="model", parts="parts"
    )


def _call_ids(blocks: Sequence[Opaque]) -> Iterator[str]:
    for block in blocks:
        call = _decode_part(block.json).function_call
        if call is not None and call.id:
            yield call.id


def _message_parts(message: Turn, names: dict[str, str], own_ids: set[str]) -> list[Any]:
    if said := message.written("gemini"):
        return [msgspec.Raw(block.json) for block in said]
    parts = content_parts(message)
    if message.role == "tool":
        call_id = message.call_id or ""
        response = {"name": names.get(call_id, message.name or "function"), "response": {"result": message.text}}
        media = [part for part in parts if "text" not in part]
        own = {"id": call_id} if call_id in own_ids else {}
        return [{"functionResponse": own | response}, *media]
    for place, call in enumerate(message.calls):
        part: dict[str, Any] = {"functionCall": {"name": call.name, "args": call.object_arguments()}}
        # Of calls made together the first is signed.
        parts.append(part if place else part | {"thoughtSignature": UNSIGNED})
    return parts


def content_parts(message: Turn) -> list[dict[str, Any]]:
    """Return the parts of a message as Gemini has them. Raises TierRequestError."""
    parts: list[dict[str, Any]] = []
    for block in message.content_blocks:
        if isinstance(block, Text):
            parts += [{"text": block.text}] if block.text else []
            continue
        media = media_of(block, NAME)
        if media.url:
            guessed = guess_type(media.url.partition("?")[0])[0]
            usual = {"image": "image/jpeg", "video": "video/mp4"}.get(media.kind, "application/pdf")
            # Vertex AI needs the type, which an address rarely says.
            parts.append({"fileData": {"fileUri": media.url, "mimeType": guessed or usual}})
        else:
            parts.append({"inlineData": {"mimeType": media.type, "data": media.data}})
    return parts


def _thinking(model: str, request: GenerationRequest) -> dict[str, Any]:
    effort, budget = request.reasoning_effort, request.reasoning_budget
    if effort is None and budget is None:
        return {}
    version = _VERSION.search(model)
    if version is not None and int(version[1]) >= 3:
        level = "low" if budget == 0 else LEVELS[effort or "high"]
        return {"includeThoughts": effort != "none", "thinkingLevel": level}
    if effort == "none" or budget == 0:
        return {"thinkingBudget": _LEAST_BUDGET if "-pro" in model else 0}
    wanted = THINKING_TOKENS[effort or "high"] if budget is None else budget
    return {"includeThoughts": True, "thinkingBudget": min(wanted, _MOST_BUDGETS["-pro" in model])}


def _tools(request: GenerationRequest) -> dict[str, Any]:
    tooling = request.tooling
    if tooling is None:
        return {}
    declared = [
        {"name": tool.name, "parametersJsonSchema": tool.schema}
        | ({"description": tool.description} if tool.description else {})
        for tool in tooling.tools
    ]
    mode: dict[str, Any] = {"mode": {"none": "NONE", "auto": "AUTO"}.get(tooling.choice, "ANY")}
    if tooling.choice == "named":
        mode["allowedFunctionNames"] = [tooling.name]
    return {"tools": [{"functionDeclarations": declared}], "toolConfig": {"functionCallingConfig": mode}}


def _own_fields(request: GenerationRequest) -> dict[str, Any]:
    """Return what a caller of this API said that no other has."""
    given = {} if request.native is None else request.native.fields
    return {name: msgspec.Raw(given[name]) for name in ("tools", "safetySettings") if name in given}


def _deltas(answer: SaidResponse, data: bytes, tally: Tally) -> list[Delta]:
    blocks = blocks_of(tally)
    if answer.error:
        raise ServerSaidError(parse_error(_encode({"error": answer.error})))
    if answer.usage_metadata:
        _report(answer.usage_metadata, tally)
    blocked = answer.prompt_feedback and answer.prompt_feedback.block_reason
    if blocked and not answer.candidates:
        # The prompt was read and refused: no failure of the server's, and nothing to try again.
        return [Delta(finish_reason="content_filter")]
    if answer.candidates is None and not answer.usage_metadata:
        blocks.not_known(data, "an event without candidates")
    deltas: list[Delta] = []
    for candidate in (answer.candidates or [])[:1]:
        for raw in candidate.content.parts if candidate.content is not None else []:
            deltas += _read_part(raw, blocks, tally)
        if candidate.grounding_metadata:
            pages = [one.web or one.retrieved_context for one in candidate.grounding_metadata.grounding_chunks]
            deltas += blocks.cited((page.uri, page.title) for page in pages if page is not None)
        if cited := candidate.citation_metadata:
            deltas += blocks.cited((page.uri, page.title) for page in cited.citations + cited.citation_sources)
        if isinstance(candidate.finish_reason, str):
            reason = blocks.finish(candidate.finish_reason)
            deltas.append(Delta(finish_reason="tool_calls" if reason == "stop" and blocks.calls else reason))
    return deltas


def _read_part(raw: msgspec.Raw, blocks: Blocks, tally: Tally) -> list[Delta]:
    try:
        part = _strict_part(raw)
    except JSON_ERRORS as error:
        part = _decode_part.lenient(raw, tally, error)
        raw = _with_object(raw, part)
    deltas = _said(part, blocks)
    if tally.opaque:
        block = Opaque("gemini", bytes(raw), "part", part.thought_signature or "")
        if not deltas or deltas[-1].opaque is not None:
            deltas.append(Delta())
        deltas[-1].opaque = OpaquePiece(dialect="gemini", block=block)
    return deltas


def _with_object(raw: msgspec.Raw, part: SaidPart) -> msgspec.Raw:
    """Return a part as it is; a call with arguments that are an object."""
    if part.function_call is None:
        return raw
    said = msgspec.json.decode(raw, type=dict[str, Any])
    return msgspec.Raw(_encode(said | {"functionCall": said["functionCall"] | {"args": part.function_call.args}}))


def _said(part: SaidPart, blocks: Blocks) -> list[Delta]:
    if part.function_call is not None:
        call = part.function_call
        return [blocks.whole_call(len(blocks.calls), call.id or "", call.name, arguments_text(call.args))]
    if (made := part.inline_data) is not None and made.mime_type.startswith("image/"):
        url = f"data:{made.mime_type};base64,{made.data}"
        images = _encode([{"type": "image_url", "image_url": {"url": url}}])
        return [] if part.thought else [blocks.passed(Delta(opaque=media_piece(images)))]
    if part.text is None and part.thought_signature is None:
        blocks.unknown = blocks.unknown or "a part of an unknown kind"
    return blocks.reasoning(part.text or "") if part.thought else blocks.text(part.text or "")


def _report(counts: UsageMetadata, tally: Tally) -> None:
    """Store the counts so far. Some early events count only the prompt: their text is estimated until one counts it."""
    prompt = counts.prompt_token_count + (counts.tool_use_prompt_token_count or 0) or tally.prompt_tokens
    thoughts = counts.thoughts_token_count or 0
    completion = counts.candidates_token_count + thoughts
    if not completion and tally.reported is None:
        tally.read_prompt(prompt)
        return
    for what, details in (("prompt", counts.prompt_tokens_details), ("completion", counts.candidates_tokens_details)):
        if details:
            tally.note_extras({f"{one.modality[:MOST_NAME].lower()}_{what}_tokens": one.token_count for one in details
                               if one.modality in ("AUDIO", "IMAGE")})  # fmt: skip
    tally.report(
        Usage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            cached_tokens=counts.cached_content_token_count or 0,
            reasoning_tokens=thoughts,
        )
    )


_encode = msgspec.json.Encoder().encode
_decode = LenientDecoder(SaidResponse, f"an answer of {NAME}'s")
_decode_part = LenientDecoder(SaidPart, f"a part of {NAME}'s")
_strict_part = _decode_part.strict
