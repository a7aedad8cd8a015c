"""What each step of the ladder's training learns from: fresh tasks, and everyday prompts with the base's own answers.

Deterministic in recipe and step, so that a continued training sees what an undisturbed one would, however many
processes make the batches.
"""

import random
from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from typing import NamedTuple

import msgspec
import torch

from inference_core.loaders.hub_model import resolve_model_path
from inference_core.tokenization.load_tokenizer import load_tokenizer
from quality.distillation.ladder.packing import BRIEF_OPENING, DETAILED_OPENING, Batch, Encoder, Question, packed
from quality.distillation.ladder.record import LadderRecipe
from quality.distillation.ladder.tasks import LEVELS, families, ladder_task


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
            one = rng.choice(source.everyday)
            opening = rng.choice((BRIEF_OPENING, DETAILED_OPENING))
            ended = len(one.answer) < recipe.everyday_tokens
            question = encoder.everyday(one.prompt, one.answer, ended=ended, opening=opening)
            everyday += question.tokens
        else:
            question = encoder.task(ladder_task(rng, rng.choice(names), rng.choice(LEVELS), "trained"))
        questions.append(question)
        used += question.tokens
    return questions


@cache
def _encoder(base: str) -> Encoder:
    return Encoder(load_tokenizer(resolve_model_path(base)))
