"""The texts of a request that a guardrail judges and may replace, what of it is no text, and all that a server
elsewhere would get of it, as texts for rules: every field is read unless it is known to stay here, so that a field
that is added is read too."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import msgspec

from gateway.base.inference_request import InferenceRequest, Prompt
from inference_core.io.files import JSON_ERRORS
from tiers.conversation import Text, Turn
from tiers.dialects.chat_opaque import FORM, PART_TYPES, opaque_texts
from tiers.dialects.client_parts import MAY_BE_BYTES, NOT_TEXT
from tiers.tier import GenerationRequest


class Passage(NamedTuple):
    """One text of a request: its `role`, the place of its message or prompt, and what it is there. A text of kind
    `opaque` is one that only a server with the caller's API would get.
    """

    role: str
    text: str
    message: int
    kind: Literal["content", "arguments", "reasoning", "opaque", "prompt"]
    number: int = 0
    """The number of its part or call."""


def passages(request: InferenceRequest) -> list[Passage]:
    """Return the texts of the messages or prompts, in order."""
    all_passages = []
    for index, message in enumerate(request.generation.messages or ()):
        all_passages += [passage for passage in _of_message(index, message) if passage.text]
    for index, prompt in enumerate(request.prompts or ()):
        if isinstance(prompt, str):
            all_passages.append(Passage("prompt", prompt, index, "prompt"))
    return all_passages


def unreadable(request: InferenceRequest) -> tuple[str, str] | None:
    """Return what no rule can read, and where it is: an attachment, or token ids; None if all of it is text."""
    for index, message in enumerate(request.generation.messages or ()):
        for part in message.media:
            return PART_TYPES[part.kind], f"messages[{index}]"
    for index, prompt in enumerate(request.prompts or ()):
        if not isinstance(prompt, str):
            return "token ids", f"prompt[{index}]"
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
        texts = {index: changes[-1][1] for index, changes in changed.items()}
        prompts = [texts.get(index, prompt) for index, prompt in enumerate(request.prompts)]
        return msgspec.structs.replace(request.with_generation(prompts_read={}), prompts=prompts)
    messages = [
        _changed(message, changed[index]) if index in changed else message
        for index, message in enumerate(request.generation.messages or ())
    ]
    return request.with_generation(messages=messages, prompts_read={})


def _of_message(index: int, message: Turn) -> Iterator[Passage]:
    for number, block in enumerate(message.content_blocks):
        if isinstance(block, Text):
            yield Passage(message.role, block.text, index, "content", number)
    for number, call in enumerate(message.calls):
        yield Passage(message.role, call.arguments, index, "arguments", number)
    yield Passage(message.role, message.thoughts, index, "reasoning")
    for text in _opaque_texts(message) if message.opaque else ():
        yield Passage(message.role, text, index, "opaque")


def _opaque_texts(message: Turn) -> Iterator[str]:
    """Yield the texts that the caller has given in its own dialect alone."""
    yield from opaque_texts(message)
    plain_texts = {message.text, message.thoughts, *_texts(message)}
    for block in message.opaque:
        if block.dialect == FORM or not block.json:
            continue
        for text in _opaque_strings(msgspec.json.decode(block.json)):
            if text not in plain_texts and text != block.seal and text not in message.text:
                yield text


def _changed(message: Turn, changes: list[tuple[Passage, str]]) -> Turn:
    """Return the message with its new texts, in our form alone: the caller's own has the old ones."""
    content, calls, thoughts = list(message.content_blocks), list(message.calls), message.thoughts
    for passage, text in changes:
        if passage.kind == "content":
            content[passage.number] = Text(text)
        elif passage.kind == "arguments":
            calls[passage.number] = msgspec.structs.replace(calls[passage.number], arguments=text)
        elif passage.kind == "reasoning":
            thoughts = text
    made = Turn.of(message.role, content, calls=calls, thoughts=thoughts, call_id=message.call_id)
    return msgspec.structs.replace(message, blocks=made.blocks, recalled=())


