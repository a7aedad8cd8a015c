"""A conversation in the one form that every dialect is read into and written from: turns of blocks, the tools that may
be called, and what is said in one dialect alone, kept as bytes."""

import base64
import hashlib
import json
import math
import re
import secrets
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, Generic, Literal, TypeVar

import msgspec

from inference_core.protocol import Grammar

# What the text of a tool's result begins with if its call failed; Anthropic's `is_error` becomes it.
FAILED_RESULT = "Error: "
NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
Dialect = Literal["chat", "responses", "messages", "gemini", "bedrock"]
"""OpenAI's chat and Responses, Anthropic's Messages, Gemini's `generateContent`, Bedrock's Converse."""
MediaKind = Literal["image", "video", "audio", "file"]
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]

# Estimates, for what models count differently: OpenAI's take 85 to 1,500 tokens for an image, Claude 1,600 for one of
# a megapixel, Qwen's models one per 28 by 28 pixels.
IMAGE_TOKENS = 1024
LOW_DETAIL_IMAGE_TOKENS = 85
# Speech is 10 tokens a second at OpenAI, 12.5 at Mistral, 32 at Gemini; a second has 16 kB (MP3) to 48 kB (WAV), where
# it cannot be read how long the audio is.
AUDIO_TOKENS_PER_SECOND = 12.5
AUDIO_BYTES_PER_TOKEN = 1024
# A PDF takes about 100 kB a page and a page 2,000 tokens, with its picture.
FILE_BYTES_PER_TOKEN = 50
# Of audio or a file that the server has already, so that its size is not known.
REFERENCE_TOKENS = 2048

_BODIES = {"image": "url", "video": "url", "audio": "data", "file": "file_data"}


class _Block(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="block", tag=str.lower):
    """Part of a turn."""


class Opaque(_Block, frozen=True, gc=False):
    """What a turn or an answer is in one dialect, for its servers alone: they get it as it is, others get the turn's
    other blocks. Only it carries reasoning that its model sealed, marks of caches, and tools that a provider runs."""

    dialect: Dialect
    json: bytes
    """One block, item, part or field, as it was written; b"" if the turn is not written in this dialect at all."""
    type: str = ""
    seal: str = ""
    """The signature or the encrypted text of reasoning, which only the model that made it can read."""


class Text(_Block, frozen=True):
    """What a turn says, or a part of it."""

    text: str
    breakpoint: dict[str, Any] | None = None
    """The caller's `prompt_cache_breakpoint`, by which a server of OpenAI's keeps the prompt up to here."""
    cache_control: dict[str, Any] | None = None
    """The caller's mark for a provider's cache, which Anthropic's servers get."""

    @property
    def is_marked(self) -> bool:
        """Whether it ends what a server is to keep."""
        return self.breakpoint is not None or self.cache_control is not None


class Thought(_Block, frozen=True, gc=False):
    """What an assistant thought before it spoke, for servers that read it again."""

    text: str


class Call(_Block, frozen=True, kw_only=True, gc=False):
    """An assistant's call of a tool."""

    id: str
    name: str
    arguments: str
    """JSON text, if the model wrote any."""
    source: Opaque | None = None
    """What its server said of it besides, and needs back."""

    def parsed_arguments(self) -> Any:
        """Return the arguments as data; text that is not JSON stays text."""
        try:
            return json.loads(self.arguments)
        except (ValueError, RecursionError):
            return self.arguments

    def object_arguments(self) -> dict[str, Any]:
        """Return the arguments as an object; other JSON becomes its only value."""
        arguments = self.parsed_arguments() if self.arguments.strip() else {}
        return arguments if isinstance(arguments, dict) else {"value": arguments}


