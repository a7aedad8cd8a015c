"""Anthropic's Messages API, as its servers have it.

Turns, tools, thinking and marks of the cache that a caller gave in this form go on as they are; those of a chat are put
into it.
"""

import re
from collections.abc import Sequence
from itertools import dropwhile, takewhile
from typing import Any, Literal
from urllib.parse import quote

import msgspec

from tiers.catalog.tier_spec import RemoteSpec
from tiers.conversation import (
    Dialect,
    Media,
    Text,
    Turn,
)
from tiers.dialects.dialect import (
    MIN_THINKING_TOKENS,
    THINKING_TOKENS,
    MediaBody,
    ServerCall,
    ServerDialect,
    answer_schema,
    check_provider,
    edited_tools,
    is_system,
    media_of,
    media_parts,
    missing_model,
    overlaid,
    published_by,
    system_text,
)
from tiers.dialects.event_stream import ServerSentEvent
from tiers.dialects.messages import (
    BETAS,
    DIALECT,
    INTERLEAVED,
    NAME,
    TURN,
    Block,
    Effort,
    OutputConfig,
    OutputFormat,
    RequestMetadata,
    Role,
    Source,
    Thinking,
    ToolChoice,
    ToolEntry,
    WrittenTurn,
)
from tiers.dialects.messages_answer import read_event, read_whole
from tiers.dialects.refusals import without_extras
from tiers.dialects.rules import BUDGET, dropped_fields
from tiers.dialects.server_error import ErrorObject
from tiers.dialects.usage_counter import Tally
from tiers.errors import TierRequestError
from tiers.tier import Delta, ModelRequest

_encode = msgspec.json.Encoder().encode
# Older models take a budget of thinking tokens; newer ones think as much as `effort` lets them.
BUDGET_MODELS = (
    "claude-3", "claude-haiku-4-5", "claude-opus-4-0", "claude-opus-4-1", "claude-opus-4-2025", "claude-opus-4-5",
    "claude-sonnet-4-0", "claude-sonnet-4-2025", "claude-sonnet-4-5",
)  # fmt: skip
# These take both.
HYBRID_MODELS = ("claude-opus-4-6", "claude-sonnet-4-6")
# By OpenAI's names: which classes of service Anthropic's API has.
SERVICE_TIERS = {"auto": "auto", "default": "standard_only"}
EFFORTS: dict[str, Effort] = {
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "xhigh",
    "max": "max",
}
# Fields of a caller of the same API that no other has, or that are said more exactly there.
SAME_FIELDS = (
    "max_tokens", "cache_control", "context_management", "container", "inference_geo", "mcp_servers", "speed",
)  # fmt: skip
MARK = "cache_control"
_MARK = b'"cache_control"'
_CACHED = {"type": "ephemeral"}
_THOUGHTS = ("thinking", "redacted_thinking")

_KNOWN = frozenset({"temperature", "top_p", "top_k", "reasoning_effort", BUDGET, "parallel_tool_calls"})
_ON_VERTEX = "Claude on Vertex AI"
_VERTEX_VERSION = "vertex-2023-10-16"
# Families of Anthropic's beta features that Vertex AI refuses by name, and one that has another name there
# (https://github.com/BerriAI/litellm/blob/main/litellm/anthropic_beta_headers_config.json, 2026-11).
_BETAS_REFUSED = re.compile(
    r"(advisor-tool|agent-memory|bash_|cache-diagnosis|code-execution|computer-use-2024|extended-cache-ttl|fast-mode"
    r"|files-api|managed-agents|mcp-|message-batches|message-threads|oauth|output-300k|prompt-caching|redact-thinking"
    r"|skills|text_editor_|user-profiles|web-fetch)"
)
_BETAS_RENAMED = {"advanced-tool-use-2025-11-20": "tool-search-tool-2025-10-19"}


