"""Classes by a fine-tuned encoder next to the n-gram model's, on the same prompts.

The encoder gets three outputs, P(class <= k), and learns in two stages: the n-gram model's classes and recorded
outcomes of unrated prompts (left out without a file of them), then rated prompts. It never saw the prompts that it
classifies.
"""

import copy
import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import click
import msgspec
import numpy as np
import numpy.typing as npt

from classifier.complexity.model import CUTS, class_probabilities, shipped_complexity
from classifier.encoders.pooled_transformer import PooledTransformer
from classifier.errors import CheckpointError, TrainingDataError
from classifier.features.routing_input import routing_input_of_text
from classifier.registry.artefact import default_artefact, load_artefact
from classifier.training.fitting.complexity import predicted
from classifier.training.metrics.complexity_report import Tier, first_day_tiers
from classifier.training.recipes.fine_tune import FineTuneSettings, LabelledTexts, fine_tune
from gateway.operations.cli.options import FILE, FOLDER

Float = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

LANGUAGES = "other_language"
RESAMPLES = 4000
VALID = 10  # one of so many rows of a training set decides when training stops
FIRST_STAGE, SECOND_STAGE = FineTuneSettings(learning_rate=1e-4, epochs=3), FineTuneSettings(epochs=5)


class Prompt(msgspec.Struct, frozen=True):
    """An unrated prompt with scores, 0 to 1, of models that answered it."""

    prompt: str
    outcomes: dict[str, float] = {}


class Rated(msgspec.Struct, frozen=True):
    """A prompt with the classes of its raters, `tier` and perhaps `second`, the cheapest and the strongest tier that
    they accept (`tier` without them), and what makes it misleading. Rows of one `group` share a fold."""

    prompt: str
    tier: Tier
    second: Tier | None = None
    lo: Tier | None = None
    hi: Tier | None = None
    trap: str | None = None
    group: str | None = None


Row = TypeVar("Row", Prompt, Rated)


class Line(msgspec.Struct, frozen=True):
    """Scores of one model: macro-F1 of the likeliest class against `tier`; the share of prompts whose tier is within
    the accepted range, of all, of those in other languages and of misleading ones (NaN without any); the mean log loss
    in nats; 95% intervals of the first two less the n-gram model's, over resampled prompts."""

    model: str
    macro_f1: float
    within: float
    languages: float
    traps: float
    log_loss: float
    f1_gain: tuple[float, float]
    within_gain: tuple[float, float]


def read_rows(path: Path, form: type[Row]) -> list[Row]:
    """Return the rows of a file of JSON lines, gzipped or not. Raises `TrainingDataError` naming the line."""
    lines = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    found = []
    for number, line in enumerate(lines.splitlines(), start=1):
        try:
            found.append(msgspec.json.decode(line, type=form))
        except msgspec.MsgspecError as error:
            raise TrainingDataError(f"{path}, line {number}: {error}") from error
    return found


