"""Bounds of a prompt's tokens that hold for every tokeniser: for budgets, and for what servers report."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from inference_core.tokenization.prompt_size import BYTES_PER_TOKEN
from tiers.message_content import NativeRequest, Tooling
from tiers.tier import ChatMessage, GenerationRequest

TOLERANCE = 64
"""An honest count is at least our estimate divided by this.

A token of 256 bytes would be needed to fall below. The longest tokens of the vocabularies in use have 128 (runs of
blanks and dashes), and words of scripts with three bytes a character less than 60.
"""
# No tokeniser makes more tokens than bytes; a chat template adds less than this per turn and at its ends.
TEMPLATE_TOKENS_PER_TURN = 16
TEMPLATE_TOKENS = 64
# Our own instructions, and those of the templates that have any, are shorter than this.
TEMPLATE_TOKENS_FOR_TOOLS = 2048
# A server may put instructions of its own before every prompt, which are not seen here.
SERVER_TOKENS = 4096


class PromptBounds(NamedTuple):
    """The least and the most tokens that a server may honestly count of a prompt."""

    least: int
    most: int


class Conversation(msgspec.Struct, frozen=True):
    """What a prompt that is a conversation is made of."""

    messages: Sequence[ChatMessage]
    tooling: Tooling | None
    template_variables: dict[str, Any]
    native: NativeRequest | None = None

    def most_tokens(self) -> int:
        """Return an upper bound on its tokens; images, audio and files count as estimated."""
        text = 0
        for message in self.messages:
            own = num_bytes(message.recorded_content())
            if message.parts or message.reasoning:
                own += num_bytes(message.reasoning) + message.media_tokens
            if message.native is message.kept is None:
                text += own if not message.state else own + sum(len(block.json) for block in message.state)
            else:
                text += max(own, _native_size(message)) + sum(len(block.json) for block in message.state)
        if self.tooling is not None or self.native is not None:
            tools = () if self.tooling is None else self.tooling.tools
            size = sum(len(msgspec.json.encode(tool.definition())) for tool in tools)
            text += TEMPLATE_TOKENS_FOR_TOOLS + max(size, 0 if self.native is None else self.native.size)
        if self.template_variables:
            text += len(msgspec.json.encode(self.template_variables))
        return text + TEMPLATE_TOKENS_PER_TURN * len(self.messages) + TEMPLATE_TOKENS


def prompt_bounds(request: GenerationRequest, max_context: int) -> PromptBounds:
    """Return the bounds of the prompt of `request` at a server elsewhere. Tokens of images, audio and files do not
    follow from their bytes: a prompt with any has at most `max_context`, which the tier can read. Their tokens, those
    of tools and of earlier thoughts, which a server may leave out, raise no lower bound."""
    if request.messages is None:
        own = most_tokens_of(request.prompt or "")
        least = _least(own if isinstance(request.prompt, list) else _estimate(own))
        return PromptBounds(least, own + TEMPLATE_TOKENS + SERVER_TOKENS)
    variables = request.template_variables | request.extra
    conversation = Conversation(request.messages, request.tooling, variables, request.native)
    most = SERVER_TOKENS + conversation.most_tokens()
    if any(message.parts for message in request.messages) or (request.native and request.native.server_tools):
        # A tool that the provider runs may read as much.
        most = max(most, max_context)
    return PromptBounds(_least(sum(_estimate(num_bytes(message.content)) for message in request.messages)), most)


def least_tokens(size: int) -> int:
    """Return the least tokens that a server may honestly count of a text of `size` bytes."""
    return (-(-size // BYTES_PER_TOKEN) // TOLERANCE or 1) if size else 0


def most_tokens_raw(prompts: Sequence[str | list[int]]) -> int:
    """Return an upper bound on the tokens of the longest of raw prompts."""
    return max(map(most_tokens_of, prompts), default=0) + TEMPLATE_TOKENS


def num_bytes(text: str) -> int:
    """Length in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def most_tokens_of(prompt: str | list[int]) -> int:
    """Return an upper bound on the tokens of a raw prompt, without what is added at its ends."""
    return len(prompt) if isinstance(prompt, list) else num_bytes(prompt)


def _native_size(message: ChatMessage) -> int:
    return max(0 if content is None else content.size for content in (message.native, message.kept))


def _estimate(size: int) -> int:
    return -(-size // BYTES_PER_TOKEN)


def _least(estimate: int) -> int:
    return max(1, estimate // TOLERANCE)