class Media(_Block, frozen=True, kw_only=True):
    """An image, a video, audio or a file; `media` builds it."""

    kind: MediaKind
    data: dict[str, Any] | None = None
    """`{"url", "detail"}`, `{"data", "format"}` or `{"file_data", "filename", "file_id"}`, as the caller sent it."""
    digest: str = ""
    """Hexadecimal BLAKE2b of `data`, 16 bytes."""
    num_bytes: int = 0
    """Of what is sent in the request, decoded from base64; 0 for an address or an id."""
    breakpoint: dict[str, Any] | None = None
    """See `Text`."""
    cache_control: dict[str, Any] | None = None
    """See `Text`."""

    @property
    def placeholder(self) -> str:
        """What stands for it in records: kind, size and digest."""
        size = f"{self.num_bytes} bytes" if self.num_bytes else "by reference"
        return f"[{self.kind}, {size}, {self.digest}]"

    @property
    def tokens(self) -> int:
        """An estimate of its tokens."""
        if self.kind == "image":
            return LOW_DETAIL_IMAGE_TOKENS if (self.data or {}).get("detail") == "low" else IMAGE_TOKENS
        if not self.num_bytes:
            return REFERENCE_TOKENS
        seconds = self.audio_seconds
        of_audio = 0 if seconds is None else math.ceil(round(seconds * AUDIO_TOKENS_PER_SECOND, 3))
        if self.kind == "audio":
            return 1 + (of_audio or self.num_bytes // AUDIO_BYTES_PER_TOKEN)
        return 1 + max(of_audio, self.num_bytes // FILE_BYTES_PER_TOKEN)

    @property
    def audio_seconds(self) -> float | None:
        """The longest plausible seconds of audio; None if it is none that can be read. The first time may take a second
        of CPU time where `is_long_audio`."""
        if self.kind not in ("audio", "file") or not self.num_bytes:
            return None
        if self.data is None or self.digest in _audio_seconds:
            return _audio_seconds.get(self.digest)
        if len(_audio_seconds) >= _MOST_LENGTHS:
            _audio_seconds.clear()
        seconds = _audio_seconds[self.digest] = _read_seconds(str(self.data.get(_BODIES[self.kind])))
        return seconds

    @property
    def is_long_audio(self) -> bool:
        """Whether reading how long it is takes a while: not on the event loop."""
        is_audio = self.kind in ("audio", "file") and self.num_bytes > _READ_HERE_BYTES
        return is_audio and self.digest not in _audio_seconds

    @property
    def without_data(self) -> "Media":
        """It with its digest alone: the same for the same data, and short."""
        return self if self.data is None else msgspec.structs.replace(self, data=None)


Content = Text | Media


class Result(_Block, frozen=True):
    """What a call of a tool gave: the one block of a turn of the role `tool`."""

    call_id: str
    blocks: tuple[Content, ...] = ()


Block = Text | Thought | Call | Media | Result | Opaque


T = TypeVar("T")


class _Read(Generic[T]):
    """An attribute of a turn that its blocks say. All are read at once, when the first one is asked for."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, turn: "Turn", owner: Any = None) -> T:
        attributes = turn.__dict__
        attributes |= _read(turn.blocks)
        value: T = attributes[self._name]
        return value


class Turn(msgspec.Struct, frozen=True, omit_defaults=True, dict=True):
    """One turn; `Turn.of` builds it of what it says."""

    role: str
    blocks: tuple[Block, ...]
    """Thoughts come first, then texts and media, calls, and what it is in some dialect."""
    name: str | None = None
    cache_mark: bool = False
    """Whether the caller has marked it for a provider's cache."""
    answered_by: str = ""
    """The server and model that answered with it, "" if that is not known; no other one gets its thoughts and what is
    in its dialect alone."""
    recalled: tuple[Opaque, ...] = ()
    """What its server said in its dialect, from the gateway's memory. It goes where the caller itself gives nothing in
    that dialect."""

    @classmethod
    def of(
        cls,
        role: str,
        content: str | Iterable[Content] = "",
        *,
        calls: Iterable[Call] = (),
        thoughts: str = "",
        call_id: str | None = None,
        opaque: Iterable[Opaque] = (),
        **fields: Any,
    ) -> "Turn":
        """Return a turn of a text, or of texts and media. `call_id`: of the call whose result it is; `fields` are the
        others."""
        if isinstance(content, str):
            blocks: tuple[Content, ...] = (Text(content),) if content else ()
        else:
            blocks = _joined(content)
            if [block for block in blocks if block.breakpoint is not None]:
                fields["cache_mark"] = True
        if call_id is not None:
            return cls(role, (Result(call_id, blocks), *opaque), **fields)
        thought = (Thought(thoughts),) if thoughts else ()
        return cls(role, (*thought, *blocks, *calls, *opaque), **fields)

    text = _Read[str]()
    """Its texts, each on lines of its own; without thoughts."""
    content_blocks = _Read[tuple[Content, ...]]()
    """Its texts and media in order, also those of a result."""
    parts = _Read[tuple[Content, ...]]()
    """Its texts and media in order, if they are more than one text; else empty."""
    media = _Read[tuple[Media, ...]]()
    calls = _Read[tuple[Call, ...]]()
    thoughts = _Read[str]()
    call_id = _Read[str | None]()
    """Of the call whose result it is; None for another turn."""
    opaque = _Read[tuple[Opaque, ...]]()
    has_plain_blocks = _Read[bool]()

    @property
    def is_plain(self) -> bool:
        """Whether every model may read all of it."""
        return self.has_plain_blocks and not self.recalled

    @property
    def is_text(self) -> bool:
        """Whether it is one text and nothing else."""
        return len(self.blocks) == 1 and type(self.blocks[0]) is Text

    def written(self, dialect: Dialect | None) -> tuple[Opaque, ...]:
        """Return what it is in `dialect`: as the caller gave it, else as it is recalled; empty if it has to be said
        there by its other blocks."""
        said = [block for block in self.opaque if block.dialect == dialect]
        return tuple(said or [block for block in self.recalled if block.dialect == dialect])

    @property
    def media_tokens(self) -> int:
        """An estimate of the tokens of its images, audio and files."""
        return sum([block.tokens for block in self.media])

    @property
    def attachments(self) -> str:
        """What stands for its images, audio and files in records: kind, size and digest of each."""
        return " ".join([block.placeholder for block in self.media])

    @property
    def without_media(self) -> "Turn":
        """The turn with digests in place of its images, audio and files: equal for equal turns, and short."""
        if not self.media:
            return self
        return self.with_content(
            [block.without_data if isinstance(block, Media) else block for block in self.content_blocks]
        )

    def with_opaque(self, opaque: Iterable[Opaque]) -> "Turn":
        """Return the turn with other blocks of dialects."""
        return self.with_blocks([*[block for block in self.blocks if type(block) is not Opaque], *opaque])

    def with_text(self, text: str) -> "Turn":
        """Return the turn with one text in place of its own."""
        return self.with_content([Text(text), *self.media])

    def with_content(self, content: Iterable[Content]) -> "Turn":
        """Return the turn with other texts and media; thoughts and calls stay."""
        made = Turn.of(
            self.role, content, calls=self.calls, thoughts=self.thoughts, call_id=self.call_id, opaque=self.opaque
        )
        return self.with_blocks(made.blocks)

    def with_calls(self, calls: Iterable[Call]) -> "Turn":
        """Return the turn with other calls, each in the place of its own."""
        others = iter(calls)
        return self.with_blocks(next(others) if type(block) is Call else block for block in self.blocks)

    def split_calls(self) -> list["Turn"]:
        """Return a turn for each of its calls; what else it says is in the first one."""
        first, *later = self.calls
        others = [block for block in self.blocks if type(block) is not Call or block is first]
        return [self.with_blocks(others), *[self.with_blocks((call,)) for call in later]]

    def with_blocks(self, blocks: Iterable[Block]) -> "Turn":
        return msgspec.structs.replace(self, blocks=tuple(blocks))

    def recorded_content(self) -> str:
        """The turn as one text, calls included, for records and length estimates."""
        calls = self.calls
        if not calls:
            return self.text
        return "\n".join(filter(None, [self.text, *[f"{call.name}({call.arguments})" for call in calls]]))


def _read(blocks: tuple[Block, ...]) -> dict[str, Any]:
    """Return the attributes of a turn of `blocks`."""
    content: tuple[Content, ...] = ()
    calls: tuple[Call, ...] = ()
    opaque: tuple[Opaque, ...] = ()
    attributes = _NOTHING | {}
    for block in blocks:
        if type(block) is Text or type(block) is Media:
            content += (block,)
        elif type(block) is Result:
            attributes["call_id"], content = block.call_id, block.blocks
        elif type(block) is Call:
            calls += (block,)
            attributes["has_plain_blocks"] = attributes["has_plain_blocks"] and block.source is None
        elif type(block) is Thought:
            attributes["thoughts"] += block.text
            attributes["has_plain_blocks"] = False
        elif type(block) is Opaque:
            opaque += (block,)
            attributes["has_plain_blocks"] = False
    attributes["calls"], attributes["opaque"], attributes["content_blocks"] = calls, opaque, content
    if content:
        first, *more = content
        if type(first) is Text and first.breakpoint is None and not more:
            attributes["text"] = first.text
            return attributes
        attributes["text"] = "\n".join([block.text for block in content if type(block) is Text])
        attributes["parts"] = content
        attributes["media"] = tuple([block for block in content if type(block) is Media])
    return attributes


_NOTHING: dict[str, Any] = {
    "text": "", "content_blocks": (), "parts": (), "media": (), "calls": (), "thoughts": "", "call_id": None,
    "opaque": (), "has_plain_blocks": True,
}  # fmt: skip


def _joined(content: Iterable[Content]) -> tuple[Content, ...]:
    """Texts alone are one text, unless one is marked."""
    every = tuple(content)
    if [block for block in every if type(block) is not Text or block.is_marked]:
        return every
    text = "\n".join([block.text for block in every if type(block) is Text])
    return (Text(text),) if text else ()


def media(kind: MediaKind, data: dict[str, Any]) -> Media:
    """Return an image, a video, audio or a file; takes as long as hashing it."""
    digest = hashlib.blake2b(_encode(data), digest_size=16).hexdigest()
    return Media(kind=kind, data=data, digest=digest, num_bytes=_num_bytes(data.get(_BODIES[kind])))


def _num_bytes(body: Any) -> int:
    """Of base64 text, with or without the head of a data URL."""
    if not isinstance(body, str) or body[:8].lower().startswith(("http:", "https:")):
        return 0
    start = body.find(",", 0, 256) + 1
    return (len(body) - start) * 3 // 4


# A mapping's keys in one order, so that equal data have equal digests.
_encode = msgspec.msgpack.Encoder(order="deterministic").encode
# By digest: a block is counted several times, and the same one comes with each turn of its conversation.
_audio_seconds: dict[str, float | None] = {}
_MOST_LENGTHS, _READ_HERE_BYTES = 4096, 64 * 1024


def _read_seconds(body: str) -> float | None:
    """Return the seconds of audio in base64 text, with or without the head of a data URL."""
    from tiers.audio.duration import audio_duration  # few requests have audio

    try:
        duration = audio_duration(base64.b64decode(body[body.find(",", 0, 256) + 1 :]))
    except ValueError:
        return None
    return None if duration is None else duration.most


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A function that a model may call."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """A JSON schema of an object; None for no parameters."""
    strict: bool = False
    """Whether calls always follow the schema, even if the model is free to call or not."""
    custom: bool = False
    """Whether the function stands for a tool of the caller's that takes text."""
    cache_control: dict[str, Any] | None = None
    """A mark of the caller's for a provider's cache."""

    def definition(self) -> dict[str, Any]:
        """The tool as chat templates and OpenAI-compatible servers expect it, without our own fields."""
        function: dict[str, Any] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        function["parameters"] = self.schema
        return {"type": "function", "function": function}

    @property
    def schema(self) -> dict[str, Any]:
        return NO_PARAMETERS if self.parameters is None else self.parameters


class ToolCallDelta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A piece of the call number `index` of a choice: first `id` and `name`, then pieces of the arguments' JSON."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""
    extra_content: bytes = b""
    """See `tiers.conversation.Call`; it comes whole."""


class Tooling(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A request's tools."""

    tools: tuple[Tool, ...]
    choice: Literal["none", "auto", "required", "named"] = "auto"
    """No call, optional calls, at least one, or the tool called `name`."""
    name: str | None = None
    parallel: bool = True
    """Whether one answer may contain several calls."""
    as_functions: bool = False
    """Whether the caller gave `functions`."""
    edited: dict[str, Tool] = {}
    """Tools that were changed for their server, by the caller's names."""

    @cached_property
    def num_bytes(self) -> int:
        """Length of the tools' definitions as JSON."""
        return sum(len(msgspec.json.encode(tool.definition())) for tool in self.tools)

    @property
    def is_forced(self) -> bool:
        """Whether the answer must be a call."""
        return self.choice in ("required", "named")

    @property
    def callable_tools(self) -> list[tuple[int, Tool]]:
        """Return the tools that the answer may call, with their positions among all."""
        if self.choice == "none":
            return []
        return [(i, tool) for i, tool in enumerate(self.tools) if self.choice != "named" or tool.name == self.name]


def new_call_id() -> str:
    """Return a call id in OpenAI's format."""
    return f"call_{secrets.token_hex(12)}"


class OpaqueFields(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a request says in its own dialect alone, or more exactly there. Only that dialect's module reads the fields:
    it writes them for a server with the same dialect, with what the common form has changed put over them."""

    dialect: Dialect = msgspec.field(name="form")
    fields: dict[str, bytes] = {}
    """JSON by name."""
    server_tools: tuple[str, ...] = ()
    """Types of the tools among them that the provider itself runs."""
    lost_elsewhere: tuple[str, ...] = ()
    """Names of fields that change the answer and that no other dialect has."""
    says_thinking: bool = False
    """Whether they say how to think."""

    @property
    def size(self) -> int:
        """Bytes of all fields."""
        return sum(map(len, self.fields.values()))

    def with_fields(self, fields: Mapping[str, bytes]) -> "OpaqueFields":
        """Return them with other fields."""
        return msgspec.structs.replace(self, fields=dict(fields))


class OpaquePiece(msgspec.Struct, frozen=True, omit_defaults=True):
    """A piece of an answer as the dialect of its server has it: only that dialect reads it."""

    dialect: Dialect = msgspec.field(name="form")
    event: bytes = b""
    """JSON of an event of the server's stream."""
    block: Opaque | None = None
    """What is finished with this piece."""


class UrlCitation(msgspec.Struct, frozen=True):
    """A page that a part of the text rests on, from character `start_index` to `end_index` of the choice's text."""

    url: str
    title: str = ""
    start_index: int = 0
    end_index: int = 0


_FIELD = re.compile(r"(?P<field>\w+)(?:\[(?P<place>\d+)\])?")


class FieldNames(msgspec.Struct, frozen=True):
    """How the caller's dialect calls what is named in OpenAI's words once a request has been read."""

    fields: dict[str, str] = {}
    turns: tuple[str, ...] = ()
    """The path of each turn of the conversation; without any, turns are `messages[0]` and so on."""
    tools: tuple[str, ...] = ()
    """The path of the schema of each tool; without any, it is `tools[0].function.parameters` and so on."""

    def path(self, param: str) -> str:
        """Return the caller's path of a field such as `max_completion_tokens`, or of a turn such as `messages[2]`."""
        head = _FIELD.match(param)
        if head is None or param in self.fields:
            return self.fields.get(param, param)
        if head["place"] is not None and head["field"] == "messages" and self.turns:
            index = int(head["place"])
            return self.turns[index] if index < len(self.turns) else self.fields.get("messages", "messages")
        if head["place"] is not None and head["field"] == "tools" and int(head["place"]) < len(self.tools):
            return self.tools[int(head["place"])]
        return self.fields.get(head["field"], head["field"]) + param[head.end("field") :]


class WantedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller wants of its answer: what is read from its dialect, and what its tier is asked for."""

    tooling: Tooling | None = None
    """Tools that the answer may or must call."""
    response_format: dict[str, Any] | None = None
    """The form that the answer must have, as OpenAI's chats write it, for servers that read it themselves."""
    reasoning_effort: ReasoningEffort | None = None
    reasoning_budget: int | None = None
    """Most tokens of thoughts, 0 for none; None is a chain-of-thought tier's default, or a share of it by
    `reasoning_effort`."""
    template_variables: dict[str, Any] = {}
    """Further variables of the model's chat template, plain JSON; a remote server gets them if its kind takes any."""
    max_tokens: int | None = None
    """None means the default length of a tier in process, and no limit for a server elsewhere, unless its API needs
    one; always at most what the context allows.
    """
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    """Whether the stop string that ends an answer is part of it."""
    n: int = 1
    echo: bool = False
    """Whether every choice starts with its raw prompt, with the prompt's log-probabilities if any are asked for; then
    `max_tokens` may be 0.
    """
    passed: dict[str, Any] = {}
    """The caller's fields that mean something to a provider alone, by OpenAI's names."""
    extra: dict[str, Any] = {}
    """The caller's fields beyond OpenAI's API that some servers know."""
    opaque: OpaqueFields | None = None
    """What the request says in the caller's dialect alone."""
    wants_opaque: bool = False
    """Whether the answer is also wanted as the server's dialect has it, because its reasoning may have to be given
    back.
    """


class ReadRequest(WantedAnswer, frozen=True, kw_only=True):
    """What a caller asks for, read from its dialect: the same struct for all of them.

    Exactly one of `turns` and `prompts` is set.
    """

    model: str
    turns: list[Turn] | None = None
    prompts: list[str | list[int]] | None = None
    """Texts, or token ids of the model, to be continued without a chat template."""
    grammar: Grammar | None = None
    """What the answer must follow; its `param` is a path in the caller's words."""
    sampling: dict[str, Any] = {}
    """The caller's values of fields of `inference_core.protocol.SamplingParams`, but for `logprobs` and the limit."""
    logprobs: int | None = None
    """Alternatives of each token that come with its log-probability; None for no log-probabilities."""
    is_usual_limit: bool = False
    """Whether `max_tokens` is the API's own default, which a server elsewhere is not sent."""
    best_of: int | None = None
    stream: bool = False
    priority: int | None = None
    """The scheduling class; None where the caller says none."""
    service_tier: str | None = None
    """As the caller asked for it; the answer repeats it."""
    explicit: tuple[str, ...] = ()
    """Names of further fields that the caller set, whose usual value says something to a server elsewhere."""
    store: bool = True
    """False where the caller refuses that its request is kept."""
    metadata: dict[str, str] | None = None
    """Tags, recorded as they are."""
    user: str | None = None
    """The end user, by whose name experiments are split; not recorded."""
    ignored: tuple[str, ...] = ()
    """Names of what the request says and nothing here can do, next to what it asks for."""
    names: FieldNames = FieldNames()
