"""Answers of the recording server with the liberties that servers were reported to take, which mean the same."""

import json
from collections.abc import Sequence
from typing import Any

Body = dict[str, Any]
Event = tuple[str, Any]
_ARGUMENTS = {"arguments", "input", "args"}


def lenient_answer(dialect: str, whole: Body, events: Sequence[Event]) -> tuple[Body, list[Event]]:
    """The same answer, whole and as events: counts as texts and floats, nulls in place of what is absent, arguments in
    the other form, calls without an index, ends that do not say that there are calls."""
    return _loosened(whole, dialect), [(name, _loosened(event, dialect)) for name, event in events]


def _loosened(value: Any, dialect: str) -> Any:
    if isinstance(value, list):
        return [_loosened(item, dialect) for item in value]
    if not isinstance(value, dict):
        return value
    loose = {name: _field(name, field, dialect) for name, field in value.items()}
    if dialect == "chat":
        if "function" in value:
            loose.pop("index", None)
            loose["type"] = None
        if "delta" in value:
            loose |= {"logprobs": None, "index": "0"}
        if "message" in value or "choices" in value:
            loose |= {"service_tier": 5, "logprobs": None}
    return loose


def _field(name: str, value: Any, dialect: str) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        if name.endswith(("_tokens", "TokenCount", "Tokens")):
            return float(value) if value % 2 else str(value)
        return value
    if name in ("finish_reason", "stop_reason", "stopReason") and value in ("tool_calls", "tool_use"):
        return "stop" if dialect == "chat" else "end_turn"
    # Anthropic's deltas and chats' pieces are texts that are joined: one whole text may be an object.
    if name == "args":
        return json.dumps(value, ensure_ascii=False)
    if name == "arguments" and isinstance(value, str) and value[:1] == "{" and value[-1:] == "}":
        return json.loads(value)
    return _loosened(value, dialect) if name not in _ARGUMENTS else value