class MessagesServer(ServerDialect):
    """Anthropic, or another server with its Messages API."""

    needs_limit = True
    form: Dialect | None = DIALECT
    marks_cache = True

    def model_problem(self, status: int, body: bytes) -> str | None:
        """See `ServerDialect.model_problem`. Servers other than Anthropic's may not list models."""
        if status == 404 and b"not_found_error" in body:
            return missing_model(self._remote.model, body)
        return None

    def published_output(self, body: bytes) -> int | None:
        return published_by(body, ("max_tokens", "max_output_tokens"))

    def is_about_model(self, error: ErrorObject) -> bool:
        """See `ServerDialect.is_about_model`: an account without credit is refused with 400."""
        return "credit balance" in error.words

    def check(self, request: ModelRequest) -> None:
        check_provider(request, NAME)
        if answer_schema(request, NAME) == {} and request.response_format is None:
            raise TierRequestError(
                f"structured_outputs: {NAME} takes a json_schema, not any JSON object; use response_format, or name "
                "another tier",
                "structured_outputs",
            )
        for block in media_parts(request):
            source_of(block)

    def call(self, request: ModelRequest, max_tokens: int | None) -> ServerCall:
        assert max_tokens is not None, "the API needs a limit"
        messages = request.messages or []
        streamed = self.is_streamed(request)
        path, head = self._addressed(streamed=streamed)
        body: dict[str, Any] = head | {
            "max_tokens": max_tokens,
            "messages": message_turns(messages, controls=self.rules.turns.system == "after-user"),
            "stream": streamed,
        }
        if system := system_of(messages):
            body["system"] = system
        if request.stop:
            body["stop_sequences"] = list(request.stop)
        body |= tool_fields(request) | same_fields(request)
        thinking = self._thinking(request, max_tokens)
        sampling = sampling_fields(request, thinking)
        passed, passed_names = passed_fields(request.passed)
        added: tuple[str, ...] = ()
        if request.cache_reuse and not is_marked(request):
            mark(body)
            added = (MARK,)
        dropped = dropped_fields(request, _KNOWN | passed_names)
        dropped += dropped_sampling(request, sampling) + dropped_thinking(request, thinking)
        betas = betas_of(request)
        headers = ((BETAS.encode(), betas.encode()),) if betas else ()
        body, unknown = self.with_own_fields(body | thinking | sampling | passed, request)
        return ServerCall(path, _encode(body), streamed, dropped + unknown, added, headers)

    def _addressed(self, *, streamed: bool) -> tuple[str, dict[str, Any]]:
        """Return the path of a call, and the fields of its body that name model and version."""
        return "messages", {"model": self._remote.model}

    def _thinking(self, request: ModelRequest, max_tokens: int) -> dict[str, Any]:
        """Return `thinking` and `output_config`: of a caller of this API as they are, if the model takes them."""
        schema, fields = answer_schema(request, NAME), same_thinking(self._remote.model, request, max_tokens)
        if fields is None:
            fields = thinking_fields(self._remote.model, request, max_tokens)
        elif "output_config" in fields:
            return fields
        if schema is not None:
            output, form = fields.get("output_config", OutputConfig()), OutputFormat(type="json_schema", schema=schema)
            fields["output_config"] = msgspec.structs.replace(output, format=form)
        return fields

    def own_turns(self, messages: list[Turn]) -> list[Turn]:
        """See `ServerDialect.own_turns`: models of Anthropic refuse thoughts that none of them has signed."""
        return list(map(_without_unsigned, messages)) if "claude" in self._remote.model else messages

    def without_refused(
        self, call: ServerCall, refused: frozenset[str]
    ) -> tuple[bytes, tuple[str, ...], tuple[str, ...]]:
        return without_extras(call.body, refused)

    def read_event(self, event: ServerSentEvent, tally: Tally) -> list[Delta] | None:
        return read_event(event, tally)

    def read_whole(self, body: bytes, tally: Tally) -> list[Delta]:
        return read_whole(body, tally)


class VertexMessagesServer(MessagesServer):
    """Claude on Vertex AI."""

    def __init__(self, remote: RemoteSpec) -> None:
        super().__init__(remote)
        self._model = f"publishers/anthropic/models/{quote(remote.model, safe='@')}"

    def check(self, request: ModelRequest) -> None:
        """See `ServerDialect.check`: images and files are sent as data, because Vertex AI fetches none."""
        super().check(request)
        for block in media_parts(request):
            if media_of(block, _ON_VERTEX).url:
                raise TierRequestError(f"messages: {_ON_VERTEX} fetches no image or file; send its data", "messages")

    def call(self, request: ModelRequest, max_tokens: int | None) -> ServerCall:
        """See `ServerDialect.call`. It has one class of service, and not all betas of Anthropic's own API."""
        betas, passed = betas_of(request), request.passed
        lost: tuple[str, ...] = ()
        if request.opaque is not None and (taken := taken_betas(betas)) != betas:
            opaque = request.opaque.with_fields(request.opaque.fields | {BETAS: _encode(taken)})
            request = msgspec.structs.replace(request, opaque=opaque)
            lost += (BETAS,)
        if "service_tier" in passed:
            others = {name: value for name, value in passed.items() if name != "service_tier"}
            request = msgspec.structs.replace(request, passed=others)
            lost += ("service_tier",)
        call = super().call(request, max_tokens)
        return msgspec.structs.replace(call, dropped=call.dropped + lost) if lost else call

    def _addressed(self, *, streamed: bool) -> tuple[str, dict[str, Any]]:
        method = "streamRawPredict" if streamed else "rawPredict"
        return f"{self._model}:{method}", {"anthropic_version": _VERTEX_VERSION}


