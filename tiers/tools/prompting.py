"""Format conversations with tools for a model's chat template."""

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from tiers.tier import ChatMessage
from tiers.tool_types import Tool
from tiers.tools.dialect import Dialect

# For models whose chat template has no tools; docs/structured-output.md shows it.
INSTRUCTIONS = """\
You may call functions to help with the request. These are the functions, one per line, as JSON:
<tools>
{tools}
</tools>

To call a function, answer with its name and its arguments as JSON between <tool_call> and </tool_call>, and nothing \
else; to call several, write one such pair after the other:
<tool_call>
{{"name": "function-name", "arguments": {{"argument": "value"}}}}
</tool_call>
The results come back between <tool_response> and </tool_response>."""


def template_turns(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Format turns for a template with tools: calls as transformers' templates read them, arguments as data."""
    return [_turn(message) for message in messages]


def _turn(message: ChatMessage) -> dict[str, Any]:
    turn: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.name is not None:
        turn["name"] = message.name
    if message.tool_call_id is not None:
        turn["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        turn["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.parsed_arguments()}}
            for call in message.tool_calls
        ]
    return turn


def plain_messages(messages: Sequence[ChatMessage], tools: Sequence[Tool], dialect: Dialect) -> list[ChatMessage]:
    """Format turns for any other template: tools in the system turn, calls as text, results as a user's turn."""
    plain: list[ChatMessage] = []
    for message in messages:
        if message.role == "tool":
            result = f"<tool_response>\n{message.content}\n</tool_response>"
            if plain and plain[-1].role == "user" and plain[-1].content.startswith("<tool_response>"):
                before = plain.pop().content
                result = f"{before}\n{result}"
            plain.append(ChatMessage(role="user", content=result))
        elif message.tool_calls:
            calls = [
                f"{dialect.opener}{dialect.call_text(call.name, call.arguments)}{dialect.closer}"
                for call in message.tool_calls
            ]
            content = "\n".join(filter(None, [message.content, *calls]))
            plain.append(ChatMessage(role=message.role, content=content))
        else:
            plain.append(message)
    if not tools:
        return plain
    shown = "\n".join(json.dumps(tool.definition(), ensure_ascii=False, check_circular=False) for tool in tools)
    instructions = INSTRUCTIONS.format(tools=shown)
    if plain and plain[0].role == "system":
        first = msgspec.structs.replace(plain[0], content=f"{plain[0].content}\n\n{instructions}")
        return [first, *plain[1:]]
    return [ChatMessage(role="system", content=instructions), *plain]
