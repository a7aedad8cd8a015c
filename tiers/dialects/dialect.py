"""The contract of a dialect as servers have it: a request becomes a call, and what they answer becomes deltas; and what
the dialects of providers share: checks of a request, turns and parts of a conversation, blocks of an answer."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from importlib import import_module
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import msgspec

from inference_core.io.files import JSON_ERRORS
from tiers.catalog.tier_spec import ProviderName, RemoteKind, RemoteSpec
from tiers.conversation import Dialect, Media, ToolCallDelta, Tooling, Turn, UrlCitation, new_call_id
from tiers.dialects.event_stream import EventParser, ServerSentEvent
from tiers.dialects.lenient_json import Arguments, plain_json
from tiers.dialects.rules import FORWARDED, Rules, rules_of, server_of, with_fields
from tiers.dialects.server_error import ErrorObject, ServerSaidError, is_failure, parse_error
from tiers.dialects.server_models import published_output
from tiers.dialects.usage_counter import Tally
from tiers.errors import TierError, TierRequestError
from tiers.tier import Delta, FinishReason, ModelRequest

_NOTHING: frozenset[str] = frozenset()


class ServerCall(msgspec.Struct, frozen=True):
    """One POST: `path` is relative to the server's `base_url`."""

    path: str
    body: bytes
    streamed: bool
    """Whether the answer is a stream of events."""
    dropped: tuple[str, ...] = ()
    """The caller's fields that are set and not in the body, because the server's API does not have them."""
    added: tuple[str, ...] = ()
    headers: tuple[tuple[bytes, bytes], ...] = ()
    form: Dialect | Literal["chat"] | None = None


class StreamParser(Protocol):
    """Splits the body of a streamed answer into events, in chunks of any size."""

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """Return the events that `chunk` completes. Raises `EventTooLargeError`, `TierError`."""

    def flush(self) -> list[ServerSentEvent]:
        """End the stream: return the events that only its end completes."""


class ServerDialect(ABC):
    """The contract of a dialect as servers have it; `tests/tiers/remote/test_remote_kinds.py` runs it against all.

    The state of a running answer is in its `Tally` (a dialect's own in `Tally.notes`). The order of deltas is that of
    `Delta`.
    """

    needs_limit: bool = False
    """Whether a request must bound its answer; those of others do so only where caller, catalogue or a budget does."""
    form: Dialect | None = None
    """Of what is sent and answered as it is."""
    marks_cache: bool = False
    """Whether a request says what the server caches."""
    rules = Rules()
    """Of the server and its model."""

    def __init__(self, remote: RemoteSpec) -> None:
        """`remote`: the server's entry in the catalogue."""
        self._remote = remote

    def prepare(self) -> None:  # noqa: B027 - most need nothing
        """Read the needed files; blocks. Raises `CatalogError`. Called before any request, possibly more than once."""

    def model_problem(self, status: int, body: bytes) -> str | None:
        """Return why the model that an answer with this `body` describes cannot serve the tier; None if it can."""
        return None

    def published_output(self, body: bytes) -> int | None:
        """Return the most tokens of an answer that the model described by `body` can give; None if it does not tell."""
        return None

    def is_streamed(self, request: ModelRequest) -> bool:
        """Return whether the answer is asked for as a stream."""
        return not request.whole or self._remote.stream_whole

    def parser(self) -> StreamParser:
        return EventParser()

    def is_about_model(self, error: ErrorObject) -> bool:
        """Return whether a request was refused because of its model, its key or the account, which is the operator's
        concern and never the caller's."""
        return False

    def check(self, request: ModelRequest) -> None:  # noqa: B027 - some kinds support everything
        """Raise `TierRequestError` for what this kind of server does not support and an answer cannot do without.
        Routing asks before it chooses a tier, so it takes no longer than to look at the fields."""

    @property
    def further_fields(self) -> frozenset[str]:
        """The names of a caller's fields that the server takes beyond its API, by what it is or by its entry in the
        catalogue."""
        return FORWARDED.get(self.rules.server, _NOTHING).union(self._remote.forward)

    def with_own_fields(self, body: dict[str, Any], request: ModelRequest) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Return the body with the caller's fields that this server knows beyond its API, and with those of its entry
        in the catalogue; and the names of the caller's that it does not get."""
        if not (request.extra or self._remote.body):
            return body, ()
        known_fields: Collection[str] = self.further_fields
        if self.form == "messages" and request.is_in(self.form):
            # The caller's API is the server's: it knows more of its fields than we do.
            known_fields = request.extra.keys()
        extra = {name: value for name, value in request.extra.items() if name in known_fields}
        dropped = tuple(name for name in request.extra if name not in extra)
        return with_fields(with_fields(body, extra), self._remote.body), dropped

    @abstractmethod
    def call(self, request: ModelRequest, max_tokens: int | None) -> ServerCall:
        """Return what to send, with this limit of the answer if it is not None, which it never is for a server that
        needs one. Nothing is added to what the caller and the catalogue set. The request has been
        checked. Raises `TierRequestError` for a conversation that this kind of server cannot read."""

    def own_turns(self, messages: list[Turn]) -> list[Turn]:
        """Return turns that the model may read without what its server refuses in them."""
        return messages

    def without_refused(
        self, call: ServerCall, refused: frozenset[str]
    ) -> tuple[bytes, tuple[str, ...], tuple[str, ...]]:
        """Return the body of a call without what its server has `refused`, as the names of refusals say
        (`tiers.dialects.refusals`); and the names of the fields that were left out, and of those that were changed."""
        return call.body, (), ()

    @abstractmethod
    def read_event(self, event: ServerSentEvent, tally: Tally) -> list[Delta] | None:
        """Return an event's deltas; None for the last event. Raises `TierError` for one that reports a failure."""

    @abstractmethod
    def read_whole(self, body: bytes, tally: Tally) -> list[Delta]:
        """Return the deltas of a whole answer. Raises `TierError`."""

    def read_end(self, tally: Tally) -> list[Delta]:
        """Return the deltas implied by the end of the stream; without any, unfinished choices are an error."""
        return []


