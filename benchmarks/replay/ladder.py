"""A ladder as plain data: its tiers at declared prices and speeds, and every tier's recorded answer to every prompt."""

import hashlib
from collections.abc import Sequence
from functools import cached_property

import msgspec
import numpy as np
import numpy.typing as npt

from inference_core.tokenization.prompt_size import BYTES_PER_TOKEN

Float = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

# A mark (1 to 10) at most this far below the strongest tier's is no worse.
MARGIN = 1.0
GOOD, POOR = 9.0, 3.0
# Declared prices, USD per million tokens of prompts and answers alike: 1 : 5 : 30 : 100.
PRICES = (0.1, 0.5, 3.0, 10.0)
# Declared speeds: seconds to the first token, and tokens per second from then on.
FIRST_TOKEN_SECONDS = (0.1, 0.2, 0.4, 0.8)
TOKENS_PER_SECOND = (150.0, 100.0, 50.0, 30.0)


class Answer(msgspec.Struct, frozen=True):
    """What a tier says to a prompt, and its mark, 1 to 10."""

    text: str
    mark: float

    @property
    def tokens(self) -> int:
        """What the upstream bills."""
        return tokens_of(self.text)


class Prompt(msgspec.Struct, frozen=True):
    """A prompt of some kind with every tier's answer, cheapest first."""

    prompt_id: str
    kind: str
    text: str
    answers: tuple[Answer, ...]

    def no_worse(self, tier: int) -> bool:
        """Whether the answer of `tier` is no worse than the strongest tier's, by the marks."""
        return self.answers[tier - 1].mark >= self.answers[-1].mark - MARGIN


class TierTerms(msgspec.Struct, frozen=True):
    """A tier's model, its price in USD per million tokens, and its speed."""

    model: str
    price: float
    first_token_seconds: float
    tokens_per_second: float

    def cost(self, prompt: Prompt, answer: Answer) -> float:
        """US dollars of `answer` to `prompt`."""
        return (tokens_of(prompt.text) + answer.tokens) * self.price / 1e6


class Ladder(msgspec.Struct, frozen=True, dict=True):
    """Tiers and prompts; prompts differ in their text."""

    name: str
    tiers: tuple[TierTerms, ...]
    prompts: tuple[Prompt, ...]

    @cached_property
    def costs(self) -> Float:
        """US dollars [prompts, tiers]."""
        terms = self.tiers
        return np.array(
            [[t.cost(prompt, a) for t, a in zip(terms, prompt.answers, strict=True)] for prompt in self.prompts]
        )

    @cached_property
    def no_worse(self) -> Bool:
        """[prompts, tiers]: whether the answer is no worse than the strongest tier's."""
        return np.array([[prompt.no_worse(k) for k in range(1, len(self.tiers) + 1)] for prompt in self.prompts])

    @cached_property
    def marks(self) -> Float:
        """[prompts, tiers]."""
        return np.array([[answer.mark for answer in prompt.answers] for prompt in self.prompts])

    def of(self, prompts: Sequence[Prompt]) -> "Ladder":
        """The same tiers with these prompts."""
        return Ladder(self.name, self.tiers, tuple(prompts))

    def degraded(self, tier: int, share: float) -> "Ladder":
        """With a poor answer of `tier` to a `share` of the prompts, always the same ones."""
        return self.of([_degraded(prompt, tier, share) for prompt in self.prompts])


def declared_tiers(models: Sequence[str]) -> tuple[TierTerms, ...]:
    """Four models, cheapest first, at the declared prices and speeds. Raises `ValueError` for another number."""
    return tuple(
        TierTerms(*terms) for terms in zip(models, PRICES, FIRST_TOKEN_SECONDS, TOKENS_PER_SECOND, strict=True)
    )


def tokens_of(text: str) -> int:
    """Four bytes count as a token, as the gateway estimates where a server says nothing."""
    return max(1, -(-len(text.encode()) // BYTES_PER_TOKEN))


def uniform(*parts: object) -> float:
    """A number in [0, 1) that depends on `parts` alone."""
    digest = hashlib.blake2b("\n".join(map(str, parts)).encode(), digest_size=8)
    return int.from_bytes(digest.digest(), "big") / 2**64


_TEXT = (
    "the answer goes on in the manner of this model and covers what was asked in some detail before it comes to an "
    "end with a short summary of what was said"
)
_FILLER = _TEXT.split()


def made_answer(model: str, prompt_id: str, good: bool, tokens: int) -> Answer:
    """A text made to carry an outcome, of about that many tokens and no digits; it says itself that it is made."""
    said = "a good answer" if good else "a poor answer"
    name = "".join(chr(ord("a") + int(c)) if c.isdigit() else c for c in f"{model} {prompt_id}")
    text = [f"Recorded outcome: {said}. ({name})"]
    length = len(text[0])
    # Longer than what a judge compares to the letter.
    while length < tokens * BYTES_PER_TOKEN or len(text) < 50:
        text.append(_FILLER[len(text) % len(_FILLER)])
        length += len(text[-1]) + 1
    return Answer(" ".join(text), GOOD if good else POOR)


def _degraded(prompt: Prompt, tier: int, share: float) -> Prompt:
    if uniform("degraded", prompt.prompt_id, tier) >= share:
        return prompt
    before = prompt.answers[tier - 1]
    poor = Answer(f"[worse than before] {before.text[: len(before.text) // 2]}", min(before.mark, 1.0))
    answers = (*prompt.answers[: tier - 1], poor, *prompt.answers[tier:])
    return msgspec.structs.replace(prompt, answers=answers)