def betas_of(request: ModelRequest) -> str:
    """Return the caller's header `anthropic-beta`, "" for none."""
    said = request.fields_in(DIALECT).get(BETAS)
    return "" if said is None else msgspec.json.decode(said, type=str)


def taken_betas(betas: str) -> str:
    """Return those of the header `anthropic-beta` that Vertex AI takes, by its names."""
    named = (_BETAS_RENAMED.get(beta.strip(), beta.strip()) for beta in betas.split(","))
    return ",".join(dict.fromkeys(beta for beta in named if beta and not _BETAS_REFUSED.match(beta)))


WrittenBlock = Block | msgspec.Raw
"""A block of ours, or one as it was given."""


def system_of(messages: Sequence[Turn]) -> str | list[WrittenBlock]:
    """Return the system prompt, which is what the system says at the start: as text, or as blocks where the caller gave
    it so; empty for none."""
    start = list(takewhile(is_system, messages))
    if not any(message.written(DIALECT) for message in start):
        return system_text(start)
    blocks: list[WrittenBlock] = []
    for message in start:
        if said := message.written(DIALECT):
            blocks += [msgspec.Raw(block.json) for block in said if block.json and block.type != TURN]
        elif message.text:
            blocks.append(Block(type="text", text=message.text))
    return blocks


def message_turns(messages: Sequence[Turn], *, controls: bool) -> list[WrittenTurn]:
    """Return the conversation as Anthropic has it: results of tools are a user's blocks, and no text is empty. A later
    turn of the system stands where it stood (`tiers.dialects.rules` says for which models). `controls`: whether it may
    say more than its text."""
    turns: list[WrittenTurn] = []
    said: list[WrittenBlock] = []  # by the last turn
    for message in dropwhile(is_system, messages):
        role, blocks = _blocks_of(message)
        own = [block.json for block in message.written(DIALECT) if block.type == TURN]
        if role == "system" and controls and own:
            blocks = []
        if blocks and turns and turns[-1].role == role and not turns[-1].has_controls:
            said += blocks
        elif blocks:
            said = blocks
            turns.append(WrittenTurn(role=role, content=said))
        turns += [msgspec.json.decode(raw, type=WrittenTurn) for raw in own] if controls else []
    if not turns:
        raise TierRequestError("messages: a turn of the user with a text is needed", "messages")
    last = said[-1] if turns[-1].role == "assistant" else None
    if isinstance(last, Block) and last.type == "text":
        # The answer goes on from here; a space at its end is refused.
        said[-1] = msgspec.structs.replace(last, text=(last.text or "").rstrip() or ".")
    return turns


_ROLES: dict[str, Role] = {"assistant": "assistant", "system": "system"}


def _blocks_of(message: Turn) -> tuple[Role, list[WrittenBlock]]:
    role = _ROLES.get(message.role, "user")
    said = message.written(DIALECT)
    if said and [block.type for block in said] != [TURN]:
        return role, [msgspec.Raw(block.json) for block in said if block.json and block.type != TURN]
    content = content_blocks(message)
    if message.role == "tool":
        return "user", [Block(type="tool_result", tool_use_id=message.call_id or "", content=content or None)]
    calls = [
        Block(type="tool_use", id=call.id, name=call.name, input=call.object_arguments()) for call in message.calls
    ]
    return role, [*content, *calls]


def content_blocks(message: Turn) -> list[Block]:
    """Return the parts of a message as blocks, without blank texts. Raises TierRequestError for audio."""
    blocks: list[Block] = []
    for block in message.content_blocks:
        mark = block.cache_control
        if isinstance(block, Text):
            blocks += [Block(type="text", text=block.text, cache_control=mark)] if block.text.strip() else []
            continue
        media = source_of(block)
        if media.url:
            source = Source(type="url", url=media.url)
        else:
            source = Source(type="base64", media_type=media.type, data=media.data)
        blocks.append(Block(type="image" if media.kind == "image" else "document", source=source, cache_control=mark))
    return blocks


