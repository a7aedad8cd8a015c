"""Requests in the form of Anthropic's Messages API: turns, tools, thinking and marks of the cache. What a caller said
in this form goes on as it is; what a chat said is put into it."""

from collections.abc import Sequence
from itertools import dropwhile, takewhile
from typing import Any

import msgspec

from tiers.conversation import INTERLEAVED, TURN, Media, NativeRequest, Text, Turn
from tiers.dialects.dialect import (
    MIN_THINKING_TOKENS,
    THINKING_TOKENS,
    MediaBody,
    is_system,
    media_of,
    system_text,
)
from tiers.dialects.messages import DIALECT, NAME
from tiers.dialects.rules import BUDGET
from tiers.errors import TierRequestError
from tiers.tier import GenerationRequest

# Older models take a budget of thinking tokens; newer ones think as much as `effort` lets them.
BUDGET_MODELS = (
    "claude-3", "claude-haiku-4-5", "claude-opus-4-0", "claude-opus-4-1", "claude-opus-4-2025", "claude-opus-4-5",
    "claude-sonnet-4-0", "claude-sonnet-4-2025", "claude-sonnet-4-5",
)  # fmt: skip
# These take both.
HYBRID_MODELS = ("claude-opus-4-6", "claude-sonnet-4-6")
# By OpenAI's names: which classes of service Anthropic's API has.
SERVICE_TIERS = {"auto": "auto", "default": "standard_only"}
EFFORTS = {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "xhigh", "max": "max"}
# Fields of a caller of the same API that no other has, or that are said more exactly there.
SAME_FIELDS = (
    "max_tokens", "tools", "tool_choice", "cache_control", "context_management", "container", "inference_geo",
    "mcp_servers", "speed",
)  # fmt: skip
MARK = "cache_control"
_MARK = b'"cache_control"'
_CACHED = {"type": "ephemeral"}
_THOUGHTS = ("thinking", "redacted_thinking")

Block = dict[str, Any] | msgspec.Raw


def system_of(messages: Sequence[Turn]) -> str | list[Block]:
    """Return the system prompt, which is what the system says at the start: as text, or as blocks where the caller gave
    it so; empty for none."""
    start = list(takewhile(is_system, messages))
    if not any(message.written(DIALECT) for message in start):
        return system_text(start)
    blocks: list[Block] = []
    for message in start:
        if said := message.written(DIALECT):
            blocks += [msgspec.Raw(block.json) for block in said if block.json and block.type != TURN]
        elif message.text:
            blocks.append({"type": "text", "text": message.text})
    return blocks


def message_turns(messages: Sequence[Turn], *, controls: bool) -> list[dict[str, Any]]:
    """Return the conversation as Anthropic has it: results of tools are a user's blocks, and no text is empty. A later
    turn of the system stands where it stood (`tiers.dialects.rules` says for which models). `controls`: whether it may
    say more than its text."""
    turns: list[dict[str, Any]] = []
    for message in dropwhile(is_system, messages):
        role, blocks = _blocks_of(message)
        own = [block.json for block in message.written(DIALECT) if block.type == TURN]
        if role == "system" and controls and own:
            blocks = []
        if blocks and turns and turns[-1]["role"] == role and len(turns[-1]) == 2:
            turns[-1]["content"] += blocks
        elif blocks:
            turns.append({"role": role, "content": blocks})
        turns += [msgspec.json.decode(one, type=dict[str, Any]) for one in own] if controls else []
    if not turns:
        raise TierRequestError("messages: a turn of the user with a text is needed", "messages")
    last = turns[-1]["content"][-1] if turns[-1]["role"] == "assistant" else None
    if isinstance(last, dict) and last["type"] == "text":
        # The answer goes on from here; a space at its end is refused.
        last["text"] = last["text"].rstrip() or "."
    return turns


def _blocks_of(message: Turn) -> tuple[str, list[Block]]:
    role = message.role if message.role in ("assistant", "system") else "user"
    said = message.written(DIALECT)
    if said and [block.type for block in said] != [TURN]:
        return role, [msgspec.Raw(block.json) for block in said if block.json and block.type != TURN]
    content = content_blocks(message)
    if message.role == "tool":
        result = {"type": "tool_result", "tool_use_id": message.call_id or ""}
        return "user", [result | ({"content": content} if content else {})]
    calls = [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": call.object_arguments()}
        for call in message.calls
    ]
    return role, [*content, *calls]


