"""Gemini's servers: how they are asked, and their answers read."""

import re
from collections.abc import Iterator, Sequence
from mimetypes import guess_type
from typing import Any
from urllib.parse import quote

import msgspec

from inference_core.io.files import JSON_ERRORS
from tiers.catalog.tier_spec import RemoteSpec
from tiers.conversation import Call, Dialect, Opaque, OpaquePiece, Text, Tooling, Turn
from tiers.dialects.chat_opaque import media_piece
from tiers.dialects.dialect import (
    THINKING_TOKENS,
    Blocks,
    ServerCall,
    ServerDialect,
    alternating,
    answer_schema,
    blocks_of,
    check_provider,
    fields_of,
    media_of,
    media_parts,
    missing_model,
    published_by,
    system_text,
)
from tiers.dialects.event_stream import ServerSentEvent
from tiers.dialects.gemini import (
    DIALECT,
    Blob,
    CallingMode,
    Content,
    FileData,
    FunctionCall,
    FunctionCallingConfig,
    FunctionDeclaration,
    FunctionResponse,
    GenerateContentRequest,
    GenerateContentResponse,
    GenerationConfig,
    Part,
    ThinkingConfig,
    ThinkingLevel,
    ToolConfig,
    ToolEntry,
    UsageMetadata,
    WrittenContent,
)
from tiers.dialects.lenient_json import LenientDecoder, arguments_text, plain_json
from tiers.dialects.rules import BUDGET, MODALITIES, dropped_fields
from tiers.dialects.server_error import ErrorObject, ServerSaidError, parse_error
from tiers.dialects.usage_counter import MOST_NAME, Tally
from tiers.tier import Delta, ModelRequest, Usage

NAME = "Gemini"
# Google's own value for calls whose thoughts come from elsewhere, or are not known here any more: without any signature
# Gemini 3 refuses the turn.
UNSIGNED = "skip_thought_signature_validator"
LEVELS: dict[str, ThinkingLevel] = {
    "none": "low", "minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"
}  # fmt: skip
# Names and neutral values.
_SAMPLING = (("temperature", 1.0), ("top_p", 1.0), ("top_k", 0), ("seed", None))
_KNOWN = frozenset({*(name for name, _ in _SAMPLING), "reasoning_effort", BUDGET})
_VERSION = re.compile(r"gemini-(\d+)")
# Least budget of the models that cannot stop thinking.
_LEAST_BUDGET = 128
# Of other models, and of the large ones: https://ai.google.dev/gemini-api/docs/thinking
_MOST_BUDGETS = (24_576, 32_768)


class GeminiServer(ServerDialect):
    """Gemini with an API key."""

    form: Dialect | None = DIALECT

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

    def check(self, request: ModelRequest) -> None:
        check_provider(request, NAME)
        answer_schema(request, NAME)
        for block in media_parts(request):
            media_of(block, NAME)

    def call(self, request: ModelRequest, max_tokens: int | None) -> ServerCall:
        messages = request.messages or []
        streamed = self.is_streamed(request)
        system, tooling = system_text(messages), request.tooling
        asked = GenerateContentRequest(
            contents=contents(messages),
            generation_config=self._generation(request, max_tokens),
            system_instruction=Content(parts=[Part(text=system)]) if system else None,
            tools=None if tooling is None else _declared(tooling),
            tool_config=None if tooling is None else _calling(tooling),
        )
        method = "streamGenerateContent?alt=sse" if streamed else "generateContent"
        dropped = dropped_fields(request, _KNOWN)
        body, unknown = self.with_own_fields(fields_of(asked) | _own_fields(request), request)
        dropped += tuple(name for name in unknown if name != MODALITIES)
        return ServerCall(f"{self._path}:{method}", _encode(body), streamed, dropped)

    def read_event(self, event: ServerSentEvent, tally: Tally) -> list[Delta] | None:
        """See `ServerDialect.read_event`. The stream has no last event: it ends with the connection's body."""
        data = _in_camel_case(event.data)
        answer = _decode.event(ServerSentEvent(event.event, data), tally)
        return None if answer is None else _deltas(answer, data, tally)

    def read_whole(self, body: bytes, tally: Tally) -> list[Delta]:
        return _deltas(_decode(_in_camel_case(body), tally), body, tally)

    def _generation(self, request: ModelRequest, max_tokens: int | None) -> GenerationConfig:
        sampling: dict[str, Any] = {}
        for name, neutral in _SAMPLING:
            value = getattr(request.sampling, name)
            if value != neutral or (name in request.given and value):
                sampling[name] = value
        kinds, schema = request.extra.get(MODALITIES), answer_schema(request, NAME)
        return GenerationConfig(
            **sampling,
            max_output_tokens=max_tokens,
            stop_sequences=list(request.stop) or None,
            response_modalities=None if kinds is None else [str(kind).upper() for kind in kinds],
            response_mime_type=None if schema is None else "application/json",
            response_json_schema=schema or None,
            thinking_config=_thinking(self._remote.model, request),
        )


