"""Several questions in one training sequence: all behind one system turn, each with answers in several modes.

A question is computed once for all of its answers. Every token sees the system turn, its question and its own answer,
so that logits are those of separate texts.

A step's batch has fresh tasks, and everyday prompts with the base's own answers. It is deterministic in recipe and
step, so that a continued training sees what an undisturbed one would, however many processes make the batches.
"""

import math
import random
from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from typing import NamedTuple

import msgspec
import torch

from benchmarks.ladder.record import LadderRecipe
from benchmarks.ladder.tasks import LEVELS, TaughtTask, families, ladder_task
from inference_core.loaders.hub_model import resolve_model_path
from inference_core.tokenization.load_tokenizer import load_tokenizer
from inference_core.tokenization.tokenizer import Tokenizer
from quality.distillation.network import AdaptedDecoder

# How the assistant's turn begins in the modes that think, and what ends the thought. A catalogue's chain of thought has
# the same texts (`opening`, `end_markers`, `answer_opening`).
BRIEF_OPENING = "In short:\n"
DETAILED_OPENING = "Step by step:\n"
ANSWER_OPENING = "Answer:"
NO_THOUGHT = "Nothing to work out."
"""The thought about everyday prompts."""
DIRECT_WEIGHT = 3.0
"""Of the loss at a direct answer's tokens, which are fewer than those of thoughts."""


class Branch(NamedTuple):
    """An answer: the tokens `given` to the model, then the `wanted` ones, whose loss counts `weight` times."""

    given: list[int]
    wanted: list[int]
    weight: float = 1.0


class Question(NamedTuple):
    """A prompt up to the start of the assistant's turn, with answers that do not see each other."""

    prompt: list[int]
    branches: list[Branch]

    @property
    def tokens(self) -> int:
        return len(self.prompt) + sum(len(b.given) + len(b.wanted) for b in self.branches)


class Layout(NamedTuple):
    """Several texts in each of B sequences of T tokens. `positions` int64 [B, T]: of each token in its own text. `seen`
    bool [B, T, T]: which tokens each one sees, itself included."""

    positions: torch.Tensor
    seen: torch.Tensor


class Batch(NamedTuple):
    """B sequences of T tokens. `rows`: where a wanted token comes next, as (sequence [N], place [N]); `targets` [N]:
    those tokens; `weights` float32 [N]."""

    token_ids: torch.Tensor
    layout: Layout
    rows: tuple[torch.Tensor, torch.Tensor]
    targets: torch.Tensor
    weights: torch.Tensor


def packed_logits(student: AdaptedDecoder, batch: Batch) -> torch.Tensor:
    """Return the logits float32 [N, vocabulary] before the wanted tokens of `batch`, as of separate texts. Raises
    `ValueError` for a model with a sliding window, which sees places and not positions."""
    if student.config.attention.sliding_window:
        raise ValueError("a model with a sliding window is trained on one text per sequence")
    device = student.embedding.device
    rows = (batch.rows[0].to(device), batch.rows[1].to(device))
    positions, seen = (part.to(device) for part in batch.layout)
    return student.logits(batch.token_ids.to(device), rows, student.cos_sin[positions].unsqueeze(1), seen.unsqueeze(1))


