"""What routing between two recorded models is worth to a customer after N labels of its own.

A customer is a domain or a group of the file. U = mean(s - r if up else w) - max(mean w, mean(s - r)), in points of
100, on the rows that are not of the split `train`; w and s say whether the weak and the strong model's answer is good,
r is the price difference in units of quality. Labels are drawn from the customer's rows of `train`; some hundred labels
of every other customer are known from the start.
"""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.replay.figures import Figure
from benchmarks.report.measurement import packed_rows
from classifier.class_predictor import ClassPredictor
from classifier.complexity.classes import Complexity, adequacies
from classifier.complexity.model import shipped_complexity, standardised
from classifier.features.routing_input import routing_input_of_text
from classifier.local.cells import Labels
from classifier.local.estimator import LocalEstimator
from classifier.model.outcome_model import encode_turns
from classifier.registry.artefact import default_artefact, load_artefact

Float = npt.NDArray[np.float32]

RESAMPLES = 2000
# Numbers of own labels at which the utility is measured.
COUNTS = (0, 10, 20, 30, 50, 100, 300)
# What is known of the two models by class on the first day.
PRIOR = adequacies((Complexity.MEDIUM, Complexity.COMPLEX))[:, :-1]
# Of every other customer so many labels are known.
OTHERS = 300
# Ways to route that depend on the number of labels.
ROUTED = ("aio", "shuffled", "own rate")
# Mean squared error of the estimate less that of the customer's own rate, times 100: below 0 is better than the rate.
ERROR = "error - rate's"
# A customer's loss against its better constant that counts as none, in points.
WITHIN = 1.0
# Labels of the base rate that a customer's own rate begins with.
_RATE_N0 = 20.0


class Row(NamedTuple):
    """A prompt with both models' outcomes, good or not."""

    prompt: str
    weak: bool
    strong: bool
    train: bool


class Outcome(NamedTuple):
    """One line of the table: a way to route, after so many labels; points with their interval."""

    way: str
    labels: int
    points: Figure


def read_customers(path: Path, weak: str, strong: str, by: str, least: int) -> dict[str, list[Row]]:
    """Customers with at least `least` rows on which both models' outcomes are known. `by`: "domain", or "group" without
    its level. Raises `ValueError` if there is none."""
    customers: dict[str, list[Row]] = defaultdict(list)
    for row in packed_rows(path):
        outcomes = {name.lower(): outcome for name, outcome in row["outcomes"].items()}
        name = row["domain"] if by == "domain" else row["group"]
        if name is None or weak.lower() not in outcomes or strong.lower() not in outcomes:
            continue
        good = {model: outcomes[model.lower()] >= 0.5 for model in (weak, strong)}
        whose = name if by == "domain" else name.removesuffix("-easy").removesuffix("-hard")
        customers[whose].append(Row(row["prompt"], good[weak], good[strong], row["split"] == "train"))
    kept = {name: rows for name, rows in sorted(customers.items()) if len(rows) >= least}
    if not kept:
        raise ValueError(f"{path}: no {by} has {least} rows with outcomes of both {weak} and {strong}")
    return kept


class Encoded(NamedTuple):
    """All customers' rows; the labels' `key` numbers the customers, `train` [n] is the rows' split."""

    labels: Labels
    weak: Float
    strong: Float
    train: npt.NDArray[np.bool_]


def table(
    customers: dict[str, list[Row]],
    rate: float,
    counts: Sequence[int],
    draws: int,
    seed: int = 0,
) -> list[Outcome]:
    """The utility of each way to route after each of `counts` labels, mean over customers and `draws` of the labels;
    intervals are bootstrapped over customers, then over their draws."""
    rows, rng = encoded(customers), np.random.default_rng(seed)
    points: dict[tuple[str, int], list[list[float]]] = defaultdict(list)
    for customer in range(len(customers)):
        own = rows.labels.key == customer
        asked, pool = np.flatnonzero(own & ~rows.train), np.flatnonzero(own & rows.train)
        others = _others(rows, customer, rng)
        for way, up in _fixed(rows, asked, rate).items():
            points[way, 0].append([utility_of(rows, asked, up, rate)])
        for count in counts:
            if count > len(pool):
                continue
            drawn = [
                _ways(rows, asked, others, rng.choice(pool, count, replace=False), rate, rng) for _ in range(draws)
            ]
            for way in drawn[0]:
                points[way, count].append([by_way[way] for by_way in drawn])
    return [Outcome(way, count, _interval(utilities, rng)) for (way, count), utilities in points.items()]


def labels_until_within(outcomes: Sequence[Outcome], way: str) -> int | None:
    """The least number of labels from which on `way` is never more than `WITHIN` points below the better constant, of
    the numbers in `outcomes`; None if there is none."""
    least = None
    for outcome in sorted((outcome for outcome in outcomes if outcome.way == way), key=lambda outcome: -outcome.labels):
        if outcome.points.value < -WITHIN:
            break
        least = outcome.labels
    return least