class VertexGeminiServer(GeminiServer):
    """Gemini on Vertex AI."""

    def __init__(self, remote: RemoteSpec) -> None:
        super().__init__(remote)
        self._path = f"publishers/google/{self._path}"


# Google's own libraries write these names so in Python, and so do servers that are built with them. A quote within a
# text is escaped, so that only names match.
_SNAKE = re.compile(
    rb'"(?:(?:finish|block)_reason|usage_metadata|prompt_feedback|function_call|thought_signature|'
    rb'(?:prompt|cached_content|tool_use_prompt|candidates|thoughts)_token_count)"(?=\s*:)'
)


def _in_camel_case(data: bytes) -> bytes:
    """Return an answer with the names of the API, whichever form of them its server has."""
    return _SNAKE.sub(lambda name: re.sub(rb"_(\w)", lambda letter: letter[1].upper(), name[0]), data)


def contents(messages: list[Turn]) -> list[Content]:
    """Return the conversation as Gemini has it: an assistant is a `model`, and a result names its function."""
    names = {call.id: call.name for message in messages for call in message.calls}
    # Ids are the server's own, or ours, which it does not know.
    own_ids = {call_id for message in messages for call_id in _call_ids(message.written(DIALECT))}
    turns = alternating(messages, lambda message: _message_parts(message, names, own_ids))
    return [WrittenContent(role="model" if is_model else "user", parts=parts) for is_model, parts in turns]


def _call_ids(blocks: Sequence[Opaque]) -> Iterator[str]:
    for block in blocks:
        call = _decode_part(block.json).function_call
        if call is not None and call.id:
            yield call.id


def _message_parts(message: Turn, names: dict[str, str], own_ids: set[str]) -> list[Any]:
    if said := message.written(DIALECT):
        return [msgspec.Raw(block.json) for block in said if block.json]
    parts = content_parts(message)
    if message.role == "tool":
        call_id = message.call_id or ""
        response = FunctionResponse(
            id=call_id if call_id in own_ids else None,
            name=names.get(call_id, message.name or "function"),
            response={"result": message.text},
        )
        return [Part(function_response=response), *[part for part in parts if part.text is None]]
    for index, call in enumerate(message.calls):
        called = FunctionCall(name=call.name, args=call.object_arguments())
        # Of calls made together the first is signed.
        parts.append(Part(function_call=called, thought_signature=None if index else UNSIGNED))
    return parts