class FineTunedClasses:
    """Cumulative logits by fine-tuned copies of one checkpoint; every training begins with the same parameters."""

    def __init__(self, transformer: PooledTransformer) -> None:
        self._transformer = transformer
        self._start = copy.deepcopy(transformer.model.state_dict())

    def begin_with(self, rows: Sequence[Prompt], classes: Float) -> None:
        """Train on P(class) `classes` [n, 4] and on the outcomes, one output a model; later trainings begin there."""
        models = sorted({model for row in rows for model in row.outcomes})
        outcomes = [[row.outcomes.get(model, np.nan) for model in models] for row in rows]
        self._train(rows, np.hstack([_below(classes), np.array(outcomes, np.float32)]), FIRST_STAGE, ())
        self._start = copy.deepcopy(self._transformer.model.state_dict())

    def logits(self, known: Sequence[Rated], unseen: Sequence[Rated], seed: int) -> Float:
        """Return the logits of P(class <= k) [n, 3] of `unseen` by an encoder trained on `known`."""
        self._transformer.model.load_state_dict(self._start)
        raters = np.array([(row.tier, row.second or row.tier) for row in known])
        labels = (raters[:, :, None] <= np.arange(1, CUTS + 1)).mean(axis=1, dtype=np.float32)
        return self._train(known, labels, msgspec.structs.replace(SECOND_STAGE, seed=seed), unseen)

    def out_of_fold(self, rows: Sequence[Rated], others: Sequence[Rated], folds: int, seed: int) -> Float:
        """Return logits [n, 3] of `rows` by encoders trained on the other folds of `rows` and `others`."""
        every = [*rows, *others]
        groups: dict[str, int] = {}
        group = [groups.setdefault(row.group or row.prompt, len(groups)) for row in every]
        fold = np.random.default_rng(seed).permutation(len(groups))[group] % folds
        found = np.zeros((len(rows), CUTS), np.float32)
        for k in range(folds):
            out = np.flatnonzero(fold[: len(rows)] == k).tolist()
            known = [row for row, one in zip(every, fold, strict=True) if one != k]
            if out:
                found[out] = self.logits(known, [rows[i] for i in out], seed)
        return found

    def _train(
        self, rows: Sequence[Prompt | Rated], labels: Float, settings: FineTuneSettings, unseen: Sequence[Rated]
    ) -> Float:
        turns, order = _turns(rows), np.random.default_rng(settings.seed).permutation(len(rows))
        valid, train = (
            LabelledTexts([turns[i] for i in part], labels[part], np.ones(len(part), np.float32))
            for part in (order[::VALID], np.delete(order, np.s_[::VALID]))
        )
        tuned = fine_tune(self._transformer, train, valid, settings)
        logits: Float = self._transformer.encode(_turns(unseen)) @ tuned.head_weight + tuned.head_bias
        return logits[:, :CUTS]


def ngram_classes(rows: Sequence[Prompt | Rated]) -> Float:
    """Return P(class) [n, 4] of the packaged n-gram model."""
    model, outcome_model = shipped_complexity(), load_artefact(default_artefact())
    prompts = [routing_input_of_text(row.prompt) for row in rows]
    return np.concatenate(
        [predicted(model, prompts[at : at + 1000], outcome_model) for at in range(0, len(rows), 1000)]
    )


def classes_of(logits: Float) -> Float:
    """Return P(class) [n, 4] of cumulative logits [n, 3]."""
    return np.array([class_probabilities(row) for row in logits.tolist()], np.float32)


def mean_of(*classes: Float) -> Float:
    """Return P(class) [n, 4] by the mean of the models' cumulative logits."""
    below = [_below(one).clip(1e-3, 1 - 1e-3) for one in classes]
    return classes_of(np.mean([np.log(one / (1 - one)) for one in below], axis=0))


def scored(name: str, rows: Sequence[Rated], classes: Float, base: Float) -> Line:
    """Return the scores of P(class) `classes` [n, 4]; `base` is the n-gram model's."""
    truth, n = np.array([row.tier for row in rows]), len(rows)
    least, most = np.array([(row.lo or row.tier, row.hi or row.tier) for row in rows]).T
    within, base_within = ((least <= (tier := first_day_tiers(one))) & (tier <= most) for one in (classes, base))
    kinds = np.array([row.trap or "" for row in rows])
    counts = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), RESAMPLES)
    f1, base_f1 = (_macro_f1s(truth, one, counts) for one in (classes, base))
    return Line(
        model=name,
        macro_f1=float(_macro_f1s(truth, classes, np.ones((1, n), np.int64))[0]),
        within=float(within.mean()),
        languages=_share(within[kinds == LANGUAGES]),
        traps=_share(within[(kinds != "") & (kinds != LANGUAGES)]),
        log_loss=float(-np.log(classes[np.arange(n), truth - 1]).mean()),
        f1_gain=_interval(f1 - base_f1),
        within_gain=_interval(counts @ (within * 1.0 - base_within) / n),
    )