def encoded(customers: dict[str, list[Row]]) -> Encoded:
    """Encode all customers' prompts as the shipped version does."""
    model, classes = load_artefact(default_artefact()), shipped_complexity()
    everything = [row for rows in customers.values() for row in rows]
    inputs = [routing_input_of_text(row.prompt) for row in everything]
    turns, cold = encode_turns(model.encoder, inputs), ClassPredictor(model)
    read = list(zip(inputs, turns, strict=True))
    requests = [cold.classes(*pair) for pair in read]
    whole = [cold.whole_classes(*pair) or request for pair, request in zip(read, requests, strict=True)]
    weak, strong = (np.array([row[i] for row in everything], np.float32) for i in (1, 2))
    n, train = len(everything), np.array([row.train for row in everything], np.bool_)
    whose = np.repeat(np.arange(len(customers), dtype=np.int32), [len(rows) for rows in customers.values()])
    labels = Labels(
        classes=np.array(requests, np.float32),
        whole=np.array(whole, np.float32),
        embedding=np.stack([turn.embedding for turn in turns]),
        surface=standardised(np.stack([turn.features for turn in turns]), classes.centre, classes.scale),
        # Above 1 where the weak model alone is right, so that what is expected of it is 1 less the expected gain.
        scores=(1 - (strong - weak))[:, None],
        weights=np.ones((n, 1), np.float32),
        key=whose,
        context=np.full(n, -1, np.int32),
        tenant=whose,
        private=np.zeros(n, np.bool_),
    )
    return Encoded(labels, weak, strong, train)


def _others(rows: Encoded, customer: int, rng: np.random.Generator) -> npt.NDArray[np.intp]:
    numbers = [other for other in np.unique(rows.labels.key) if other != customer]
    chosen = [rng.permutation(np.flatnonzero(rows.labels.key == other))[:OTHERS] for other in numbers]
    return np.concatenate([np.zeros(0, np.intp), *chosen])


def _fixed(rows: Encoded, asked: npt.NDArray[np.intp], rate: float) -> dict[str, npt.NDArray[np.bool_]]:
    gain = rows.strong[asked] - rows.weak[asked]
    return {
        "always weak": np.zeros(len(asked), np.bool_),
        "always strong": np.ones(len(asked), np.bool_),
        "oracle": gain > rate,
    }


def _ways(
    rows: Encoded,
    asked: npt.NDArray[np.intp],
    others: npt.NDArray[np.intp],
    own: npt.NDArray[np.intp],
    rate: float,
    rng: np.random.Generator,
) -> dict[str, float]:
    """The utility of sending up by the product's estimate, by the same choices shuffled, and by the customer's own
    rate; and the estimate's error."""
    labels, learned = rows.labels, np.concatenate([others, own])
    asked_of = labels.take(asked)
    customer = int(labels.key[asked[0]])
    if len(learned):
        estimator = LocalEstimator(labels.take(learned), PRIOR, keys={customer})
        score = estimator.score(
            asked_of.classes, asked_of.embedding, asked_of.surface, customer, -1, customer, asked_of.whole
        )
    else:
        score = asked_of.classes @ PRIOR
    up = score[:, 0] < 1 - rate
    gain = rows.strong - rows.weak
    base = float(gain[others].mean()) if len(others) else rate
    mean = (float(gain[own].sum()) + _RATE_N0 * base) / (len(own) + _RATE_N0)
    ways = {"aio": up, "shuffled": rng.permutation(up), "own rate": np.full(len(asked), mean > rate)}
    errors = [np.square(asked_of.scores[:, 0] - expected).mean() for expected in (score[:, 0], 1 - mean)]
    utilities = {way: utility_of(rows, asked, chosen, rate) for way, chosen in ways.items()}
    return utilities | {ERROR: 100 * float(errors[0] - errors[1])}


def utility_of(rows: Encoded, asked: npt.NDArray[np.intp], up: npt.NDArray[np.bool_], rate: float) -> float:
    """Points of 100 above the better of the two models."""
    weak, strong = rows.weak[asked], rows.strong[asked] - rate
    return 100 * float(np.where(up, strong, weak).mean() - max(weak.mean(), strong.mean()))


def _interval(points: list[list[float]], rng: np.random.Generator) -> Figure:
    """Of the mean over customers of the mean over their draws."""
    means = np.array([
        np.mean([rng.choice(points[customer], len(points[customer])).mean() for customer in drawn])
        for drawn in rng.integers(0, len(points), (RESAMPLES, len(points)))
    ])  # fmt: skip
    low, high = np.quantile(means, (0.025, 0.975))
    return Figure(float(np.mean([np.mean(draws) for draws in points])), float(low), float(high))