def content_blocks(message: Turn) -> list[dict[str, Any]]:
    """Return the parts of a message as blocks, without blank texts. Raises TierRequestError for audio."""
    blocks: list[dict[str, Any]] = []
    for block in message.content_blocks:
        if isinstance(block, Text):
            blocks += [{"type": "text", "text": block.text}] if block.text.strip() else []
            continue
        media = source_of(block)
        source = {"type": "base64", "media_type": media.type, "data": media.data}
        source = {"type": "url", "url": media.url} if media.url else source
        blocks.append({"type": "image" if media.kind == "image" else "document", "source": source})
    return blocks


def source_of(block: Media) -> MediaBody:
    """Return an image or a document. Raises TierRequestError for audio and videos."""
    media = media_of(block, NAME)
    if media.kind in ("audio", "video"):
        raise TierRequestError(f"messages: {NAME} reads no {media.kind}; name another tier", "messages")
    return media


def same_fields(native: NativeRequest | None) -> dict[str, Any]:
    """Return the fields of a caller of the same API that go on as they are."""
    if native is None:
        return {}
    return {name: msgspec.Raw(native.fields[name]) for name in SAME_FIELDS if name in native.fields}


def is_marked(request: GenerationRequest) -> bool:
    """Whether the caller has marked what is to be cached."""
    native = request.native
    if native is not None and (MARK in native.fields or any(_MARK in said for said in native.fields.values())):
        return True
    if request.tooling is not None and any(tool.cache_control is not None for tool in request.tooling.tools):
        return True
    return any(_MARK in block.json for message in request.messages or () for block in message.written(DIALECT))


def mark(body: dict[str, Any]) -> None:
    """Mark tools, system prompt and last turn, for the next step to read from the cache; Anthropic takes four marks."""
    if tools := body.get("tools"):
        listed = msgspec.json.decode(tools, type=list[Any]) if isinstance(tools, msgspec.Raw) else tools
        body["tools"] = [*listed[:-1], listed[-1] | {MARK: _CACHED}] if listed else listed
    if system := body.get("system"):
        blocks: list[Block] = [{"type": "text", "text": system}] if isinstance(system, str) else system
        body["system"] = [*blocks[:-1], _marked(blocks[-1])]
    turn = body["messages"][-1]
    if turn["role"] == "user":
        turn["content"][-1] = _marked(turn["content"][-1])


def _marked(block: Block) -> dict[str, Any]:
    plain = msgspec.json.decode(block, type=dict[str, Any]) if isinstance(block, msgspec.Raw) else block
    return plain | {MARK: _CACHED}


def native_thinking(model: str, request: GenerationRequest, max_tokens: int) -> dict[str, Any] | None:
    """Return `thinking` and `output_config` of a caller of the same API as they are; None where the model does not take
    them so: one kind of models takes budgets, the other `adaptive`."""
    native = request.native
    if native is None or not {"thinking", "output_config"} & native.fields.keys():
        return None
    takes_budgets = model.startswith(BUDGET_MODELS)
    fields: dict[str, Any] = {}
    if (said := native.fields.get("thinking")) is not None:
        asked = msgspec.json.decode(said, type=dict[str, Any])
        if asked.get("type") == "enabled":
            fits = asked.get("budget_tokens", 0) < max_tokens or INTERLEAVED in native.betas
            if not fits or not (takes_budgets or model.startswith(HYBRID_MODELS)) or is_cut_off(request):
                return None
        elif asked.get("type") != "disabled" and takes_budgets:
            return None
        fields["thinking"] = msgspec.Raw(said)
    if (said := native.fields.get("output_config")) is not None:
        output = msgspec.json.decode(said, type=dict[str, Any])
        if takes_budgets and "effort" in output and not model.startswith("claude-opus-4-5"):
            return None
        fields["output_config"] = msgspec.Raw(said)
    return fields


