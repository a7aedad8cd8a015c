"""The texts of a request that a guardrail judges and may replace, and what of it is no text."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from gateway.base.requests.inference_request import InferenceRequest
from tiers.chat_state import state_texts
from tiers.native_content import NativeContent
from tiers.tier import ChatMessage

# Of objects in the form of an API: what only its maker can read, and the bytes of attachments.
_NOT_TEXT = frozenset({"signature", "encrypted_content", "data", "file_data", "image_url"})


class Passage(NamedTuple):
    """One text of a request: its `role`, the place of its message or prompt, and what it is there. `number`: of its
    part or call. A text of kind `native` is one that only a server with the caller's API would get."""

    role: str
    text: str
    message: int
    kind: Literal["content", "part", "arguments", "reasoning", "native", "prompt"]
    number: int = 0


def passages(request: InferenceRequest) -> list[Passage]:
    """Return the texts of the messages or prompts, in order."""
    found = []
    for place, message in enumerate(request.generation.messages or ()):
        found += [passage for passage in _of_message(place, message) if passage.text]
    for place, prompt in enumerate(request.prompts or ()):
        if isinstance(prompt, str):
            found.append(Passage("prompt", prompt, place, "prompt"))
    return found


def unreadable(request: InferenceRequest) -> tuple[str, str] | None:
    """Return what no rule can read, and where it is: an attachment, or token ids; None if all of it is text."""
    for place, message in enumerate(request.generation.messages or ()):
        for part in message.parts:
            if part.type != "text":
                return part.type, f"messages[{place}]"
    for place, prompt in enumerate(request.prompts or ()):
        if not isinstance(prompt, str):
            return "token ids", f"prompt[{place}]"
    return None


def replaced(request: InferenceRequest, before: Sequence[Passage], after: Sequence[str]) -> InferenceRequest:
    """Return the request with the texts `after` in place of those of `before`, which are its own."""
    changed: dict[int, list[tuple[Passage, str]]] = defaultdict(list)
    for passage, text in zip(before, after, strict=True):
        if text != passage.text:
            changed[passage.message].append((passage, text))
    if not changed:
        return request
    if request.prompts is not None:
        texts = {place: changes[-1][1] for place, changes in changed.items()}
        prompts = [texts.get(place, prompt) for place, prompt in enumerate(request.prompts)]
        return msgspec.structs.replace(request.with_generation(prompts_read={}), prompts=prompts)
    messages = [
        _changed(message, changed[place]) if place in changed else message
        for place, message in enumerate(request.generation.messages or ())
    ]
    return request.with_generation(messages=messages, prompts_read={})


def _of_message(place: int, message: ChatMessage) -> Iterator[Passage]:
    if message.parts:
        for number, part in enumerate(message.parts):
            yield Passage(message.role, part.text, place, "part", number)
    else:
        yield Passage(message.role, message.content, place, "content")
    for number, call in enumerate(message.tool_calls):
        yield Passage(message.role, call.arguments, place, "arguments", number)
    yield Passage(message.role, message.reasoning, place, "reasoning")
    for text in state_texts(message) if message.state else ():
        yield Passage(message.role, text, place, "native")
    if message.native is not None:
        for text in _only_native(message, message.native):
            yield Passage(message.role, text, place, "native")


def _only_native(message: ChatMessage, native: NativeContent) -> Iterator[str]:
    """Yield the texts that the message has only in the form of the caller's API."""
    known = {message.content, message.reasoning, *(part.text for part in message.parts)}
    for block in native.blocks:
        for text in _native_strings(msgspec.json.decode(block.json)):
            if text not in known and text != block.seal and text not in message.content:
                yield text


def _changed(message: ChatMessage, changes: list[tuple[Passage, str]]) -> ChatMessage:
    """Return the message with its new texts, in our form alone: the caller's own has the old ones."""
    parts, calls = list(message.parts), list(message.tool_calls)
    content, reasoning = message.content, message.reasoning
    for passage, text in changes:
        if passage.kind == "content":
            content = text
        elif passage.kind == "part":
            parts[passage.number] = msgspec.structs.replace(parts[passage.number], text=text)
        elif passage.kind == "arguments":
            calls[passage.number] = msgspec.structs.replace(calls[passage.number], arguments=text)
        elif passage.kind == "reasoning":
            reasoning = text
    if parts:
        content = "\n".join(part.text for part in parts if part.type == "text")
    return msgspec.structs.replace(
        message,
        content=content,
        parts=tuple(parts),
        tool_calls=tuple(calls),
        reasoning=reasoning,
        native=None,
        kept=None,
        state=(),
    )


def _strings(value: Any) -> Iterator[str]:
    """Yield every text in decoded JSON, except names of fields."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _strings(one)
    elif isinstance(value, dict):
        for one in value.values():
            yield from _strings(one)


def _native_strings(value: Any) -> Iterator[str]:
    """The same for the form of an API, without what is no text there: a document of type text has its text in `data`,
    where all others have bytes."""
    if isinstance(value, dict):
        for name, one in value.items():
            if not isinstance(one, str) or name not in _NOT_TEXT or (name == "data" and value.get("type") == "text"):
                yield from _native_strings(one)
    elif isinstance(value, list):
        for one in value:
            yield from _native_strings(one)
    else:
        yield from _strings(value)
