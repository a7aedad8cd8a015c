"""Content parts of a message: the images, audio and files between its texts, as OpenAI's API writes them."""

import hashlib
from typing import Any, Literal

import msgspec

PartType = Literal["text", "image_url", "input_audio", "file"]
MediaType = Literal["image_url", "input_audio", "file"]

# Estimates, for what models count differently: OpenAI's take 85 to 1,500 tokens for an image, Claude 1,600 for one of
# a megapixel, Qwen's models one per 28 by 28 pixels.
IMAGE_TOKENS = 1024
LOW_DETAIL_IMAGE_TOKENS = 85
# Speech is 10 to 32 tokens a second, and 16 kB (MP3) to 48 kB (WAV) of it.
AUDIO_BYTES_PER_TOKEN = 1024
# A PDF takes about 100 kB a page and a page 2,000 tokens, with its picture.
FILE_BYTES_PER_TOKEN = 50
# Of audio or a file that the server has already, so that its size is not known.
REFERENCE_TOKENS = 2048

_NOUNS = {"image_url": "image", "input_audio": "audio", "file": "file"}
_BODIES = {"image_url": "url", "input_audio": "data", "file": "file_data"}


class ContentPart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One part of a message's content: a `text`, or the object under the key `type` of OpenAI's part, as the caller
    sent it (`data`): `{"url", "detail"}`, `{"data", "format"}` or `{"file_data", "filename", "file_id"}`.

    `digest`: hexadecimal BLAKE2b of `data`, 16 bytes. `num_bytes`: of what is sent in the request, decoded from base64;
    0 for a URL or an id. Built by `text_part` and `media_part`.
    """

    type: PartType
    text: str = ""
    data: dict[str, Any] | None = None
    digest: str = ""
    num_bytes: int = 0

    @property
    def wire(self) -> dict[str, Any]:
        """The part as OpenAI's API has it."""
        if self.type == "text":
            return {"type": "text", "text": self.text}
        return {"type": self.type, self.type: self.data}

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
        return 1 + self.num_bytes // (AUDIO_BYTES_PER_TOKEN if self.type == "input_audio" else FILE_BYTES_PER_TOKEN)

    @property
    def without_data(self) -> "ContentPart":
        """The part with its digest alone: the same for the same data, and short."""
        return self if self.data is None else msgspec.structs.replace(self, data=None)


def text_part(text: str) -> ContentPart:
    """Return a text among other parts."""
    return ContentPart(type="text", text=text)


def media_part(kind: MediaType, data: dict[str, Any]) -> ContentPart:
    """Return an image, audio or a file; takes as long as hashing it."""
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
