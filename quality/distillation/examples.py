"""What an adapter learns from: conversations with the answer that is wanted, from a file or from recorded answers."""

from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_core.errors import InvalidRequestError
from inference_core.io.json_lines import json_lines
from inference_core.tokenization.tokenizer import Tokenizer
from quality.records.record import Record
from quality.store.queries import newest_answers
from quality.verification.sampling import refusal
from tiers.catalog.consent import ALL, Reader, hidden_from


class ExampleFileError(ValueError):
    """A file of examples cannot be used; the message names the line, what it holds and what is expected."""


class Example(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation up to a user's turn, as turns with `role` and `content`, and the wanted `answer`."""

    turns: list[dict[str, str]]
    answer: str


class TokenExample(msgspec.Struct, frozen=True, kw_only=True):
    """An example in the model's tokens; the end token is the answer's last."""

    prompt: list[int]
    answer: list[int]

    @property
    def tokens(self) -> int:
        return len(self.prompt) + len(self.answer)


class Split(msgspec.Struct, frozen=True, kw_only=True):
    """Examples to train on and to measure with, which share no prompt."""

    training: list[TokenExample]
    held_out: list[TokenExample]
    left_out: int
    """How many are in neither."""


class _Line(msgspec.Struct, frozen=True, kw_only=True):
    messages: list[dict[str, Any]] | None = None
    prompt: str | None = None
    answer: str | None = None


def read_examples(file: Path) -> list[Example]:
    """Read JSON lines: `messages`, whose last turn is the assistant's or which an `answer` follows, or `prompt` and
    `answer`. A prompt is a user's turn. Raises ExampleFileError."""
    examples = []
    for where, line in json_lines(file, _Line, ExampleFileError):
        try:
            examples.append(_example(line))
        except ExampleFileError as error:
            raise ExampleFileError(f"{where}: {error}") from error
    return examples


async def recorded_examples(
    engine: AsyncEngine, tier: int, limit: int, learners: Sequence[Reader] = ()
) -> list[Example]:
    """Return up to `limit` of the newest recorded answers of `tier`, under the rule by which answers are verified and
    learned from: chats in text alone, answered to their end for this very request, whose key consented to storing texts
    (`quality.verification.sampling.refusal`). `learners`: the tiers of the model that is trained; what one of them may
    not see, or what not every tier may see where no tier has the model, is left out."""
    records = [record for record in await newest_answers(engine, tier, limit) if refusal(record) is None]
    if not learners:
        return [_recorded(record) for record in records if record.consent == ALL]
    return [
        _recorded(record)
        for record in records
        if all(hidden_from(learner, record.consent, "reuse") is None for learner in learners)
    ]


def encoded_split(examples: Sequence[Example], tokenizer: Tokenizer, *, held_out: float, max_tokens: int) -> Split:
    """Encode `examples` and hold out the share `held_out` of their prompts, at least one: those with the lowest
    hashes, so that equal examples are split equally each time.

    Examples longer than `max_tokens`, without a prompt, or with turns that the model's chat template refuses are left
    out. A model without a template reads turns as lines of text.
    """
    encoded = [_encoded(example, tokenizer) for example in examples]
    fitting = [
        example for example in encoded if example is not None and example.prompt and example.tokens <= max_tokens
    ]
    prompts = sorted({_digest(example.prompt) for example in fitting})
    held = set(prompts[: max(round(held_out * len(prompts)), 1)])
    return Split(
        training=[example for example in fitting if _digest(example.prompt) not in held],
        held_out=[example for example in fitting if _digest(example.prompt) in held],
        left_out=len(encoded) - len(fitting),
    )


def _example(line: _Line) -> Example:
    turns, answer = line.messages, line.answer
    if (turns is None) == (line.prompt is None):
        raise ExampleFileError("expected either messages or prompt")
    if turns is None:
        turns = [{"role": "user", "content": line.prompt}]
    if any(not isinstance(turn.get(field), str) for turn in turns for field in ("role", "content")):
        raise ExampleFileError("every message needs role and content, both text")
    if answer is None and turns and turns[-1]["role"] == "assistant":
        turns, answer = turns[:-1], turns[-1]["content"]
    if not turns or not answer or not answer.strip():
        raise ExampleFileError("expected an answer: a field of this name, or the assistant's turn as the last message")
    return Example(turns=[{"role": turn["role"], "content": turn["content"]} for turn in turns], answer=answer)


def _recorded(record: Record) -> Example:
    turns = [{"role": turn["role"], "content": turn["content"]} for turn in record.messages or []]
    return Example(turns=turns, answer=record.answer or "")


def _encoded(example: Example, tokenizer: Tokenizer) -> TokenExample | None:
    """Return None for turns that the chat template refuses."""
    if tokenizer.chat_template is not None:
        try:
            prompt = tokenizer.encode_chat(example.turns)
        except InvalidRequestError:
            return None
    else:
        text = "\n".join(turn["content"] for turn in example.turns)
        prompt = tokenizer.encode(text, add_special_tokens=True)
    end = tokenizer.eos_token_ids[:1]
    return TokenExample(prompt=prompt, answer=[*tokenizer.encode_continued(example.answer), *end])


def _digest(prompt: list[int]) -> bytes:
    return blake2b(repr(prompt).encode(), digest_size=16).digest()
