"""Predictions for files of prompts: the output of `aio classifier predict`, for many at once or one explained.

A file has one JSON object a line with `id` and `prompt`; errors name the line. An explanation for people has the
prompt's inputs, the effects of features, and the choice.
"""

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import islice
from multiprocessing import get_context
from pathlib import Path

import msgspec

from classifier.class_predictor import ClassPredictor, threshold_of
from classifier.decision import PolicyInputs
from classifier.encoders.static_encoder import SlowEncoder
from classifier.errors import PromptFileError
from classifier.features.routing_input import routing_input_of_text, without_router_instructions
from classifier.features.surface_features import FEATURE_NAMES
from classifier.local.cells import ClassTable
from classifier.model.outcome_model import OutcomeModel, encode_turns
from classifier.policy.decide import decide
from classifier.policy.utility import reference_prices
from classifier.registry.acceptance import accepted_artefact
from inference_core.io.json_lines import json_lines
from inference_core.native.control_groups import usable_cpus


class PromptRow(msgspec.Struct, frozen=True):
    """One prompt; other fields of its line are ignored."""

    id: str | int
    prompt: str


def read_prompts(path: Path) -> Iterator[PromptRow]:
    """Return the rows in file order without empty lines. Raises `PromptFileError` naming the file and the line."""
    hint = '. A line is an object with an "id" (text or number) and a "prompt" (text).'
    return (row for _, row in json_lines(path, PromptRow, PromptFileError, hint))


# Rows encoded in one batch, and rows per task of a process.
BATCH = 256
# Below this many rows a second process costs more to start than it saves.
WORTH_A_PROCESS = 4096


class PromptPrediction(msgspec.Struct, frozen=True):
    """One line of the output. A version that learned nothing about the catalogue assumes tiers spread evenly from a 3B
    model to a 70B one with chain of thought.
    """

    id: str | int
    p_ok: list[float]
    """P(good enough) by tier, derived from `classes`, P of the four complexity classes."""
    tier: int
    """The policy's choice at the reference prices."""
    novelty: float
    classes: list[float]


class BatchPredictor:
    """A loaded artefact and one quality target."""

    def __init__(
        self, model: OutcomeModel, quality_target: float | None = None, prior: ClassTable | None = None
    ) -> None:
        self.model, self._predictor = model, ClassPredictor(model, prior)
        self._costs = reference_prices(self._predictor.tiers).tolist()
        self._target = threshold_of(quality_target)

    def predict(self, rows: Sequence[PromptRow]) -> list[PromptPrediction]:
        predictions: list[PromptPrediction] = []
        for start in range(0, len(rows), BATCH):
            predictions += self._batch(rows[start : start + BATCH])
        return predictions

    def _batch(self, rows: Sequence[PromptRow]) -> list[PromptPrediction]:
        prompts = [routing_input_of_text(row.prompt) for row in rows]
        predictions = []
        for row, prompt, turn in zip(rows, prompts, encode_turns(self.model.encoder, prompts), strict=True):
            said = self._predictor.prediction(prompt, turn)
            inputs = PolicyInputs(
                prediction=said, costs=self._costs, quality_target=self._target, tau=self._target, objective="utility"
            )
            predictions.append(PromptPrediction(row.id, said.p_ok, decide(inputs).tier, said.novelty, said.classes))
        return predictions


