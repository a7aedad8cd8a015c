"""What a caller or a server said in the form of its own API, kept as bytes: only that form carries reasoning that its
maker sealed, marks of caches, and tools that a provider runs."""

from typing import Literal

import msgspec

Form = Literal["anthropic", "responses", "gemini", "bedrock", "chat"]
"""Anthropic's Messages, OpenAI's Responses, Gemini's `generateContent`, Bedrock's Converse (its reasoning alone), and
OpenAI's chat (what it has of `tiers.chat_state`)."""


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


class NativePiece(msgspec.Struct, frozen=True, omit_defaults=True):
    """A piece of an answer in the form of the server's API: the JSON of an `event` of its stream, a `block` that is
    finished, or both."""

    form: Form
    event: bytes = b""
    block: NativeBlock | None = None