# Module and class.
SERVERS: dict[RemoteKind, tuple[str, str]] = {
    "openai": ("chat", "ChatServer"),
    "vllm": ("chat", "VllmServer"),
    "sglang": ("chat", "SglangServer"),
    "llama-server": ("chat", "ChatServer"),
    "tensorrt-llm": ("chat", "TensorRtLlmServer"),
    "tgi": ("chat", "TgiServer"),
    "triton-tensorrt-llm": ("triton", "TritonTensorRtLlmServer"),
    "triton-vllm": ("triton", "TritonVllmServer"),
    "openai-provider": ("chat", "ProviderServer"),
    "azure": ("chat", "ProviderServer"),
    "anthropic": ("messages_server", "MessagesServer"),
    "gemini": ("gemini_server", "GeminiServer"),
    "bedrock": ("bedrock", "ConverseServer"),
    "vertex-gemini": ("gemini_server", "VertexGeminiServer"),
    "vertex-anthropic": ("messages_server", "VertexMessagesServer"),
}


def dialect_of(remote: RemoteSpec, provider: ProviderName | None = None) -> ServerDialect:
    """Return the dialect of such a server, of `provider` where the catalogue names one. Its module is imported with the
    first server that has it."""
    module, name = SERVERS[remote.kind]
    dialect: ServerDialect = getattr(import_module(f"tiers.dialects.{module}"), name)(remote)
    dialect.rules = rules_of(server_of(remote, provider), remote.model)
    return dialect


def edited_tools(fields: Mapping[str, bytes], tooling: Tooling | None, schema: str) -> dict[str, msgspec.Raw]:
    """Return `tools` and `tool_choice` of a caller's `fields`, with what of the tools was changed for their server.
    `schema`: the dialect's name for a tool's parameters."""
    raw = {name: msgspec.Raw(fields[name]) for name in ("tools", "tool_choice") if name in fields}
    if tooling is None or not tooling.edited:
        return raw
    if "tools" in raw:
        listed = msgspec.json.decode(raw["tools"], type=list[dict[str, Any]])
        raw["tools"] = msgspec.Raw(_encode([_edited(entry, tooling, schema) for entry in listed]))
    if "tool_choice" in raw and isinstance(choice := msgspec.json.decode(raw["tool_choice"]), dict):
        raw["tool_choice"] = msgspec.Raw(_encode(_edited(choice, tooling, schema)))
    return raw


def _edited(entry: dict[str, Any], tooling: Tooling, schema: str) -> dict[str, Any]:
    """Return a tool, or the choice of one, as it was edited: what its caller has not said stays unsaid."""
    tool = tooling.edited.get(str(entry.get("name")))
    if tool is None or entry.get("type") not in _CALLERS:
        return entry
    said = {"name": tool.name, "description": tool.description, schema: tool.parameters}
    return entry | {name: value for name, value in said.items() if name in entry and value is not None}


_CALLERS = (None, "custom", "function", "tool")
"""Types of tools that the caller runs, and of the choice of one, in dialects whose tools have names."""


def overlaid(json: bytes, **members: Any) -> msgspec.Raw | None:
    """Return a JSON object with these members: as it is if it has them. None stands for a member that is not there, and
    is returned for an object without any."""
    said = msgspec.json.decode(json, type=dict[str, Any])
    if all(said.get(name) == value for name, value in members.items()):
        return msgspec.Raw(json)
    overlay = {name: value for name, value in (said | members).items() if value is not None}
    return msgspec.Raw(_encode(overlay)) if overlay else None