def predict_lines(
    folder: Path,
    rows: Iterable[PromptRow],
    *,
    quality_target: float | None = None,
    processes: int | None = None,
    catalogue_fingerprint: str = "",
    prior: ClassTable | None = None,
) -> Iterator[tuple[int, bytes]]:
    """Return (number of rows, their lines of JSON) in the order of `rows`, by the artefact in `folder` for the
    catalogue of that fingerprint, whose tiers have the `prior`.

    `processes`: the number of worker processes, by default the machine's cores if there is enough work; memory stays
    bounded for any number of `rows`. Raises `ArtefactError`.
    """
    remaining = iter(rows)
    first = list(islice(remaining, WORTH_A_PROCESS))
    wanted = usable_cpus() if processes is None else processes
    # Check here, so that the reason is reported once and not by every process.
    model = accepted_artefact(folder, catalogue_fingerprint)
    # A slow encoder uses all cores for each batch, and much memory.
    alone = isinstance(model.encoder, SlowEncoder) or len(first) < WORTH_A_PROCESS
    if wanted == 1 or (processes is None and alone):
        predictor = BatchPredictor(model, quality_target, prior)
        for batch in _batches(first, remaining):
            yield len(batch), _lines(predictor, batch)
        return
    # One process per core: threads within matrix products would only compete.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    with ProcessPoolExecutor(
        wanted, get_context("spawn"), _start, (folder, quality_target, catalogue_fingerprint, prior)
    ) as pool:
        waiting: deque[tuple[int, Future[bytes]]] = deque()
        for batch in _batches(first, remaining):
            waiting.append((len(batch), pool.submit(_work, batch)))
            if len(waiting) > 3 * wanted:
                count, done = waiting.popleft()
                yield count, done.result()
        for count, done in waiting:
            yield count, done.result()


def _batches(first: list[PromptRow], rest: Iterator[PromptRow]) -> Iterator[list[PromptRow]]:
    for start in range(0, len(first), 2 * BATCH):
        yield first[start : start + 2 * BATCH]
    while batch := list(islice(rest, 2 * BATCH)):
        yield batch


def _lines(predictor: BatchPredictor, rows: list[PromptRow]) -> bytes:
    return b"".join(msgspec.json.encode(prediction) + b"\n" for prediction in predictor.predict(rows))


_predictor: BatchPredictor | None = None


def _start(folder: Path, quality_target: float | None, catalogue_fingerprint: str, prior: ClassTable | None) -> None:
    """Load the artefact once per process."""
    global _predictor
    model = accepted_artefact(folder, catalogue_fingerprint)
    _predictor = BatchPredictor(model, quality_target, prior)


def _work(rows: list[PromptRow]) -> bytes:
    if _predictor is None:
        raise RuntimeError("the process was not started by predict_lines")
    return _lines(_predictor, rows)


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt explained."""

    id: str | int
    version: str
    kind: str
    tier: int
    """The policy's choice at the default target and reference prices."""
    reason: str
    """The policy's reason for it."""
    quality_target: float
    classes: list[float]
    """P of the four complexity classes, from which `p_ok` by tier follows."""
    p_ok: list[float]
    novelty: float
    features: dict[str, float]
    """The surface features that are not 0."""
    characters: int
    looked_at: int
    """How many of `characters` are seen by the classifier."""
    router_instructions: list[str] = msgspec.field(name="appeals")
    """Sentences addressed to the router, which it ignores."""


def explained(model: OutcomeModel, row: PromptRow) -> Explanation:
    prompt, predictor = routing_input_of_text(row.prompt), ClassPredictor(model)
    turn = model.encode(prompt)
    prediction, target = predictor.prediction(prompt, turn), threshold_of(None)
    decision = decide(
        PolicyInputs(
            prediction=prediction,
            costs=reference_prices(predictor.tiers).tolist(),
            quality_target=target,
            tau=target,
            objective="utility",
        )
    )
    request = prompt.request
    features = model.encode(request).features.tolist()[: len(FEATURE_NAMES)]
    return Explanation(
        id=row.id,
        version=model.version,
        kind=prediction.kind,
        tier=decision.tier,
        reason=decision.reason,
        quality_target=target,
        classes=prediction.classes,
        p_ok=prediction.p_ok,
        novelty=prediction.novelty,
        features={name: round(value, 4) for name, value in zip(FEATURE_NAMES, features, strict=True) if value},
        characters=len(row.prompt),
        looked_at=len(request.turn),
        router_instructions=_passed_over(row.prompt),
    )


def _passed_over(text: str) -> list[str]:
    """Return the lines of `text` from which instructions to the router were removed."""
    if without_router_instructions(text) == text:
        return []
    lines = [line.strip() for line in text.splitlines()]
    return [line for line in lines if without_router_instructions(line) != line]
