"""A Message as Anthropic shapes it, built from a finished Answer."""

from typing import Any, Literal

import msgspec

from gateway.base.requests.slo_class import SERVICE_TIERS
from gateway.inference.answering.answer import Answer
from gateway.inference.api.messages.call_ids import shown_call_id
from gateway.inference.api.messages.signatures import UNSIGNED
from gateway.inference.api.writing.answers import Routed, routed
from gateway.inference.api.writing.block_order import is_object
from tiers.collected_choice import CollectedChoice
from tiers.tier import Usage

_SERVED = {"priority": "priority", "batch": "batch"}

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"]
_REASONS: dict[str, StopReason] = {"length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}


class TextBlock(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    """A piece of the answer."""

    text: str


class ThinkingBlock(msgspec.Struct, frozen=True, tag_field="type", tag="thinking"):
    """What was thought before the answer."""

    thinking: str
    signature: str


class ToolUseBlock(msgspec.Struct, frozen=True, tag_field="type", tag="tool_use"):
    """A call of a tool; `input` is an object."""

    id: str
    name: str
    input: msgspec.Raw


class CacheCreation(msgspec.Struct, frozen=True):
    """Tokens written into a cache, by how long they stay."""

    ephemeral_5m_input_tokens: int
    ephemeral_1h_input_tokens: int


class MessageUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts; `input_tokens` are those that no cache had. `service_tier`: the class it was served in.
    `server_tool_use`: how often tools of the provider's own were used, as it said."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    cache_creation: CacheCreation | msgspec.UnsetType = msgspec.UNSET
    output_tokens: int
    service_tier: str | msgspec.UnsetType = msgspec.UNSET
    server_tool_use: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class MessageBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a whole answer, and of the first event of a stream. Of a server with this API `content` has its own
    blocks, of other types too. `x_aio`: as of chats; the last event of a stream has it."""

    id: str
    type: str = "message"
    role: str = "assistant"
    model: str
    content: list[TextBlock | ThinkingBlock | ToolUseBlock]
    stop_reason: str | None
    stop_sequence: str | None
    usage: MessageUsage
    container: Any = msgspec.UNSET
    context_management: Any = msgspec.UNSET
    x_aio: Routed | msgspec.UnsetType = msgspec.UNSET


class NativeEnd(msgspec.Struct, frozen=True):
    """How an answer of a server with this API ended: the `delta` of the last event, and what `more` it says."""

    delta: dict[str, Any]
    more: dict[str, Any]

    @property
    def stop_reason(self) -> str | None:
        """As the server says it."""
        return self.delta.get("stop_reason")

    @property
    def stop_sequence(self) -> str | None:
        """The one that ended it."""
        return self.delta.get("stop_sequence")


def native_end(choice: CollectedChoice) -> NativeEnd | None:
    """How the answer ended, if a server with this API gave it."""
    if choice.native_end is None or choice.native_end.form != "anthropic" or not choice.native_end.event:
        return None
    said = msgspec.json.decode(choice.native_end.event, type=dict[str, Any])
    delta = said.get("delta") or {}
    if choice.calls and delta.get("stop_reason") == "end_turn":
        # Lenient servers say so after calls, which a client would then not make.
        delta["stop_reason"] = "tool_use"
    return NativeEnd(delta, said)


class ThinkingShown(msgspec.Struct, frozen=True):
    """Which thoughts a client asked for: without `blocks` none, without `texts` only that there were some."""

    blocks: bool
    texts: bool


def whole_message(answer: Answer, thinking: ThinkingShown) -> MessageBody:
    """The body of a finished answer: its blocks as a server with this API gave them, else thoughts, text, calls."""
    choice = answer.choices[0]
    if (end := native_end(choice)) is not None:
        blocks: list[Any] = [msgspec.Raw(piece.block.json) for piece in choice.native if piece.block is not None]
        body = message_body(answer, blocks, usage_of(answer.usage, answer, end), end.stop_reason, end.stop_sequence)
        return msgspec.structs.replace(
            body,
            container=end.delta.get("container", msgspec.UNSET),
            context_management=end.more.get("context_management", msgspec.UNSET),
            x_aio=routed(answer),
        )
    content: list[TextBlock | ThinkingBlock | ToolUseBlock] = []
    if choice.reasoning and thinking.blocks:
        content.append(ThinkingBlock(choice.reasoning if thinking.texts else "", UNSIGNED))
    if choice.text:
        content.append(TextBlock(choice.text))
    for place, call in enumerate(choice.tool_calls):
        content.append(ToolUseBlock(tool_use_id(answer, call.id, place), call.name, _input(call.arguments)))
    reason, sequence = stop_of(answer)
    body = message_body(answer, content, usage_of(answer.usage, answer), reason, sequence)
    return msgspec.structs.replace(body, x_aio=routed(answer))


def message_body(
    answer: Answer,
    content: list[TextBlock | ThinkingBlock | ToolUseBlock],
    usage: MessageUsage,
    stop_reason: str | None = None,
    stop_sequence: str | None = None,
) -> MessageBody:
    """The body with this content."""
    return MessageBody(
        id=answer.request.request_id,
        model=answer.tier.model,
        content=content,
        stop_reason=stop_reason,
        stop_sequence=stop_sequence,
        usage=usage,
    )


def usage_of(usage: Usage | None, answer: Answer, end: NativeEnd | None = None) -> MessageUsage:
    """Token counts as Anthropic divides them. `end`: what the server itself said at the end."""
    usage = usage or Usage()
    own = {} if end is None else end.more.get("usage") or {}
    written, for_an_hour = usage.cache_write_tokens, usage.cache_write_1h_tokens
    served = SERVICE_TIERS[answer.request.generation.priority]
    return MessageUsage(
        input_tokens=max(0, usage.prompt_tokens - usage.cached_tokens - usage.cache_write_tokens),
        cache_creation_input_tokens=usage.cache_write_tokens,
        cache_read_input_tokens=usage.cached_tokens,
        cache_creation=CacheCreation(written - for_an_hour, for_an_hour) if written else msgspec.UNSET,
        output_tokens=usage.completion_tokens,
        server_tool_use=msgspec.Raw(msgspec.json.encode(used))
        if (used := own.get("server_tool_use"))
        else msgspec.UNSET,
        service_tier=_SERVED.get(served, "standard"),
    )


def stop_of(answer: Answer) -> tuple[StopReason, str | None]:
    """Why the answer ended, and the stop sequence that ended it."""
    choice = answer.choices[0]
    reason = "refusal" if choice.refused else _REASONS.get(choice.finish_reason or "stop")
    if reason is None and choice.stop_sequence in answer.request.generation.stop:
        return "stop_sequence", choice.stop_sequence
    if reason is None:
        # Some servers report a call that was forced as a stop.
        return ("tool_use" if choice.calls else "end_turn"), None
    return reason, None


def tool_use_id(answer: Answer, call_id: str, place: int) -> str:
    """The id of a call: a server's own, else one in Anthropic's format."""
    if not call_id:
        return f"toolu_{answer.request.request_id.removeprefix('msg_')}{place}"
    if answer.tier.core_name is None:
        return shown_call_id(call_id, answer.request.request_id, place)
    return f"toolu_{call_id.removeprefix('call_')}"


def _input(arguments: str) -> msgspec.Raw:
    """The arguments as an object; an empty one where they were cut off or are none."""
    return msgspec.Raw(arguments.encode() if is_object(arguments) else b"{}")