def source_of(block: Media) -> MediaBody:
    """Return an image or a document. Raises TierRequestError for audio and videos."""
    media = media_of(block, NAME)
    if media.kind in ("audio", "video"):
        raise TierRequestError(f"messages: {NAME} reads no {media.kind}; name another tier", "messages")
    return media


def same_fields(request: ModelRequest) -> dict[str, Any]:
    """Return the fields of a caller of the same API that go on as they are, but for what its tools were changed to."""
    caller_fields = request.fields_in(DIALECT)
    tools = edited_tools(caller_fields, request.tooling, "input_schema")
    return tools | {name: msgspec.Raw(caller_fields[name]) for name in SAME_FIELDS if name in caller_fields}


def is_marked(request: ModelRequest) -> bool:
    """Whether the caller has marked what is to be cached."""
    caller_fields = request.fields_in(DIALECT)
    if MARK in caller_fields or any(_MARK in said for said in caller_fields.values()):
        return True
    if request.tooling is not None and any(tool.cache_control is not None for tool in request.tooling.tools):
        return True
    turns = request.messages or ()
    if any(block.cache_control is not None for turn in turns if turn.cache_mark for block in turn.content_blocks):
        return True
    return any(_MARK in block.json for turn in turns for block in turn.written(DIALECT))


def mark(body: dict[str, Any]) -> None:
    """Mark tools, system prompt and last turn, for the next step to read from the cache; Anthropic takes four marks."""
    if tools := body.get("tools"):
        listed = msgspec.json.decode(tools, type=list[msgspec.Raw]) if isinstance(tools, msgspec.Raw) else tools
        body["tools"] = [*listed[:-1], _marked(listed[-1])] if listed else listed
    if system := body.get("system"):
        blocks = [Block(type="text", text=system)] if isinstance(system, str) else system
        body["system"] = [*blocks[:-1], _marked(blocks[-1])]
    turn = body["messages"][-1]
    if turn.role == "user":
        turn.content[-1] = _marked(turn.content[-1])


def _marked(entry: Block | ToolEntry | msgspec.Raw) -> Any:
    if isinstance(entry, msgspec.Raw):
        return msgspec.json.decode(entry, type=dict[str, Any]) | {MARK: _CACHED}
    return msgspec.structs.replace(entry, cache_control=_CACHED)


def same_thinking(model: str, request: ModelRequest, max_tokens: int) -> dict[str, Any] | None:
    """Return `thinking` and `output_config` of a caller of the same API, with the effort that its server takes; None
    where the model does not take them so: one kind of models takes budgets, the other `adaptive`."""
    caller_fields = request.fields_in(DIALECT)
    if not {"thinking", "output_config"} & caller_fields.keys():
        return None
    takes_budgets = model.startswith(BUDGET_MODELS)
    fields: dict[str, Any] = {}
    if (said := caller_fields.get("thinking")) is not None:
        asked = msgspec.json.decode(said, type=Thinking)
        if asked.type == "enabled":
            fits = (asked.budget_tokens or 0) < max_tokens or INTERLEAVED in betas_of(request)
            if not fits or not (takes_budgets or model.startswith(HYBRID_MODELS)) or is_cut_off(request):
                return None
        elif asked.type != "disabled" and takes_budgets:
            return None
        fields["thinking"] = msgspec.Raw(said)
    if (said := caller_fields.get("output_config")) is not None:
        effort = request.reasoning_effort
        if takes_budgets and effort is not None and not model.startswith("claude-opus-4-5"):
            return None
        if (output := overlaid(said, effort=effort)) is not None:
            fields["output_config"] = output
    return fields


def thinking_fields(model: str, request: ModelRequest, max_tokens: int | None) -> dict[str, Any]:
    """Return the fields for the requested thinking; {} leaves it to the model. `max_tokens` None: as many as it can.

    A forced call excludes thinking. With a budget, so does a loop of calls whose thoughts cannot be given back.
    """
    effort, budget = request.reasoning_effort, request.reasoning_budget
    if effort == "none" or budget == 0:
        return {"thinking": Thinking(type="disabled")}
    forced = request.tooling is not None and request.tooling.is_forced
    if (effort is None and budget is None) or forced:
        return {}
    if not model.startswith(BUDGET_MODELS):
        fields: dict[str, Any] = {"thinking": Thinking(type="adaptive", display="summarized")}
        return fields | ({"output_config": OutputConfig(effort=EFFORTS[effort])} if effort is not None else {})
    wanted = budget if budget is not None else THINKING_TOKENS[effort or "medium"]
    room = wanted if max_tokens is None else max_tokens - MIN_THINKING_TOKENS
    if room < MIN_THINKING_TOKENS or is_cut_off(request):
        return {}
    return {"thinking": Thinking(type="enabled", budget_tokens=max(MIN_THINKING_TOKENS, min(wanted, room)))}


