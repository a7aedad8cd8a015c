"""What a tier's model can take and give, other than text."""

from collections.abc import Mapping
from typing import Literal, get_args

import msgspec

Capability = Literal["vision", "audio", "files", "tools", "json_schema", "logprobs"]
CAPABILITIES: tuple[Capability, ...] = get_args(Capability)
# Parts of messages.
MEDIA: tuple[Capability, ...] = ("vision", "audio", "files")

# Of in-process models and of most servers, unless declared otherwise.
USUAL: frozenset[Capability] = frozenset({"tools", "json_schema", "logprobs"})
# Kinds of servers whose own API has less, or whose models all have more.
USUAL_OF_KIND: Mapping[str, frozenset[Capability]] = {
    "triton-tensorrt-llm": frozenset({"json_schema"}),
    "triton-vllm": frozenset(),
    "anthropic": frozenset({"vision", "files", "tools", "json_schema"}),
    "gemini": frozenset({"vision", "audio", "files", "tools", "json_schema"}),
    "bedrock": frozenset({"tools"}),
    "vertex-gemini": frozenset({"vision", "audio", "files", "tools", "json_schema"}),
    "vertex-anthropic": frozenset({"vision", "files", "tools", "json_schema"}),
}
# Kinds of servers of which every model gives log-probabilities; some of OpenAI's reject a request for them.
LOGPROB_KINDS = frozenset({"vllm", "sglang"})


class Capabilities(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Declared abilities of a tier; None: not declared, and the default of its kind of server holds.

    `vision`, `audio` and `files`: parts of messages that it reads. `tools`: function calls. `json_schema`: structured
    output. `logprobs`: log-probabilities of its tokens.
    """

    vision: bool | None = None
    audio: bool | None = None
    files: bool | None = None
    tools: bool | None = None
    json_schema: bool | None = None
    logprobs: bool | None = None

    def over(self, usual: frozenset[Capability]) -> frozenset[Capability]:
        """Return what a tier has whose kind of server usually has `usual`."""
        declared = {name: getattr(self, name) for name in CAPABILITIES}
        return frozenset(name for name in CAPABILITIES if (name in usual if declared[name] is None else declared[name]))
