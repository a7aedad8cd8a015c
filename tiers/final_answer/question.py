"""What of a conversation says how its answer has to end."""

from collections.abc import Sequence

from tiers.tier import ChatMessage


def question_of(messages: Sequence[ChatMessage]) -> str:
    """Return the system prompt and the last message."""
    system = [one.content for one in messages[:-1] if one.role in ("system", "developer")]
    return "\n\n".join([*system, *(one.content for one in messages[-1:])])