class Encoder:
    """Tasks and everyday prompts in a model's tokens. A model without a chat template reads a prompt as it is."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._end = list(tokenizer.eos_token_ids[:1])
        self._answer = tokenizer.encode(ANSWER_OPENING)
        self._openings = {text: tokenizer.encode(text) for text in (BRIEF_OPENING, DETAILED_OPENING)}

    def prompt(self, text: str) -> list[int]:
        """The tokens of a chat with this user's turn, up to the start of the assistant's."""
        if self._tokenizer.chat_template is None:
            return self._tokenizer.encode(text, add_special_tokens=True)
        return self._tokenizer.encode_chat([{"role": "user", "content": text}])

    def task(self, task: TaughtTask) -> Question:
        """A task with its direct answer and both thoughts."""
        answer = task.answers[0]
        direct = Branch([], [*self._tokenizer.encode_continued(answer), *self._end], DIRECT_WEIGHT)
        brief = self._thinking(BRIEF_OPENING, task.brief, answer)
        return Question(
            self.prompt(task.prompt), [direct, brief, self._thinking(DETAILED_OPENING, task.detailed, answer)]
        )

    def everyday(self, prompt: str, said: list[int], *, ended: bool, opening: str) -> Question:
        """An everyday prompt with the base model's answer `said`, direct and behind `opening` and no thought. `ended`:
        whether the answer is whole."""
        direct = Branch([], [*said, *(self._end if ended else [])])
        text = self._tokenizer.decode(said).strip()
        return Question(self.prompt(prompt), [direct, self._thinking(opening, NO_THOUGHT, text, ended=ended)])

    def _thinking(self, opening: str, thought: str, answer: str, *, ended: bool = True) -> Branch:
        wanted = [*self._tokenizer.encode(f"{thought}\n"), *self._answer, *self._tokenizer.encode(f" {answer}")]
        return Branch(self._openings[opening], [*wanted, *(self._end if ended else [])])


def packed(questions: Sequence[Question], row_tokens: int) -> Batch:
    """Lay `questions` out in sequences of about `row_tokens` tokens and of similar lengths, each behind the tokens with
    which all prompts begin."""
    shared = _common_start([question.prompt for question in questions])
    total = sum(question.tokens - shared for question in questions)
    count = min(math.ceil(total / max(row_tokens - shared, 1)), len(questions))
    rows: list[list[Question]] = [[] for _ in range(count)]
    used = [0] * count
    # Longest first, each into the emptiest row (Graham 1969).
    for question in sorted(questions, key=lambda question: -question.tokens):
        row = used.index(min(used))
        rows[row].append(question)
        used[row] += question.tokens - shared
    return _laid_out(rows, shared)


def _laid_out(rows: Sequence[Sequence[Question]], shared: int) -> Batch:
    length = max(shared + sum(question.tokens - shared for question in row) for row in rows)
    token_ids = torch.zeros(len(rows), length, dtype=torch.int64)
    positions = torch.zeros(len(rows), length, dtype=torch.int64)
    seen = torch.zeros(len(rows), length, length, dtype=torch.bool)
    places: list[tuple[int, int]] = []
    targets: list[int] = []
    weights: list[float] = []
    earlier = torch.ones(length, length, dtype=torch.bool).tril()
    for number, row in enumerate(rows):
        tokens, at = list(row[0].prompt[:shared]), list(range(shared))
        seen[number, :, :shared] = True
        for question in row:
            first = len(tokens)
            tokens += question.prompt[shared:]
            at += range(shared, len(question.prompt))
            behind = len(tokens)
            seen[number, first:behind, first:behind] = True
            for branch in question.branches:
                start = len(tokens)
                tokens += [*branch.given, *branch.wanted]
                at += range(len(question.prompt), len(question.prompt) + len(tokens) - start)
                seen[number, start : len(tokens), first:behind] = True
                seen[number, start : len(tokens), start : len(tokens)] = True
                # The token before the first wanted one is the last given one, or else the prompt's last.
                before = start + len(branch.given) - 1 if branch.given else behind - 1
                places += [
                    (number, before),
                    *((number, start + len(branch.given) + i) for i in range(len(branch.wanted) - 1)),
                ]
                targets += branch.wanted
                weights += [branch.weight] * len(branch.wanted)
        token_ids[number, : len(tokens)] = torch.tensor(tokens)
        positions[number, : len(at)] = torch.tensor(at)
    seen &= earlier
    # Tokens that fill a sequence up see themselves alone: a softmax over nothing is no number.
    seen |= torch.eye(length, dtype=torch.bool)
    sequence_of, token_index = (torch.tensor(part) for part in zip(*places, strict=True))
    return Batch(
        token_ids, Layout(positions, seen), (sequence_of, token_index), torch.tensor(targets), torch.tensor(weights)
    )


def _common_start(prompts: Sequence[list[int]]) -> int:
    """How many tokens all `prompts` begin with; less than the shortest one."""
    shortest = min(map(len, prompts)) - 1
    for index in range(shortest):
        if len({prompt[index] for prompt in prompts}) > 1:
            return index
    return shortest


class Everyday(msgspec.Struct, frozen=True):
    """A prompt with the base model's greedy answer."""

    prompt: str
    answer: list[int]


class Source(NamedTuple):
    """Where steps' questions come from. `base`: the path of the model in whose tokens they are."""

    base: str
    everyday: Sequence[Everyday]
    recipe: LadderRecipe


class Made(NamedTuple):
    """A step's `batch`, and how many tokens its questions have."""

    batch: Batch
    tokens: int


def batches(source: Source, first: int, processes: int) -> Generator[Made]:
    """The batch of each step from `first` on; made ahead by `processes`, or when asked for if there are none."""
    steps = range(first, source.recipe.steps)
    if not processes:
        yield from (made_batch(source, step) for step in steps)
        return
    with ProcessPoolExecutor(processes, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        ahead = deque(pool.submit(made_batch, source, step) for step in steps[: 2 * processes])
        for step in steps[2 * processes :]:
            made = ahead.popleft().result()
            ahead.append(pool.submit(made_batch, source, step))
            yield made
        yield from (future.result() for future in ahead)


def made_batch(source: Source, step: int) -> Made:
    """The batch of a step: everyday prompts for the recipe's share of the tokens, and tasks."""
    questions = step_questions(source, step)
    return Made(packed(questions, source.recipe.row_tokens), sum(question.tokens for question in questions))


def step_questions(source: Source, step: int) -> list[Question]:
    """The questions of a step, of the recipe's tokens in all."""
    recipe, encoder = source.recipe, _encoder(source.base)
    rng = random.Random(f"{recipe.seed}/{step}")
    questions: list[Question] = []
    used = everyday = 0
    names = families("trained")
    while used < recipe.rows * recipe.row_tokens:
        if source.everyday and everyday < recipe.everyday_share * used:
            example = rng.choice(source.everyday)
            opening = rng.choice((BRIEF_OPENING, DETAILED_OPENING))
            ended = len(example.answer) < recipe.everyday_tokens
            question = encoder.everyday(example.prompt, example.answer, ended=ended, opening=opening)
            everyday += question.tokens
        else:
            question = encoder.task(ladder_task(rng, rng.choice(names), rng.choice(LEVELS), "trained"))
        questions.append(question)
        used += question.tokens
    return questions


@cache
def _encoder(base: str) -> Encoder:
    return Encoder(load_tokenizer(resolve_model_path(base)))