def _texts(message: Turn) -> list[str]:
    return [block.text for block in message.content_blocks if isinstance(block, Text)]


def _strings(value: Any) -> Iterator[str]:
    """Yield every text in decoded JSON, except names of fields."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _strings(inner)
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _strings(inner)


def _opaque_strings(value: Any) -> Iterator[str]:
    """The same for the form of an API, without what is no text there: a document of type text has its text in `data`,
    where all others have bytes."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if not isinstance(inner, str) or name not in NOT_TEXT or (name == "data" and value.get("type") == "text"):
                yield from _opaque_strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _opaque_strings(inner)
    else:
        yield from _strings(value)


# Of `GenerationRequest`: what says how it is served here, and what is read apart.
_SERVED_BY = {"arrival", "deadline", "strict_deadline", "priority", "whole", "cache_reuse", "wants_opaque", "evidence"}
_STAYS_HERE = _SERVED_BY | {
    "request_id",
    "salt",
    "adapter",
    "trace",
    "given",
    "credential",
    "sent",
    "meter",
    "prompts_read",
}
_READ_APART = {"messages", "prompt", "tooling", "passed", "extra", "opaque", "sampling"}
_SENT_FIELDS = tuple(
    name for name in GenerationRequest.__struct_fields__ if name not in _STAYS_HERE and name not in _READ_APART
)
# Of other structs: what the gateway has counted or noted.
_NOTES = frozenset({"digest", "num_bytes", "answered_by", "cache_mark", "dialect"})
_BASE64 = re.compile(r"(?:data:[^,]{0,200},)?[A-Za-z0-9+/=_\r\n-]*")
_LEAST_BYTES = 256
SEAM = 128
"""Characters at each end of a text that are read together with the texts before and after it."""


class SentTexts(NamedTuple):
    """The texts of a request."""

    groups: list[tuple[str, list[str]]]
    """The texts by where they are in the request."""
    said: list[tuple[str, str]]
    """Texts of a conversation in order, each with its role."""
    unreadable: tuple[str, str] | None = None
    """What no rule can read, and where it is; None if all of it is text."""

    @property
    def size(self) -> int:
        """The characters of all texts."""
        return sum(len(text) for _, texts in self.groups for text in texts)

    def joined(self) -> Iterator[str]:
        """Yield the places where one text follows another, as one text: of all turns, and of the user's alone."""
        everything = [text for _, text in self.said]
        users = [text for role, text in self.said if role == "user"]
        for texts in [everything] if len(users) in (0, len(everything)) else [everything, users]:
            ends = [end for text in texts if (end := _ends(text))]
            if len(ends) > 1:
                yield "".join(ends)
                yield _joined_numbers(ends)


def texts_of(request: InferenceRequest) -> SentTexts:
    """Return all texts of a request to a tier."""
    asked = request.generation
    read = _Reader()
    said: list[tuple[str, str]] = []
    for index, message in enumerate(asked.messages or ()):
        read(f"messages[{index}]", message)
        said += [(message.role, text) for text in _texts(message) if text]
    for index, prompt in enumerate(request.prompts or ()):
        if isinstance(prompt, str):
            read(f"prompt[{index}]", prompt)
            said.append(("prompt", prompt))
    if asked.tooling is not None:
        for index, tool in enumerate(asked.tooling.tools):
            read(f"tools[{index}]", tool)
        read("tool_choice", asked.tooling.name)
    fields = [(name, getattr(asked, name)) for name in _SENT_FIELDS]
    fields += [(name, getattr(asked.sampling, name)) for name in asked.sampling.__struct_fields__]
    for name, value in (*fields, *asked.passed.items(), *asked.extra.items()):
        read(name, value)
    if asked.opaque is not None:
        for name, raw in asked.opaque.fields.items():
            read(name, raw)
        read("tools", asked.server_tools)
    if request.trace is not None:
        read("tracestate", request.trace.state)
    return SentTexts(read.groups, said, unreadable(request))


