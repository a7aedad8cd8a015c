"""What the wires of Anthropic, Gemini and Bedrock share: checks of a request, turns and parts of a conversation."""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from inference_core.io.files import JSON_ERRORS
from tiers.conversation import Media, ToolCallDelta, Turn, UrlCitation, new_call_id
from tiers.errors import TierError, TierRequestError
from tiers.remote.lenient_json import Arguments, plain_json
from tiers.remote.openai_format import is_failure, parse_error
from tiers.remote.server_state import published_output
from tiers.remote.too_long import ServerSaidError
from tiers.remote.usage_counter import Tally
from tiers.tier import Delta, GenerationRequest

# Anthropic's least budget of thinking tokens, and what is kept free of it for the answer.
MIN_THINKING_TOKENS = 1024
THINKING_TOKENS = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 24_576, "xhigh": 32_768, "max": 49_152}
_DATA_URL = re.compile(r"data:(?P<type>[\w.+-]+/[\w.+-]+)(?:;[\w=.+-]+)*;base64,")


def check_provider(request: GenerationRequest, provider: str) -> None:
    """Raise TierRequestError for what no provider with an API of its own can serve.

    Penalties, `seed` and other hints that a provider does not know are not sent; what shows in the answer is refused.
    """
    if request.messages is None:
        raise TierRequestError(
            f"prompt: {provider} takes conversations only; use chat completions, or name another tier", "prompt"
        )
    for name, asked in (
        ("logprobs", request.sampling.logprobs is not None),
        ("logit_bias", bool(request.sampling.logit_bias)),
        ("include_stop_str_in_output", request.include_stop),
    ):
        if asked:
            raise TierRequestError(f"{name}: not among what {provider} takes; leave it out, or name another tier", name)


def media_parts(request: GenerationRequest) -> Iterator[Media]:
    """Return the parts of all messages that are no text."""
    for message in request.messages or ():
        yield from message.media


def answer_schema(request: GenerationRequest, provider: str) -> dict[str, Any] | None:
    """Return the JSON schema that the answer must follow; None without one. `{}` stands for any JSON object.

    Raises TierRequestError for other grammars."""
    grammar, form = request.sampling.grammar, request.response_format
    if form is not None:
        kind = form.get("type")
        if kind == "json_schema":
            schema = (form.get("json_schema") or {}).get("schema")
            return schema if isinstance(schema, dict) else {}
        return {} if kind == "json_object" else None
    if grammar is None:
        return None
    if grammar.kind == "json_object":
        return {}
    if grammar.kind == "json_schema":
        schema = msgspec.json.decode(grammar.text)
        return schema if isinstance(schema, dict) else {}
    raise TierRequestError(
        f"structured_outputs: a grammar of kind {grammar.kind!r} is not among what {provider} takes; use "
        "response_format, or name another tier",
        "structured_outputs",
    )


def published_by(body: bytes, fields: tuple[str, ...]) -> int | None:
    """Return the most tokens of an answer that a provider's description of a model tells under one of `fields`."""
    try:
        entry = msgspec.json.decode(body)
    except JSON_ERRORS:
        return None
    return published_output(entry, fields) if isinstance(entry, dict) else None


def missing_model(model: str, body: bytes) -> str:
    """Return what to say of a 404 with this body for the model of the catalogue."""
    return f"has no model {model!r}: {parse_error(body).message[:200]}; check model in the catalogue"


Turns = list[dict[str, Any]]


def alternating(
    messages: list[Turn],
    parts_of: Callable[[Turn], Turns],
    *,
    assistant: str = "assistant",
    parts: str = "content",
) -> Turns:
    """Return the conversation without system turns and without empty ones, successive turns of one role joined.

    `assistant`, `parts`: the API's names for role and parts. Raises TierRequestError if nothing is left.
    """
    turns: Turns = []
    for message in messages:
        if is_system(message) or not (said := parts_of(message)):
            continue
        role = assistant if message.role == "assistant" else "user"
        if turns and turns[-1]["role"] == role:
            turns[-1][parts] += said
        else:
            turns.append({"role": role, parts: said})
    if not turns:
        raise TierRequestError("messages: a turn of the user with a text is needed", "messages")
    return turns


def system_text(messages: list[Turn]) -> str:
    """Return the texts of system and developer turns, wherever they stand."""
    return "\n\n".join(message.text for message in messages if is_system(message) and message.text)


def is_system(message: Turn) -> bool:
    """Whether the turn is an instruction instead of a part of the conversation."""
    return message.role in ("system", "developer")


class MediaBody(NamedTuple):
    """An image, video, audio or file: base64 `data` of a MIME `type`, or else its `url`."""

    kind: str
    type: str
    data: str
    url: str
    name: str