def content_parts(message: Turn) -> list[Part]:
    """Return the parts of a message as Gemini has them. Raises TierRequestError."""
    parts: list[Part] = []
    for block in message.content_blocks:
        if isinstance(block, Text):
            parts += [Part(text=block.text)] if block.text else []
            continue
        media = media_of(block, NAME)
        if media.url:
            guessed = guess_type(media.url.partition("?")[0])[0]
            usual = {"image": "image/jpeg", "video": "video/mp4"}.get(media.kind, "application/pdf")
            # Vertex AI needs the type, which an address rarely says.
            parts.append(Part(file_data=FileData(file_uri=media.url, mime_type=guessed or usual)))
        else:
            parts.append(Part(inline_data=Blob(mime_type=media.type, data=media.data)))
    return parts


def _thinking(model: str, request: ModelRequest) -> ThinkingConfig | None:
    if (said := request.fields_in(DIALECT).get("thinkingConfig")) is not None:
        return msgspec.json.decode(said, type=ThinkingConfig)
    effort, budget = request.reasoning_effort, request.reasoning_budget
    if effort is None and budget is None:
        return None
    version = _VERSION.search(model)
    if version is not None and int(version[1]) >= 3:
        level = "low" if budget == 0 else LEVELS[effort or "high"]
        return ThinkingConfig(include_thoughts=effort != "none", thinking_level=level)
    if effort == "none" or budget == 0:
        return ThinkingConfig(thinking_budget=_LEAST_BUDGET if "-pro" in model else 0)
    wanted = THINKING_TOKENS[effort or "high"] if budget is None else budget
    return ThinkingConfig(include_thoughts=True, thinking_budget=min(wanted, _MOST_BUDGETS["-pro" in model]))


def _declared(tooling: Tooling) -> list[ToolEntry]:
    declared = [
        FunctionDeclaration(name=tool.name, description=tool.description or None, parameters_json_schema=tool.schema)
        for tool in tooling.tools
    ]
    return [ToolEntry(function_declarations=declared)]


def _calling(tooling: Tooling) -> ToolConfig:
    config = FunctionCallingConfig(
        mode=_MODES.get(tooling.choice, "ANY"),
        allowed_function_names=[tooling.name] if tooling.choice == "named" and tooling.name else None,
    )
    return ToolConfig(function_calling_config=config)


_MODES: dict[str, CallingMode] = {"none": "NONE", "auto": "AUTO"}


def _own_fields(request: ModelRequest) -> dict[str, Any]:
    """Return what a caller of this API said that no other has."""
    caller_fields, tooling = request.fields_in(DIALECT), request.tooling
    fields: dict[str, Any] = {
        name: msgspec.Raw(caller_fields[name]) for name in ("tools", "safetySettings") if name in caller_fields
    }
    if "tools" in fields and tooling is not None and tooling.edited:
        entries = msgspec.json.decode(fields["tools"], type=list[ToolEntry])
        own = [msgspec.structs.replace(entry, function_declarations=None) for entry in entries]
        fields["tools"] = _declared(tooling) + [entry for entry in own if entry != ToolEntry()]
    return fields


def _deltas(answer: GenerateContentResponse, data: bytes, tally: Tally) -> list[Delta]:
    blocks = blocks_of(tally)
    if answer.error:
        raise ServerSaidError(parse_error(_encode({"error": answer.error})))
    if answer.usage_metadata is not None:
        _report(answer.usage_metadata, tally)
    blocked = answer.prompt_feedback and answer.prompt_feedback.block_reason
    if blocked and not answer.candidates:
        # The prompt was read and refused: no failure of the server's, and nothing to try again.
        return [Delta(finish_reason="content_filter")]
    if answer.candidates is None and answer.usage_metadata is None:
        blocks.not_known(data, "an event without candidates")
    deltas: list[Delta] = []
    for candidate in (answer.candidates or [])[:1]:
        for raw in candidate.content.parts if candidate.content is not None else []:
            deltas += _read_part(raw, blocks, tally)
        if candidate.grounding_metadata is not None:
            pages = [chunk.web or chunk.retrieved_context for chunk in candidate.grounding_metadata.grounding_chunks]
            deltas += blocks.cited((page.uri, page.title) for page in pages if page is not None)
        if (cited := candidate.citation_metadata) is not None:
            deltas += blocks.cited((page.uri, page.title) for page in cited.citations + cited.citation_sources)
        if candidate.finish_reason is not None:
            reason = blocks.finish(candidate.finish_reason)
            deltas.append(Delta(finish_reason="tool_calls" if reason == "stop" and blocks.calls else reason))
    return deltas


