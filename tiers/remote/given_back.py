"""Thoughts and other state of earlier turns, written into the messages of a chat for the server that made them."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from tiers.chat_state import DETAILS, EXTRA
from tiers.remote.optional_fields import THOUGHTS
from tiers.remote.rules import Rules
from tiers.tier import ChatMessage

_NOT_KEPT = " "
"""Instead of thoughts that are not there any more, where a server refuses a turn without any: Moonshot's takes an empty
text for none."""
_UNSIGNED = {"google": {"thought_signature": "skip_thought_signature_validator"}}
"""Google's own words for a call that another model made (https://ai.google.dev/gemini-api/docs/thought-signatures)."""


def give_back(wires: Sequence[dict[str, Any]], messages: Sequence[ChatMessage], rules: Rules) -> tuple[str, ...]:
    """Add to each of `wires` what the turn of `messages` has for the server of `rules`. Return the names of what it
    does not get: thoughts where it takes none, and those that it needs and that are lost."""
    if "assistant" not in [message.role for message in messages]:
        return ()
    left_out: dict[str, None] = {}
    for wire, message, in_loop in zip(wires, messages, _in_loops(messages), strict=True):
        if message.role != "assistant":
            continue
        wanted = rules.thoughts and (in_loop or rules.thoughts_of == "all")
        if not wanted:
            left_out |= {THOUGHTS: None} if message.reasoning else {}
        elif message.reasoning:
            _add_thoughts(wire, message, rules.thoughts)
        elif in_loop and rules.needs_thoughts:
            wire[rules.thoughts[0]] = _NOT_KEPT
            # Of a turn whose maker is known, there were none.
            left_out |= {} if message.maker else {THOUGHTS: None}
        for block in message.state:
            wire[block.type] = msgspec.Raw(block.json)
        for place, call in enumerate(message.tool_calls):
            if call.extra_content:
                wire["tool_calls"][place][EXTRA] = msgspec.Raw(call.extra_content)
            elif rules.signs_calls and not place:
                # Of calls made together the first is signed.
                wire["tool_calls"][place][EXTRA] = _UNSIGNED
                left_out[f"messages.tool_calls.{EXTRA}"] = None
    return tuple(left_out)


def _add_thoughts(wire: dict[str, Any], message: ChatMessage, names: Sequence[str]) -> None:
    if names == ("content",):
        said = wire["content"]
        parts = [{"type": "text", "text": said}] if isinstance(said, str) and said else said or []
        thought = {"type": "text", "text": message.reasoning}
        wire["content"] = [{"type": "thinking", "thinking": [thought]}, *parts]
    elif not any(block.type == DETAILS for block in message.state):
        # Details are the same thoughts, and more.
        wire |= dict.fromkeys(names, message.reasoning)


def _in_loops(messages: Sequence[ChatMessage]) -> Iterator[bool]:
    """For each turn whether tools are called between the user's turn before it and the next one."""
    first, calls = 0, False
    for place, message in enumerate(messages):
        if message.role == "user":
            yield from [calls] * (place - first)
            first, calls = place, False
        calls = calls or bool(message.tool_calls)
    yield from [calls] * (len(messages) - first)