def is_cut_off(request: ModelRequest) -> bool:
    """Whether the last answer called tools, and what it thought before is not there in the form of its server."""
    answers = [message for message in request.messages or () if message.role == "assistant"]
    if not answers or not answers[-1].calls:
        return False
    # Claude on Bedrock has its thoughts in that dialect.
    said = answers[-1].written(DIALECT) or answers[-1].written("bedrock")
    return not said or said[0].type not in _THOUGHTS


def sampling_fields(request: ModelRequest, thinking: dict[str, Any]) -> dict[str, Any]:
    """Return the sampling parameters set. Models refuse all while they think, and `temperature` with `top_p`."""
    asked = thinking.get("thinking")
    if isinstance(asked, msgspec.Raw):
        asked = msgspec.json.decode(asked, type=Thinking)
    if asked is not None and asked.type in ("enabled", "adaptive"):
        return {}
    sampling, given_fields = request.sampling, request.given
    fields: dict[str, Any] = {"top_k": sampling.top_k} if sampling.top_k else {}
    if sampling.temperature != 1.0 or ("temperature" in given_fields and sampling.top_p == 1.0):
        fields["temperature"] = min(sampling.temperature, 1.0)
    elif sampling.top_p != 1.0 or "top_p" in given_fields:
        fields["top_p"] = sampling.top_p
    return fields


def dropped_sampling(request: ModelRequest, sent: dict[str, Any]) -> tuple[str, ...]:
    """Return the sampling parameters of Anthropic's that are set and not `sent` as they are."""
    asked = {"temperature": 1.0, "top_p": 1.0, "top_k": 0}
    values = {name: getattr(request.sampling, name) for name in asked}
    return tuple([name for name, neutral in asked.items() if values[name] not in (neutral, sent.get(name))])


def dropped_thinking(request: ModelRequest, sent: dict[str, Any]) -> tuple[str, ...]:
    """Return the fields that ask for thoughts, if none of them are `sent`."""
    if sent:
        return ()
    asked = (("reasoning_effort", request.reasoning_effort), (BUDGET, request.reasoning_budget))
    return tuple([name for name, value in asked if value is not None])


def passed_fields(passed: dict[str, Any]) -> tuple[dict[str, Any], frozenset[str]]:
    """Return the fields for what the caller said of its user and its class of service, and which names these are."""
    fields: dict[str, Any] = {}
    names: set[str] = set()
    for name in ("user", "safety_identifier"):
        if name in passed and "metadata" not in fields:
            fields["metadata"] = RequestMetadata(user_id=passed[name])
            names.add(name)
    if (wanted := SERVICE_TIERS.get(passed.get("service_tier", ""))) is not None:
        fields["service_tier"] = wanted
        names.add("service_tier")
    return fields, frozenset(names)


def tool_fields(request: ModelRequest) -> dict[str, Any]:
    """Return the tools of a chat and the choice among them."""
    tooling = request.tooling
    if tooling is None:
        return {}
    tools = [
        ToolEntry(
            name=tool.name,
            description=tool.description or None,
            input_schema={"type": "object", **tool.schema},
            cache_control=tool.cache_control,
        )
        for tool in tooling.tools
    ]
    is_single = not tooling.parallel and tooling.choice != "none"
    choice = ToolChoice(
        type=_CHOICES[tooling.choice],
        name=tooling.name if tooling.choice == "named" else None,
        disable_parallel_tool_use=True if is_single else None,
    )
    return {"tools": tools, "tool_choice": choice}


_CHOICES: dict[str, Literal["auto", "any", "tool", "none"]] = {
    "none": "none", "auto": "auto", "required": "any", "named": "tool"
}  # fmt: skip


def _without_unsigned(message: Turn) -> Turn:
    """Return the turn without thoughts that no model of Anthropic's has signed, which it refuses."""
    said = message.opaque
    if not any(block.type == "thinking" and not block.seal for block in said):
        return message
    return message.with_opaque(block for block in said if block.type != "thinking" or block.seal)
