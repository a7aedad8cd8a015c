"""The texts of a request as attributes of its span, in the words of OpenTelemetry and of OpenInference.

They are those of the record, which is redacted by then and has none where the key's owner did not consent to storing
them. OpenTelemetry's are the conventions for generative AI, whose messages are JSON in one attribute each.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from gateway.base.settings import Settings, TraceContent
from quality.records.record import Record

CUT = " [cut]"
MAX_MESSAGES = 256
"""Most turns of a conversation in a span: of more, the last ones."""


class Turn(NamedTuple):
    """One turn within the bounds, by the roles that both conventions have."""

    role: str
    text: str


class ContentAttributes:
    """Makes the attributes of a span from a record. `chars`: most characters of the prompt, and of the answer with its
    reasoning."""

    def __init__(self, convention: TraceContent, chars: int) -> None:
        self._gen_ai = convention in ("gen_ai", "both")
        self._openinference = convention in ("openinference", "both")
        self._chars = chars

    @classmethod
    def of(cls, settings: Settings) -> "ContentAttributes | None":
        """Return None unless texts are asked for."""
        if settings.trace_content == "none":
            return None
        return cls(settings.trace_content, settings.trace_content_chars)

    def of_record(self, record: Record) -> dict[str, Any]:
        """Return the attributes; without texts where the record has none."""
        asked = _turns(record, self._chars)
        answer, left = _cut(record.answer or "", self._chars)
        reasoning, _ = _cut(record.reasoning or "", left)
        is_kept = record.messages is not None
        attributes: dict[str, Any] = {}
        if self._gen_ai and is_kept:
            attributes |= _gen_ai(asked, answer, reasoning, record.finish_reason)
        if self._openinference:
            attributes |= _openinference_figures(record)
            if is_kept:
                attributes |= _openinference_texts(asked, answer)
        return attributes


def _turns(record: Record, chars: int) -> list[Turn]:
    """The conversation's turns, the last ones first to have room: they say what is asked."""
    turns: list[Turn] = []
    for message in reversed((record.messages or [])[-MAX_MESSAGES:]):
        role = message["role"]
        if chars <= 0:
            break
        text, chars = _cut(message["content"], chars)
        turns.append(Turn("user" if role == "prompt" else role, text))
    return turns[::-1]


def _cut(text: str, chars: int) -> tuple[str, int]:
    """Return `text` with at most `chars` characters, and how many are left."""
    if len(text) <= chars:
        return text, chars - len(text)
    return text[: max(0, chars - len(CUT))] + CUT, 0


def _gen_ai(asked: list[Turn], answer: str, reasoning: str, finish_reason: str | None) -> dict[str, Any]:
    said = [{"type": "reasoning", "content": reasoning}] if reasoning else []
    if answer:
        said.append({"type": "text", "content": answer})
    output = {"role": "assistant", "parts": said, "finish_reason": finish_reason or "error"}
    written = {"gen_ai.input.messages": [_gen_ai_message(turn) for turn in asked if not _is_instruction(turn)]}
    if said:
        written["gen_ai.output.messages"] = [output]
    if any(map(_is_instruction, asked)):
        written["gen_ai.system_instructions"] = [_text(turn) for turn in asked if _is_instruction(turn)]
    return {name: msgspec.json.encode(value).decode() for name, value in written.items()}


def _is_instruction(turn: Turn) -> bool:
    return turn.role in ("system", "developer")


def _text(turn: Turn) -> dict[str, Any]:
    return {"type": "text", "content": turn.text}


def _gen_ai_message(turn: Turn) -> dict[str, Any]:
    # The record keeps no ids of calls.
    result = {"type": "tool_call_response", "id": None, "response": turn.text}
    return {"role": turn.role, "parts": [result if turn.role == "tool" else _text(turn)]}


def _openinference_figures(record: Record) -> dict[str, Any]:
    return {
        "openinference.span.kind": "LLM",
        "llm.system": "aio",
        "llm.model_name": record.model,
        "llm.token_count.prompt": record.prompt_tokens,
        "llm.token_count.completion": record.completion_tokens,
        "llm.token_count.total": record.prompt_tokens + record.completion_tokens,
        "llm.token_count.prompt_details.cache_read": record.cached_tokens,
        "llm.token_count.completion_details.reasoning": record.reasoning_tokens,
        "llm.cost.total": record.cost_usd,
    }


def _openinference_texts(asked: list[Turn], answer: str) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "input.value": msgspec.json.encode([turn._asdict() for turn in asked]).decode(),
        "input.mime_type": "application/json",
        "output.value": answer,
        "output.mime_type": "text/plain",
    }
    attributes.update(_flattened("llm.input_messages", asked))
    attributes.update(_flattened("llm.output_messages", [Turn("assistant", answer)] if answer else []))
    return attributes


def _flattened(name: str, turns: list[Turn]) -> Iterator[tuple[str, str]]:
    for place, turn in enumerate(turns):
        yield f"{name}.{place}.message.role", turn.role
        yield f"{name}.{place}.message.content", turn.text