def texts_of_inputs(inputs: Sequence[Prompt], fields: Mapping[str, Any]) -> SentTexts:
    """Return the texts of a request for embeddings: its inputs, and the other fields that are sent."""
    read, said = _Reader(), []
    unread = None
    for index, prompt in enumerate(inputs):
        if isinstance(prompt, str):
            read(f"input[{index}]", prompt)
            said.append(("input", prompt))
        elif unread is None:
            unread = "token ids", f"input[{index}]"
    for name, value in fields.items():
        read(name, value)
    return SentTexts(read.groups, said, unread)


def texts_of_body(fields: Mapping[str, Any], files: Iterable[str] = ()) -> SentTexts:
    """Return the texts of a body that is sent on as it is: the values of its `fields`, JSON as bytes. `files`: the
    names of its parts that are files."""
    read = _Reader()
    for name, value in fields.items():
        read(name, value)
    unread = next((("files", name) for name in files), read.unreadable)
    return SentTexts(read.groups, [("body", text) for text in read.values], unread)


class _Reader:
    """Collects texts; one that it has is left out."""

    def __init__(self) -> None:
        self.groups: list[tuple[str, list[str]]] = []
        self.values: list[str] = []
        self.unreadable: tuple[str, str] | None = None
        self._known: set[str] = set()

    def __call__(self, where: str, value: Any) -> None:
        """Read a value of any kind; `where` it is in the request."""
        texts = []
        for text in self._texts(where, value):
            if text and text not in self._known:
                self._known.add(text)
                texts.append(text)
        if texts:
            self.groups.append((where, texts))

    def _texts(self, where: str, value: Any) -> Iterator[str]:
        waiting: list[tuple[str, Any]] = [(where, value)]
        while waiting:
            name, node = waiting.pop()
            if isinstance(node, str):
                if _is_bytes(name, node):
                    self.unreadable = self.unreadable or ("attachments", where)
                else:
                    self.values.append(node)
                    yield node
            elif isinstance(node, bool) or node is None:
                continue
            elif isinstance(node, (int, float)):
                yield f"{node:.0f}" if isinstance(node, float) and node.is_integer() else str(node)
            elif isinstance(node, (bytes, msgspec.Raw)):
                waiting.append((name, _decoded(bytes(node))))
            elif isinstance(node, dict):
                for key, inner in reversed(node.items()):
                    yield str(key)
                    waiting.append((str(key), inner))
            elif isinstance(node, msgspec.Struct):
                fields = [field for field in node.__struct_fields__ if field not in _NOTES]
                waiting += [(field, getattr(node, field)) for field in reversed(fields)]
            else:
                waiting += [(name, inner) for inner in reversed(node)]


def _decoded(raw: bytes) -> Any:
    try:
        return msgspec.json.decode(raw)
    except JSON_ERRORS:
        return raw.decode("utf-8", "replace")


def _is_bytes(name: str, text: str) -> bool:
    if name not in MAY_BE_BYTES or len(text) < _LEAST_BYTES:
        return False
    return all(_BASE64.fullmatch(end) for end in (text[:_LEAST_BYTES], text[-_LEAST_BYTES:]))


def _ends(text: str) -> str:
    text = text.strip()
    return text if len(text) <= 2 * SEAM else f"{text[:SEAM]}\n\n{text[-SEAM:]}"


def _joined_numbers(texts: Sequence[str]) -> str:
    """Join texts so that numbers go on, and words do not."""
    pieces = [texts[0]]
    for before, text in pairwise(texts):
        goes_on = _in_number(before[-1]) and _in_number(text[0])
        pieces += ["" if goes_on else " ", text]
    return "".join(pieces)


def _in_number(character: str) -> bool:
    return character.isdecimal() or character in "+-./() \u00a0\u2013"
