"""Reasoning that is kept for a caller's next step belongs to one key, and is forgotten with it."""

from types import SimpleNamespace
from typing import Any

from gateway.base.requests.caller import Caller
from gateway.inference.answering.kept_reasoning import KeptReasoning
from tests.gateway.chats import chat
from tiers.native_content import NativeBlock, NativePiece
from tiers.tier import ChatMessage
from tiers.tool_types import ToolCall

CALL = ToolCall(id="call_1", name="weather", arguments='{"city": "Oslo"}')
THOUGHT = NativePiece("anthropic", block=NativeBlock(b'{"type":"thinking"}', "thinking", seal="EqQB"))


def answered(key_id: str) -> Any:
    """An answer with a sealed thought and a call, as far as it is read."""
    choice = SimpleNamespace(native=[THOUGHT], calls=[CALL], text="I look it up.", tool_calls=[CALL])
    return SimpleNamespace(request=chat("Weather?", caller=Caller(key_id=key_id)), choices=[choice])


def test_reasoning_is_given_back_to_its_key_until_that_is_erased() -> None:
    kept, keys = KeptReasoning(), ("ada", "bob", "eve")
    for name in keys[:2]:
        kept.keep(answered(name))
    said = ChatMessage(role="assistant", content="I look it up.", tool_calls=(CALL,))

    def given_back() -> list[bool]:
        steps = [chat(messages=[said], caller=Caller(key_id=name)) for name in keys]
        return [kept.given_back(step)[0].kept is not None for step in steps]

    assert given_back() == [True, True, False]
    kept.forget("ada")
    assert (given_back(), len(kept)) == ([False, True, False], 1)
    kept.forget("bob")
    assert len(kept) == 0
