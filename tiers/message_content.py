"""What turns and answers hold in addition to plain text, as passed between gateway and tiers.

Tools, the choice among them, and calls of them. Content parts: the images, audio and files between the texts of a
message, as OpenAI's API writes them. Native content: what a caller or a server said in the form of its own API, kept
as bytes: only that form carries reasoning that its maker sealed, marks of caches, and tools that a provider runs.
Citations: addresses on the web, as servers that search there name them.
"""

import base64
import hashlib
import json
import math
import secrets
from typing import Any, Literal

import msgspec

# What the text of a tool's result begins with if its call failed; Anthropic's `is_error` becomes it.
FAILED_RESULT = "Error: "
NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A function that a model may call. `parameters` is a JSON schema of an object; None for no parameters.

    `strict`: calls always follow the schema, even if the model is free to call or not. `custom`: the function stands
    for a tool of the caller's that takes text. `cache_control`: a mark of the caller's for a provider's cache.
    """

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool = False
    custom: bool = False
    cache_control: dict[str, Any] | None = None

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


class ToolCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call in a conversation; `arguments` is JSON text. `extra_content`: JSON that its server needs back."""

    id: str
    name: str
    arguments: str
    extra_content: bytes = b""

    def parsed_arguments(self) -> Any:
        """Return the arguments as data; text that is not JSON stays text."""
        try:
            return json.loads(self.arguments)
        except (ValueError, RecursionError):
            return self.arguments


class ToolCallDelta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A piece of the call number `index` of a choice: first `id` and `name`, then pieces of the arguments' JSON.
    `extra_content`: see `ToolCall`; whole."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""
    extra_content: bytes = b""


class Tooling(msgspec.Struct, frozen=True, kw_only=True):
    """A request's tools. `choice`: no call, optional calls, at least one, or the tool called `name`.

    `parallel`: whether one answer may contain several calls. `as_functions`: whether the caller gave functions.
    """

    tools: tuple[Tool, ...]
    choice: Literal["none", "auto", "required", "named"] = "auto"
    name: str | None = None
    parallel: bool = True
    as_functions: bool = False

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


PartType = Literal["text", "image_url", "video_url", "input_audio", "file"]
MediaType = Literal["image_url", "video_url", "input_audio", "file"]

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

_NOUNS = {"image_url": "image", "video_url": "video", "input_audio": "audio", "file": "file"}
_BODIES = {"image_url": "url", "video_url": "url", "input_audio": "data", "file": "file_data"}


BREAKPOINT = "prompt_cache_breakpoint"
"""Of a part: https://developers.openai.com/api/docs/guides/prompt-caching (2026-11)."""


