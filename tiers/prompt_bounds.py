"""Bounds of a prompt's tokens that hold for every tokeniser: for budgets, and for what servers report."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from inference_core.tokenization.prompt_size import BYTES_PER_TOKEN
from tiers.conversation import Media, OpaqueFields, Tooling, Turn
from tiers.tier import ModelRequest

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


class ImageTokens(NamedTuple):
    """Tokens of images."""

    models: str
    low: int
    """The most tokens of an image with `detail: low`."""
    most: int
    """The most tokens of any other image."""
    source: str


_OPENAI = "https://platform.openai.com/docs/guides/images-vision#calculating-costs"
# How an image is counted differs by family of models, and the size of one that is given by its address is not known.
# The bound is that of the largest image; of a model without a row that of the dearest open model. How long audio or a
# video is, and how many pages a file has, does not follow from its bytes.
# Read 2026-11. Tiled models: at most eight tiles of 512 pixels. Patched: at most 1,536 patches times the multiplier.
IMAGE_ROWS = (
    ImageTokens("^gpt-4o-mini", 2833, 2833 + 8 * 5667, _OPENAI),
    ImageTokens(r"^(gpt-5-mini|gpt-4\.1-mini|o4-mini)", 2642, 2642, _OPENAI),
    ImageTokens(r"^(gpt-5-nano|gpt-4\.1-nano)", 3779, 3779, _OPENAI),
    ImageTokens(r"^(gpt-4o|gpt-4\.1|gpt-4\.5|gpt-4-turbo|o1|o3)", 85, 85 + 8 * 170, _OPENAI),
    ImageTokens(r"^gpt-5(\.1)?(-20|-chat|-codex|-pro|$)", 70, 70 + 8 * 140, _OPENAI),
    # Up to 10,000 patches with `detail: original`, and a multiplier of 2.46 of the smallest.
    ImageTokens("^gpt-", 24_600, 24_600, _OPENAI),
    ImageTokens("claude", 4784, 4784, "https://platform.claude.com/docs/en/build-with-claude/vision"),
    # 16 tiles of 258 tokens, and 2,240 at the highest resolution of Gemini 3.
    ImageTokens("gemini", 4128, 4128, "https://ai.google.dev/gemini-api/docs/image-understanding"),
    # Qwen's largest image has 12,845,056 pixels, a token for 28 by 28 each.
    ImageTokens("", 16_384, 16_384, "https://huggingface.co/Qwen/Qwen2.5-VL-7B-Instruct"),
)


def most_media_tokens(media: Iterable[Media], model: str, max_context: int) -> int:
    """Return the most tokens that `model` counts of `media`; audio, a video or a file may fill its
    context."""
    name = model.rpartition("/")[2]
    row = next(row for row in IMAGE_ROWS if re.search(row.models, name))
    total = 0
    for block in media:
        if block.kind != "image":
            return max_context
        total += row.low if (block.data or {}).get("detail") == "low" else row.most
    return total


class Conversation(msgspec.Struct, frozen=True):
    """What a prompt that is a conversation is made of."""

    messages: Sequence[Turn]
    tooling: Tooling | None
    template_variables: dict[str, Any]
    opaque: OpaqueFields | None = None

    def most_tokens(self) -> int:
        """Return an upper bound on its tokens; images, audio and files count as estimated."""
        text = 0
        for message in self.messages:
            own = num_bytes(message.recorded_content())
            if message.media or message.thoughts:
                own += num_bytes(message.thoughts) + message.media_tokens
            text += own if message.is_plain else _most_written(message, own)
        if self.tooling is not None or self.opaque is not None:
            size = 0 if self.tooling is None else self.tooling.num_bytes
            text += TEMPLATE_TOKENS_FOR_TOOLS + max(size, 0 if self.opaque is None else self.opaque.size)
        if self.template_variables:
            text += len(msgspec.json.encode(self.template_variables))
        return text + TEMPLATE_TOKENS_PER_TURN * len(self.messages) + TEMPLATE_TOKENS


def prompt_bounds(request: ModelRequest, max_context: int, reads: int = 1) -> PromptBounds:
    """Return the bounds of the prompt of `request` at a server elsewhere, which reads it at most `reads` times. Tokens
    of images, audio and files do not follow from their bytes: a prompt with any has at most `max_context`, which the
    tier can read. Their tokens, those of tools and of earlier thoughts, which a server may leave out, raise no lower
    bound."""
    if request.messages is None:
        own = most_tokens_of(request.prompt or "")
        least = _least(own if isinstance(request.prompt, list) else _estimate(own))
        return PromptBounds(least, own + TEMPLATE_TOKENS + SERVER_TOKENS)
    variables = request.template_variables | request.extra
    conversation = Conversation(request.messages, request.tooling, variables, request.opaque)
    most = SERVER_TOKENS + conversation.most_tokens()
    if any(message.media for message in request.messages) or request.server_tools:
        # A tool that the provider runs may read as much.
        most = max(most, max_context) * reads
    return PromptBounds(_least(sum(_estimate(num_bytes(message.text)) for message in request.messages)), most)


def room_after(tokens: int, context: int) -> int:
    """Return what a context leaves for an answer after a prompt of so many tokens, as estimated, and what its model's
    template adds."""
    return context - tokens - TEMPLATE_TOKENS


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


def _most_written(message: Turn, own: int) -> int:
    """The most bytes of a turn of `own` bytes in any dialect, and of its fields."""
    sizes = Counter[tuple[str, bool]]()
    for blocks, is_recalled in ((message.opaque, False), (message.recalled, True)):
        for block in blocks:
            sizes[block.dialect, is_recalled] += len(block.json)
    fields = sizes.pop(("chat", False), 0)
    return max(own, *sizes.values()) + fields if sizes else own + fields


def _estimate(size: int) -> int:
    return -(-size // BYTES_PER_TOKEN)


def _least(estimate: int) -> int:
    return max(1, estimate // TOLERANCE)