def _macro_f1s(truth: npt.NDArray[np.int64], classes: Float, counts: npt.NDArray[np.int64]) -> Doubles:
    """Return the macro-F1 [draws] of samples that hold each prompt `counts` [draws, n] times."""
    true, found = (one[:, None] == np.arange(1, CUTS + 2) for one in (truth, 1 + classes.argmax(axis=1)))
    mean: Doubles = (2 * (counts @ (true & found)) / np.maximum(counts @ (true + 1 * found), 1)).mean(axis=1)
    return mean


def _interval(gains: Doubles) -> tuple[float, float]:
    low, high = np.quantile(gains, (0.025, 0.975))
    return float(low), float(high)


def _below(classes: Float) -> Float:
    below: Float = np.cumsum(classes, axis=1)[:, :CUTS].clip(0, 1)
    return below


def _share(hits: npt.NDArray[np.bool_]) -> float:
    return float(hits.mean()) if len(hits) else float("nan")


def _turns(rows: Sequence[Prompt | Rated]) -> list[str]:
    """Return the texts as serving cuts them."""
    return [routing_input_of_text(row.prompt).turn for row in rows]


_TITLES = ("macro-F1", "within", "languages", "traps", "log loss", "less F1", "less within")


@click.command()
@click.argument("folder", type=FOLDER)
@click.argument("rows", type=FILE)
@click.option("--train", "train_file", type=FILE, help="Other rated prompts: then ROWS are unseen as a whole, too.")
@click.option("--unrated", "unrated_file", type=FILE, help='Prompts of a first stage, perhaps with "outcomes".')
@click.option("--folds", type=click.IntRange(min=2), default=5, help="Of ROWS.")
@click.option("--seeds", type=click.IntRange(min=1), default=3, help="Trainings, whose mean counts.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu")
def encoder_command(
    folder: Path, rows: Path, train_file: Path | None, unrated_file: Path | None, folds: int, seeds: int, device: str
) -> None:
    """Fine-tune the checkpoint in FOLDER on rated prompts, and compare its classes of ROWS (JSON lines with "prompt"
    and "tier"; perhaps "second", "lo", "hi", "trap", "group") with the packaged n-gram model's."""
    try:
        examples, others = read_rows(rows, Rated), [] if train_file is None else read_rows(train_file, Rated)
        transformer = PooledTransformer.load(folder)
        transformer.model.to(device)
        model = FineTunedClasses(transformer)
        if unrated_file is not None:
            unrated = read_rows(unrated_file, Prompt)
            model.begin_with(unrated, ngram_classes(unrated))
        found = {f"{folds} folds": [model.out_of_fold(examples, others, folds, seed) for seed in range(seeds)]}
        if others:
            found["unseen"] = [model.logits(others, examples, seed) for seed in range(seeds)]
    except (CheckpointError, TrainingDataError) as error:
        raise click.ClickException(str(error)) from error
    base = ngram_classes(examples)
    lines = [scored("n-gram model", examples, base, base)]
    for how, logits in sorted(found.items(), reverse=True):
        classes = classes_of(np.mean(logits, axis=0))
        lines += [scored(f"encoder, {how}", examples, classes, base)]
        lines += [scored(f"mean of both, {how}", examples, mean_of(classes, base), base)]
    click.echo(f"{len(examples)} prompts, {len(others)} others to train on; less: than the n-gram model's, 95%")
    click.echo(f"{'':<24}" + "".join(f"{title:>17}" for title in _TITLES))
    for line in lines:
        shares = (line.macro_f1, line.within, line.languages, line.traps, line.log_loss)
        gains = (f"{low:+.3f}, {high:+.3f}" for low, high in (line.f1_gain, line.within_gain))
        click.echo(f"{line.model:<24}" + "".join(f"{cell:>17}" for cell in (*(f"{one:.3f}" for one in shares), *gains)))