class ContentPart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One part of a message's content: a `text`, or the object under the key `type` of OpenAI's part, as the caller
    sent it (`data`): `{"url", "detail"}`, `{"data", "format"}` or `{"file_data", "filename", "file_id"}`.

    `digest`: hexadecimal BLAKE2b of `data`, 16 bytes. `num_bytes`: of what is sent in the request, decoded from base64;
    0 for a URL or an id. Built by `text_part` and `media_part`.
    `breakpoint`: the caller's `prompt_cache_breakpoint`, by which a server of OpenAI's keeps the prompt up to here.
    """

    type: PartType
    text: str = ""
    data: dict[str, Any] | None = None
    digest: str = ""
    num_bytes: int = 0
    breakpoint: dict[str, Any] | None = None

    @property
    def wire(self) -> dict[str, Any]:
        """The part as OpenAI's API has it."""
        body = {"type": "text", "text": self.text} if self.type == "text" else {"type": self.type, self.type: self.data}
        return body if self.breakpoint is None else body | {BREAKPOINT: self.breakpoint}

    @property
    def placeholder(self) -> str:
        """What stands for the part in records: kind, size and digest."""
        size = f"{self.num_bytes} bytes" if self.num_bytes else "by reference"
        return f"[{_NOUNS.get(self.type, self.type)}, {size}, {self.digest}]"

    @property
    def media_tokens(self) -> int:
        """An estimate of the tokens of a part that is not a text; 0 for a text."""
        if self.type == "text":
            return 0
        if self.type == "image_url":
            return LOW_DETAIL_IMAGE_TOKENS if (self.data or {}).get("detail") == "low" else IMAGE_TOKENS
        if not self.num_bytes:
            return REFERENCE_TOKENS
        seconds = self.audio_seconds
        of_audio = 0 if seconds is None else math.ceil(round(seconds * AUDIO_TOKENS_PER_SECOND, 3))
        if self.type == "input_audio":
            return 1 + (of_audio or self.num_bytes // AUDIO_BYTES_PER_TOKEN)
        return 1 + max(of_audio, self.num_bytes // FILE_BYTES_PER_TOKEN)

    @property
    def audio_seconds(self) -> float | None:
        """The longest plausible seconds of audio; None if it is none that can be read. The first time may take a second
        of CPU time where `is_long_audio`."""
        if self.type not in ("input_audio", "file") or not self.num_bytes:
            return None
        if self.data is None or self.digest in _audio_seconds:
            return _audio_seconds.get(self.digest)
        if len(_audio_seconds) >= _MOST_LENGTHS:
            _audio_seconds.clear()
        seconds = _audio_seconds[self.digest] = _read_seconds(str(self.data.get(_BODIES[self.type])))
        return seconds

    @property
    def is_long_audio(self) -> bool:
        """Whether reading how long it is takes a while: not on the event loop."""
        is_audio = self.type in ("input_audio", "file") and self.num_bytes > _READ_HERE_BYTES
        return is_audio and self.digest not in _audio_seconds

    @property
    def without_data(self) -> "ContentPart":
        """The part with its digest alone: the same for the same data, and short."""
        return self if self.data is None else msgspec.structs.replace(self, data=None)


# By digest: a part is counted several times, and the same one comes with each turn of its conversation.
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


def text_part(text: str) -> ContentPart:
    return ContentPart(type="text", text=text)


def media_part(kind: MediaType, data: dict[str, Any]) -> ContentPart:
    """Return an image, a video, audio or a file; takes as long as hashing it."""
    digest = hashlib.blake2b(_encode(data), digest_size=16).hexdigest()
    return ContentPart(type=kind, data=data, digest=digest, num_bytes=_num_bytes(data.get(_BODIES[kind])))


def _num_bytes(body: Any) -> int:
    """Of base64 text, with or without the head of a data URL."""
    if not isinstance(body, str) or body[:8].lower().startswith(("http:", "https:")):
        return 0
    start = body.find(",", 0, 256) + 1
    return (len(body) - start) * 3 // 4


# A mapping's keys in one order, so that equal data have equal digests.
_encode = msgspec.msgpack.Encoder(order="deterministic").encode


Form = Literal["anthropic", "responses", "gemini", "bedrock", "chat"]
"""Anthropic's Messages, OpenAI's Responses, Gemini's `generateContent`, Bedrock's Converse (its reasoning alone), and
OpenAI's chat (what it has of `tiers.chat_state`)."""


PROVIDERS_OWN = ("_tool_use", "_tool_result", "container_upload", "compaction", "redacted_thinking")
"""Ends of types of Anthropic's blocks that are of tools that it ran, or its own bookkeeping: no other model can do
anything with them, and only callers of its API get them."""


class NativeBlock(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One block, item or part: its JSON as it was given, and its `type`. `seal`: the signature or the encrypted text of
    reasoning, which only the model that made it can read; "" for anything else."""

    json: bytes
    type: str = ""
    seal: str = ""


class NativeContent(msgspec.Struct, frozen=True, omit_defaults=True):
    """A turn in the form of one API."""

    form: Form
    blocks: tuple[NativeBlock, ...]

    @property
    def size(self) -> int:
        """Bytes of all blocks."""
        return sum(len(block.json) for block in self.blocks)

    @property
    def is_sealed(self) -> bool:
        """Whether reasoning is among it that only its maker can read."""
        return any(block.seal for block in self.blocks)


TURN = "turn"
"""Type of a block of Anthropic's form that is none: a whole turn of the system, which no other API has."""
INTERLEAVED = "interleaved-thinking"
"""Anthropic's beta with which a budget is that of a whole turn of calls, and so may be above the limit of an answer."""


class NativeRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """What else a request says in the form of its API: the JSON of its other `fields`, by name. `server_tools`: the
    types of tools among them that the provider itself runs. `betas`: Anthropic's header of the same name.
    `unsaid`: names of fields that change the answer and that no other API has."""

    form: Form
    fields: dict[str, bytes] = {}
    server_tools: tuple[str, ...] = ()
    betas: str = ""
    unsaid: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of all fields."""
        return sum(map(len, self.fields.values()))


class OpaquePiece(msgspec.Struct, frozen=True, omit_defaults=True):
    """A piece of an answer as the dialect of its server has it: only that dialect reads it."""

    dialect: Form = msgspec.field(name="form")
    event: bytes = b""
    """JSON of an event of the server's stream."""
    block: NativeBlock | None = None
    """What is finished with this piece."""


class UrlCitation(msgspec.Struct, frozen=True):
    """A page that a part of the text rests on, from character `start_index` to `end_index` of the choice's text."""

    url: str
    title: str = ""
    start_index: int = 0
    end_index: int = 0