def thinking_fields(model: str, request: GenerationRequest, max_tokens: int | None) -> dict[str, Any]:
    """Return the fields for the requested thinking; {} leaves it to the model. `max_tokens` None: as many as it can.

    A forced call excludes thinking. With a budget, so does a loop of calls whose thoughts cannot be given back.
    """
    effort, budget = request.reasoning_effort, request.reasoning_budget
    if effort == "none" or budget == 0:
        return {"thinking": {"type": "disabled"}}
    forced = request.tooling is not None and request.tooling.is_forced
    if (effort is None and budget is None) or forced:
        return {}
    if not model.startswith(BUDGET_MODELS):
        fields: dict[str, Any] = {"thinking": {"type": "adaptive", "display": "summarized"}}
        return fields | ({"output_config": {"effort": EFFORTS[effort]}} if effort is not None else {})
    wanted = budget if budget is not None else THINKING_TOKENS[effort or "medium"]
    room = wanted if max_tokens is None else max_tokens - MIN_THINKING_TOKENS
    if room < MIN_THINKING_TOKENS or is_cut_off(request):
        return {}
    return {"thinking": {"type": "enabled", "budget_tokens": max(MIN_THINKING_TOKENS, min(wanted, room))}}


def is_cut_off(request: GenerationRequest) -> bool:
    """Whether the last answer called tools, and what it thought before is not there in the form of its maker."""
    answers = [message for message in request.messages or () if message.role == "assistant"]
    if not answers or not answers[-1].calls:
        return False
    # Claude on Bedrock has its thoughts in that dialect.
    said = answers[-1].written(DIALECT) or answers[-1].written("bedrock")
    return not said or said[0].type not in _THOUGHTS


def sampling_fields(request: GenerationRequest, thinking: dict[str, Any]) -> dict[str, Any]:
    """Return the sampling parameters set. Models refuse all while they think, and `temperature` with `top_p`."""
    asked = thinking.get("thinking", {})
    if isinstance(asked, msgspec.Raw):
        asked = msgspec.json.decode(asked)
    if asked.get("type") in ("enabled", "adaptive"):
        return {}
    sampling, given = request.sampling, request.given
    fields: dict[str, Any] = {"top_k": sampling.top_k} if sampling.top_k else {}
    if sampling.temperature != 1.0 or ("temperature" in given and sampling.top_p == 1.0):
        fields["temperature"] = min(sampling.temperature, 1.0)
    elif sampling.top_p != 1.0 or "top_p" in given:
        fields["top_p"] = sampling.top_p
    return fields


def dropped_sampling(request: GenerationRequest, sent: dict[str, Any]) -> tuple[str, ...]:
    """Return the sampling parameters of Anthropic's that are set and not `sent` as they are."""
    asked = {"temperature": 1.0, "top_p": 1.0, "top_k": 0}
    values = {name: getattr(request.sampling, name) for name in asked}
    return tuple([name for name, neutral in asked.items() if values[name] not in (neutral, sent.get(name))])


def dropped_thinking(request: GenerationRequest, sent: dict[str, Any]) -> tuple[str, ...]:
    """Return the fields that ask for thoughts, if none of them are `sent`."""
    if sent:
        return ()
    asked = (("reasoning_effort", request.reasoning_effort), (BUDGET, request.reasoning_budget))
    return tuple([name for name, value in asked if value is not None])


def passed_fields(passed: dict[str, Any]) -> tuple[dict[str, Any], frozenset[str]]:
    """Return the fields for what the caller said of its user and its class of service, and which names these are."""
    fields: dict[str, Any] = {}
    known: set[str] = set()
    for name in ("user", "safety_identifier"):
        if name in passed and "metadata" not in fields:
            fields["metadata"] = {"user_id": passed[name]}
            known.add(name)
    if (wanted := SERVICE_TIERS.get(passed.get("service_tier", ""))) is not None:
        fields["service_tier"] = wanted
        known.add("service_tier")
    return fields, frozenset(known)


def tool_fields(request: GenerationRequest) -> dict[str, Any]:
    """Return the tools of a chat and the choice among them."""
    tooling = request.tooling
    if tooling is None:
        return {}
    tools = [
        {"name": tool.name, "input_schema": {"type": "object", **tool.schema}}
        | ({"description": tool.description} if tool.description else {})
        | ({MARK: tool.cache_control} if tool.cache_control is not None else {})
        for tool in tooling.tools
    ]
    choice: dict[str, Any] = {"type": {"required": "any", "named": "tool"}.get(tooling.choice, tooling.choice)}
    if tooling.choice == "named":
        choice["name"] = tooling.name
    if not tooling.parallel and tooling.choice != "none":
        choice["disable_parallel_tool_use"] = True
    return {"tools": tools, "tool_choice": choice}
