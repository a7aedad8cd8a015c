"""Train the model of follow-ups on turns that we wrote, and perhaps on more dialogues, and measure it.

The turns lie in `classifier/training/prompts`, which a wheel does not have.
"""

import random
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from classifier.errors import TrainingDataError
from classifier.features.follow_up import is_closing
from classifier.features.follow_up_model import ROWS, FollowUpModel, rows_of, signs
from classifier.training.fitting.logistic import fit_logistic
from inference_core.io.json_lines import json_lines

PROMPTS = Path(__file__).parents[1] / "prompts"
TURNS, DIALOGUES = "follow_up.toml", "follow_up_dialogues.txt"
# By five-fold cross-validation over turns.
C = 1.0
FOLDS = 5
# A turn of the lists is read after so many of the contexts, one of a template is drawn so often.
CONTEXTS, DRAWS = 3, 6
# The weight of all copies of a turn that stands for itself, of one that needs others, and of each draw of a template.
ALONE_WEIGHT, NEEDS_WEIGHT, DRAW_WEIGHT = 2.0, 1.0, 0.35
# How often the context is in the turn's own language.
SAME_LANGUAGE = 0.7
EDGES = (0.0, 0.05, 0.2, 0.5, 0.8, 0.95, 1.0)

Float = npt.NDArray[np.float64]


class Example(NamedTuple):
    """A turn after the user's turn `before` and its `answer`."""

    turn: str
    before: str
    answer: str
    needs: bool
    """Whether the turn needs them."""
    weight: float = 1.0


class _Turn(msgspec.Struct):
    role: str
    content: str


class _Dialogue(msgspec.Struct):
    turns: list[_Turn]
    follow_up: bool
    weight: float = 1.0


class Bin(msgspec.Struct, frozen=True):
    """Turns with P in [`least`, `most`): their number, mean P, and the share that needs earlier ones."""

    least: float
    most: float
    turns: int
    mean: float
    needs: float


class FollowUpReport(msgspec.Struct, frozen=True, kw_only=True):
    """How well follow-ups are recognised."""

    rows: int
    right: float
    """Share of turns with P on the right side of one half."""
    brier: float
    """Mean squared error of P."""
    constant: float
    """Mean squared error of the turns' own share."""
    calibration: float
    """The mean distance of P from the share that needs earlier turns, over bins."""
    both: float
    """Share of turns that are read both ways."""
    bins: list[Bin]

    def lines(self) -> list[list[str]]:
        """Return table rows: a measure and its figure."""
        named = ("right", "brier", "constant", "calibration", "both")
        figures = [[name, f"{getattr(self, name):.3f}"] for name in named]
        bins = [
            [f"P {interval.least:.2f} to {interval.most:.2f}", f"{interval.needs:.2f} of {interval.turns}"]
            for interval in self.bins
        ]
        return [*figures, *bins, ["rows", str(self.rows)]]


def read_dialogues(path: Path) -> list[Example]:
    """Return the last turns of a file of dialogues, JSON lines. Raises `TrainingDataError` naming the line."""
    examples = []
    for where, row in json_lines(path, _Dialogue, TrainingDataError):
        asked = [at for at, turn in enumerate(row.turns) if turn.role == "user"]
        if len(asked) < 2 or asked[-1] != len(row.turns) - 1:
            raise TrainingDataError(f"{where}: a dialogue has two turns of the user or more, of which one is its last.")
        answers = [turn.content for turn in row.turns[asked[-2] : asked[-1]] if turn.role == "assistant"]
        answer = answers[-1] if answers else ""
        before, turn = row.turns[asked[-2]].content, row.turns[-1].content
        examples.append(Example(turn, before, answer, row.follow_up, row.weight))
    return examples


def own_examples(seed: int = 0, folder: Path = PROMPTS) -> list[Example]:
    """Return the turns that we wrote, each after contexts drawn by `seed`. Raises `TrainingDataError` where the files
    are missing."""
    try:
        written = tomllib.loads((folder / TURNS).read_text("utf-8"))
        dialogues = (folder / DIALOGUES).read_text("utf-8")
    except OSError as error:
        raise TrainingDataError(f"{error}. Train in a checkout: a wheel has no training prompts.") from error
    draw = random.Random(seed)
    contexts = {language: [_parts(line, 2) for line in _lines(text)] for language, text in written["before"].items()}
    examples: list[Example] = []
    for kind, needs, weight in (
        ("new", False, ALONE_WEIGHT), ("closing", False, ALONE_WEIGHT), ("needs", True, NEEDS_WEIGHT)
    ):  # fmt: skip
        for language, text in written[kind].items():
            for turn in _lines(text):
                examples += _after_contexts([turn] * CONTEXTS, contexts, language, draw, needs, weight / CONTEXTS)
    for kind, needs in (("new_templates", False), ("needs_templates", True)):
        for language, text in written[kind].items():
            words = {**written["words"]["en"], **written["words"]["all"], **written["words"].get(language, {})}
            for template in _lines(text):
                turns = [_filled(template, words, draw) for _ in range(DRAWS)]
                examples += _after_contexts(turns, contexts, language, draw, needs, DRAW_WEIGHT)
    for kind, needs in (("replies", True), ("same_topic", False)):
        for text in written[kind].values():
            for before, answer, turn in (_parts(line, 3) for line in _lines(text)):
                examples.append(Example(turn, before, answer, needs))
    return [*examples, *_of_blocks(dialogues)]