def _read_part(raw: msgspec.Raw, blocks: Blocks, tally: Tally) -> list[Delta]:
    try:
        part = _strict_part(raw)
        if part.function_call is not None and isinstance(part.function_call.args, str):
            raw = _with_object(raw, part.function_call)
    except JSON_ERRORS as error:
        part = _decode_part.lenient(raw, tally, error)
        if part.function_call is not None:
            raw = _with_object(raw, part.function_call)
    deltas = _said(part, blocks)
    if tally.opaque:
        block = Opaque(DIALECT, bytes(raw), "part", part.thought_signature or "")
        if not deltas or deltas[-1].opaque is not None:
            deltas.append(Delta())
        deltas[-1].opaque = OpaquePiece(dialect=DIALECT, block=block)
    return deltas


def _with_object(raw: msgspec.Raw, call: FunctionCall) -> msgspec.Raw:
    """Return a part with a call as it is, if the arguments are an object; else with one in their place."""
    said = plain_json(bytes(raw))
    function_call = said.get("functionCall")
    own = function_call if isinstance(function_call, dict) else {"name": call.name}
    if own is function_call and isinstance(own.get("args", {}), dict):
        return raw
    return msgspec.Raw(_encode(said | {"functionCall": own | {"args": _arguments(call)}}))


def _arguments(call: FunctionCall) -> dict[str, Any]:
    if isinstance(call.args, dict):
        return call.args
    return Call(id="", name="", arguments=arguments_text(call.args)).object_arguments()


def _said(part: Part, blocks: Blocks) -> list[Delta]:
    if part.function_call is not None:
        call = part.function_call
        arguments = arguments_text(_arguments(call))
        return [blocks.whole_call(len(blocks.calls), call.id or "", call.name, arguments)]
    if (made := part.inline_data) is not None and made.mime_type.startswith("image/"):
        url = f"data:{made.mime_type};base64,{made.data}"
        images = _encode([{"type": "image_url", "image_url": {"url": url}}])
        return [] if part.thought else [blocks.passed(Delta(opaque=media_piece(images)))]
    if part.text is None and part.thought_signature is None:
        blocks.unknown = blocks.unknown or "a part of an unknown kind"
    return blocks.reasoning(part.text or "") if part.thought else blocks.text(part.text or "")


def _report(counts: UsageMetadata, tally: Tally) -> None:
    """Store the counts so far. Some early events count only the prompt: their text is estimated until one counts it."""
    prompt = (counts.prompt_token_count or 0) + (counts.tool_use_prompt_token_count or 0) or tally.prompt_tokens
    thoughts = counts.thoughts_token_count or 0
    completion = (counts.candidates_token_count or 0) + thoughts
    if not completion and tally.reported is None:
        tally.read_prompt(prompt)
        return
    for what, details in (("prompt", counts.prompt_tokens_details), ("completion", counts.candidates_tokens_details)):
        if details is not None:
            tally.note_extras(
                {
                    f"{detail.modality[:MOST_NAME].lower()}_{what}_tokens": detail.token_count
                    for detail in details
                    if detail.modality in ("AUDIO", "IMAGE")
                }
            )
    tally.report(
        Usage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            cached_tokens=counts.cached_content_token_count or 0,
            reasoning_tokens=thoughts,
        )
    )


_encode = msgspec.json.Encoder().encode
_decode = LenientDecoder(GenerateContentResponse, f"an answer of {NAME}'s")
_decode_part = LenientDecoder(Part, f"a part of {NAME}'s")
_strict_part = _decode_part.strict