def media_of(block: Media, provider: str) -> MediaBody:
    """Return it in a form that providers share. Raises TierRequestError."""
    data, kind = block.data or {}, block.kind
    name = str(data.get("filename") or "")
    if kind == "audio":
        return MediaBody("audio", f"audio/{data.get('format') or 'wav'}", str(data.get("data") or ""), "", name)
    body = data.get("file_data" if kind == "file" else "url")
    if not isinstance(body, str) or not body:
        raise TierRequestError(
            f"messages: a file by its id is known to another provider; {provider} needs the file's data", "messages"
        )
    if (head := _DATA_URL.match(body)) is not None:
        return MediaBody(kind, head["type"].lower(), body[head.end() :], "", name)
    if body[:8].lower().startswith(("http://", "https://")):
        return MediaBody(kind, "", "", body, name)
    return MediaBody(kind, "application/pdf", body, "", name)


class Blocks:
    """The numbers of tool calls and what has been said, by the blocks of one answer's stream."""

    def __init__(self) -> None:
        self.calls: dict[int, int] = {}
        # What stands in for the arguments of calls of which no piece has come.
        self.without_arguments: dict[int, str] = {}
        self._arguments: dict[int, Arguments] = {}
        self._opened: dict[str, int] = {}
        # Blocks of the provider's own tools, which are no calls.
        self.own: set[int] = set()
        self.said = False
        self.unknown = ""

    def open_call(self, block: int, call_id: str, name: str, arguments: str = "{}") -> Delta:
        """Return the start of the call in `block`, with an id in every case. `arguments`: those of a call of which no
        further piece comes. Some servers give all calls the same block."""
        number = self.calls[block] = len(self._opened)
        call_id = self.own_id(call_id)
        self.without_arguments[block] = arguments
        return self.passed(Delta(tool_calls=[ToolCallDelta(index=number, id=call_id, name=name)]))

    def own_id(self, call_id: str) -> str:
        """Return the id of the next call: `call_id`, unless it is empty or another call's."""
        own = call_id if call_id and call_id not in self._opened else new_call_id()
        self._opened[own] = len(self._opened)
        return own

    def has_opened(self, *ids: str | None) -> bool:
        """Whether a call has one of these ids."""
        return any(one in self._opened for one in ids)

    @property
    def num_opened(self) -> int:
        """The number of calls."""
        return len(self._opened)

    def arguments(self, block: int, text: str) -> list[Delta]:
        """Return a piece of the arguments of the call in `block`. Raises TierError if there is no call."""
        # Of another block than a call's: of the last call.
        block = block if block in self.calls else next(reversed(self.calls), block)
        if block not in self.calls:
            raise TierError(f"the server sent arguments of a call that it has not named (block {block})")
        number = self.calls[block]
        if not (text := self._arguments.setdefault(number, Arguments()).add(text)):
            return []
        self.without_arguments.pop(block, None)
        return [Delta(tool_calls=[ToolCallDelta(index=number, arguments=text)])]

    def close(self, block: int) -> list[Delta]:
        """Return what is missing at the end of `block`: a call without arguments has those of its start."""
        if (text := self.without_arguments.pop(block, None)) is None:
            return []
        none = Delta(tool_calls=[ToolCallDelta(index=self.calls[block], arguments="{}")])
        return self.arguments(block, text) or [none]

    def passed(self, delta: Delta) -> Delta:
        """Note that something was said."""
        self.said = True
        return delta

    def text(self, text: str) -> list[Delta]:
        return [self.passed(Delta(text=text))] if text else []

    def reasoning(self, text: str) -> list[Delta]:
        return [self.passed(Delta(reasoning=text))] if text else []

    def cited(self, pages: Iterable[tuple[str, str | None]]) -> list[Delta]:
        """Return what an answer cites, by address and title."""
        found = [UrlCitation(url, title or "") for url, title in pages if url]
        return [Delta(annotations=found)] if found else []

    def not_known(self, data: bytes, what: str) -> None:
        """Note what is no part of an answer. Raises ServerSaidError for a failure: proxies have forms of their own."""
        if is_failure(plain_json(data)):
            raise ServerSaidError(parse_error(data))
        self.unknown = self.unknown or what

    def check_form(self) -> None:
        """Raise TierError if nothing was understood: the provider has changed the form of its answers."""
        if self.unknown and not self.said:
            raise TierError(
                f"the answer's form is not known here: it has {self.unknown} and no text; has the provider changed its "
                "API? Look for a newer version of this gateway"
            )


def blocks_of(tally: Tally) -> Blocks:
    """Return the blocks of the answer that `tally` counts."""
    blocks: Blocks | None = tally.notes.get("blocks")
    if blocks is None:
        blocks = tally.notes["blocks"] = Blocks()
    return blocks