def _lines(text: str) -> list[str]:
    return [line for line in text.strip().splitlines() if line.strip()]


def _parts(line: str, count: int) -> list[str]:
    parts = line.split(" => ")
    if len(parts) != count:
        raise TrainingDataError(f"{TURNS}: {line!r} has {len(parts)} parts, not {count}.")
    return parts


def _after_contexts(
    turns: Sequence[str],
    contexts: Mapping[str, Sequence[Sequence[str]]],
    language: str,
    draw: random.Random,
    needs: bool,
    weight: float,
) -> Iterator[Example]:
    everywhere = [context for own in contexts.values() for context in own]
    for turn in turns:
        before, answer = draw.choice(contexts[language] if draw.random() < SAME_LANGUAGE else everywhere)
        yield Example(turn, before, answer, needs, weight)


def _filled(template: str, words: Mapping[str, str], draw: random.Random) -> str:
    return re.sub(r"\{(\w+)\}", lambda name: draw.choice(words[name[1]].split(" | ")), template)


def _of_blocks(text: str) -> Iterator[Example]:
    """Yield the dialogues of a text of blocks: "# language", the user's ("U| ") and the assistant's ("A| ") turns, then
    last turns that need these ("T.kind| ") or do not ("F.kind| ")."""
    before = answer = ""
    for line in _lines(text):
        kind, _, said = line.partition("| ")
        said = said.strip().replace("\\n", "\n").replace("\\t", "\t")
        if line.startswith("# "):
            before = answer = ""
        elif kind == "U":
            before, answer = said, ""
        elif kind == "A":
            answer = said
        elif kind[:2] in ("T.", "F."):
            yield Example(said, before, answer, kind[0] == "T")
        else:
            raise TrainingDataError(f"{DIALOGUES}: {line!r} begins with no kind of line.")


def fit_follow_up(examples: Sequence[Example]) -> FollowUpModel:
    """Fit the model; deterministic."""
    return _fit(_design(examples), examples)


def out_of_fold(examples: Sequence[Example], seed: int = 0) -> Float:
    """Return P [n] of each example by a model trained without any that has the same turn."""
    turns = sorted({_plain(example.turn) for example in examples})
    numbers = np.random.default_rng(seed).permutation(len(turns)) % FOLDS
    of_turn = dict(zip(turns, numbers.tolist(), strict=True))
    fold, x, unseen = (
        np.array([of_turn[_plain(example.turn)] for example in examples]),
        _design(examples),
        np.zeros(len(examples)),
    )
    for k in range(FOLDS):
        model = _fit(x[fold != k], [example for example, own in zip(examples, fold, strict=True) if own != k])
        logits = x[fold == k] @ model.weights.astype(np.float64) + model.bias
        unseen[fold == k] = 1.0 / (1.0 + np.exp(-logits))
    return unseen


def predicted(model: FollowUpModel, examples: Sequence[Example]) -> Float:
    """Return P [n] of each example."""
    return np.array(
        [model.p(example.turn, example.before, example.answer, closes=is_closing(example.turn)) for example in examples]
    )


def measured(examples: Sequence[Example], p: Float) -> FollowUpReport:
    """Return the report for P `p` [n] of `examples`."""
    needs = np.array([example.needs for example in examples], np.float64)
    bins = []
    for least, most in pairwise(EDGES):
        of_bin = (p >= least) & ((p < most) | (most == EDGES[-1]))
        if of_bin.any():
            bins.append(Bin(least, most, int(of_bin.sum()), float(p[of_bin].mean()), float(needs[of_bin].mean())))
    return FollowUpReport(
        rows=len(examples),
        right=float(np.mean((p >= 0.5) == needs)),
        brier=float(np.mean((p - needs) ** 2)),
        constant=float(np.mean((needs.mean() - needs) ** 2)),
        calibration=sum(interval.turns * abs(interval.mean - interval.needs) for interval in bins) / len(examples),
        both=float(np.mean((p >= EDGES[1]) & (p <= EDGES[-2]))),
        bins=bins,
    )


def _plain(turn: str) -> str:
    return turn.lower().strip(" ?.!")


def _design(examples: Sequence[Example]) -> sp.csr_matrix:
    rows = [
        rows_of(signs(example.turn, example.before, example.answer, closes=is_closing(example.turn)))
        for example in examples
    ]
    ends = np.cumsum([0, *map(len, rows)])
    columns = np.array([row for own in rows for row in own], np.intp)
    return sp.csr_matrix((np.ones(len(columns)), columns, ends), shape=(len(rows), ROWS))


def _fit(x: sp.csr_matrix, examples: Sequence[Example]) -> FollowUpModel:
    needs = np.array([example.needs for example in examples], np.float64)
    weights, bias = fit_logistic(x, needs, np.array([example.weight for example in examples]), c=C)
    return FollowUpModel(weights.astype(np.float32), bias)
