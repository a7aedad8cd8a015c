"""Tools, the choice among them, and calls of them, as passed between gateway and tiers."""

import json
import secrets
from typing import Any, Literal

import msgspec

# What the text of a tool's result begins with if its call failed; Anthropic's `is_error` becomes it.
FAILED_RESULT = "Error: "
NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A function that a model may call. `parameters` is a JSON schema of an object; None for no parameters.

    `strict`: calls always follow the schema, even if the model is free to call or not. `custom`: the function stands
    for a tool of the caller's that takes text. `cache_control`: a mark of the caller's for a provider's cache.
    """

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool = False
    custom: bool = False
    cache_control: dict[str, Any] | None = None

    def definition(self) -> dict[str, Any]:
        """The tool as chat templates and OpenAI-compatible servers expect it, without our own fields."""
        function: dict[str, Any] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        function["parameters"] = self.schema
        return {"type": "function", "function": function}

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of the arguments."""
        return NO_PARAMETERS if self.parameters is None else self.parameters


class ToolCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call in a conversation; `arguments` is JSON text. `extra_content`: JSON that its server needs back."""

    id: str
    name: str
    arguments: str
    extra_content: bytes = b""

    def parsed_arguments(self) -> Any:
        """Return the arguments as data; text that is not JSON stays text."""
        try:
            return json.loads(self.arguments)
        except (ValueError, RecursionError):
            return self.arguments


class ToolCallDelta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A piece of the call number `index` of a choice: first `id` and `name`, then pieces of the arguments' JSON.
    `extra_content`: see `ToolCall`; whole."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""
    extra_content: bytes = b""


class Tooling(msgspec.Struct, frozen=True, kw_only=True):
    """A request's tools. `choice`: no call, optional calls, at least one, or the tool called `name`.

    `parallel`: whether one answer may contain several calls.
    """

    tools: tuple[Tool, ...]
    choice: Literal["none", "auto", "required", "named"] = "auto"
    name: str | None = None
    parallel: bool = True

    @property
    def is_forced(self) -> bool:
        """Whether the answer must be a call."""
        return self.choice in ("required", "named")

    @property
    def callable_tools(self) -> list[tuple[int, Tool]]:
        """Return the tools that the answer may call, with their positions among all."""
        if self.choice == "none":
            return []
        return [(i, tool) for i, tool in enumerate(self.tools) if self.choice != "named" or tool.name == self.name]


def new_call_id() -> str:
    """Return a call id in OpenAI's format."""
    return f"call_{secrets.token_hex(12)}"