_encode = msgspec.json.Encoder().encode
# Anthropic's least budget of thinking tokens, and what is kept free of it for the answer.
MIN_THINKING_TOKENS = 1024
THINKING_TOKENS = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 24_576, "xhigh": 32_768, "max": 49_152}
_DATA_URL = re.compile(r"data:(?P<type>[\w.+-]+/[\w.+-]+)(?:;[\w=.+-]+)*;base64,")


def check_provider(request: ModelRequest, provider: str) -> None:
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


def media_parts(request: ModelRequest) -> Iterator[Media]:
    """Return the parts of all messages that are no text."""
    for message in request.messages or ():
        yield from message.media


def answer_schema(request: ModelRequest, provider: str) -> dict[str, Any] | None:
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


P = TypeVar("P")


def alternating(messages: list[Turn], parts_of: Callable[[Turn], list[P]]) -> list[tuple[bool, list[P]]]:
    """Return the conversation without system turns and without empty ones, successive turns of one role joined: whether
    each is the assistant's, and its parts. Raises TierRequestError if nothing is left."""
    turns: list[tuple[bool, list[P]]] = []
    for message in messages:
        if is_system(message) or not (said := parts_of(message)):
            continue
        is_assistant = message.role == "assistant"
        if turns and turns[-1][0] == is_assistant:
            turns[-1][1].extend(said)
        else:
            turns.append((is_assistant, said))
    if not turns:
        raise TierRequestError("messages: a turn of the user with a text is needed", "messages")
    return turns


def fields_of(body: msgspec.Struct) -> dict[str, Any]:
    """Return the fields of a body that are set, by their names in JSON."""
    names = zip(body.__struct_encode_fields__, body.__struct_fields__, strict=True)
    return {name: value for name, field in names if (value := getattr(body, field)) is not None}


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
        call_id = self._own_id(call_id)
        self.without_arguments[block] = arguments
        return self.passed(Delta(tool_calls=[ToolCallDelta(index=number, id=call_id, name=name)]))

    def whole_call(self, block: int, call_id: str, name: str, arguments: str) -> Delta:
        """Return the call in `block` with all of its arguments."""
        delta = self.open_call(block, call_id, name)
        delta.tool_calls = [msgspec.structs.replace(delta.tool_calls[0], arguments=arguments)]
        del self.without_arguments[block]
        return delta

    def _own_id(self, call_id: str) -> str:
        """Return the id of the next call: `call_id`, unless it is empty or another call's."""
        own = call_id if call_id and call_id not in self._opened else new_call_id()
        self._opened[own] = len(self._opened)
        return own

    def has_opened(self, *ids: str | None) -> bool:
        """Whether a call has one of these ids."""
        return any(call_id in self._opened for call_id in ids)

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
        citations = [UrlCitation(url, title or "") for url, title in pages if url]
        return [Delta(annotations=citations)] if citations else []

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

    def finish(self, stop_reason: str) -> FinishReason:
        """Return why the answer ended, by the name that its server has for it. Raises TierError for an answer that the
        server itself cannot read, and as `check_form`."""
        self.check_form()
        if (reason := finish_of(stop_reason)) == "error":
            raise TierError(f"the model's answer cannot be read ({stop_reason})")
        return reason


def blocks_of(tally: Tally) -> Blocks:
    """Return the blocks of the answer that `tally` counts."""
    blocks: Blocks | None = tally.notes.get("blocks")
    if blocks is None:
        blocks = tally.notes["blocks"] = Blocks()
    return blocks


# Reasons that an answer ended by the words in them, the first that fits; every further one is a stop. Sources: the
# references of DeepSeek, Z.ai, Gemini, Cohere, Bedrock and Anthropic, and the sources of vLLM and SGLang; read 2026-11.
_REASON_WORDS: tuple[tuple[FinishReason, re.Pattern[str]], ...] = (
    (
        "error",
        re.compile(
            "malformed|missing_thought|function_call_filter|unexpected_tool|too_many_tool|abort|cancel|insufficient|error(?!_toxic)|"
            "unavailable|fail|timeout|overload|rate_limit"
        ),
    ),
    (
        "content_filter",
        re.compile(
            "filter|safe|sensitive|recitation|prohibited|block|refus|guardrail|spii|toxic|moderat|violat|policy|flag|harm|"
            "^language$|armor"
        ),
    ),
    ("length", re.compile("length|max|limit|context_window|truncat|incomplete")),
    ("tool_calls", re.compile("tool|function")),
)


@lru_cache(256)
def finish_of(server_reason: str) -> FinishReason:
    """Return why an answer ended, by the name that its server has for it."""
    said = server_reason.lower()
    return next((reason for reason, words in _REASON_WORDS if words.search(said)), "stop")
