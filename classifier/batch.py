"""Predictions and tiers for many prompts at once: what `aio classifier predict` writes."""

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import islice
from multiprocessing import get_context
from pathlib import Path

import msgspec
import numpy as np

from classifier.acceptance import accepted_artefact
from classifier.complexity.cold_start import ColdStart, decides_by_class
from classifier.complexity.prior import DEFAULT_TARGET
from classifier.curve import quality_to_lambda, quality_to_tau
from classifier.decision import PolicyInputs, Prediction
from classifier.encoder import SlowEncoder
from classifier.fallback import fallback_of
from classifier.outcome_model import EncodedTurn, OutcomeModel, encode_turns
from classifier.policy import decide
from classifier.prompt_file import PromptRow
from classifier.routing_input import RoutingInput, routing_input_of_text

# Rows of one matrix product with the memory, and of one task of a process.
BATCH = 256
# Below this many rows a second process costs more to start than it saves.
WORTH_A_PROCESS = 4096


class PromptPrediction(msgspec.Struct, frozen=True):
    """One line of the output. `p_ok`: P(no worse than the strongest tier) by tier; `p_correct`: P(correct) by tier,
    empty where the artefact has no such heads; `tier`: the policy's choice at the artefact's reference prices.

    Where the artefact's outcomes are those of other models, `p_ok` is P(good enough) by `classes`, P of the four
    complexity classes, for four tiers like 3B, 8B, 70B and 70B with chain of thought."""

    id: str | int
    p_ok: list[float]
    p_correct: list[float]
    tier: int
    novelty: float
    classes: list[float] = []


class BatchPredictor:
    """A loaded artefact and one quality target. Numbers are rounded to six digits, as they are written."""

    def __init__(self, model: OutcomeModel, quality_target: float | None = None, *, cold: bool = False) -> None:
        """`cold`: decide by class, as for a catalogue without outcomes of its own."""
        manifest = model.manifest
        self._cold = ColdStart(model) if cold else None
        heads = list(manifest.heads)
        tiers = range(1, manifest.tiers + 1)
        self.model = model
        usual = DEFAULT_TARGET if cold else manifest.curves.default_quality_target
        self.quality_target = usual if quality_target is None else quality_target
        self._no_worse = [heads.index(f"no_worse_{k}") for k in tiers[:-1]]
        names = [f"correct_{k}" for k in tiers]
        self._correct = [heads.index(name) for name in names] if set(names) <= set(heads) else []
        fallback = fallback_of(manifest)
        self._inputs = PolicyInputs(
            prediction=Prediction(p_ok=[1.0], kind=model.kind, novelty=0.0, classifier_version=model.version),
            costs=list(manifest.curves.prices),
            rule="tau" if cold else manifest.curves.default_rule,
            quality_target=self.quality_target,
            lambda_=quality_to_lambda(model, self.quality_target),
            tau=self.quality_target if cold else quality_to_tau(model, self.quality_target),
            novelty_threshold=None if cold else fallback.threshold,
            safe_tier=fallback.tier,
        )

    def predict(self, rows: Sequence[PromptRow]) -> list[PromptPrediction]:
        """The predictions of `rows`, in their order."""
        found: list[PromptPrediction] = []
        for start in range(0, len(rows), BATCH):
            found += self._batch(rows[start : start + BATCH])
        return found

    def _batch(self, rows: Sequence[PromptRow]) -> list[PromptPrediction]:
        prompts = [routing_input_of_text(row.prompt) for row in rows]
        turns = encode_turns(self.model.encoder, prompts)
        features, embedding, word_logits = (np.stack(part) for part in zip(*turns, strict=True))
        outcomes = self.model.outcomes(features, embedding, word_logits)
        p = np.round(outcomes.p.astype(np.float64), 6)
        p_ok = np.hstack([p[:, self._no_worse], np.ones((len(rows), 1))]).tolist()
        p_correct = p[:, self._correct].tolist()
        novelty = np.round(outcomes.novelty.astype(np.float64), 6).tolist()
        if self._cold is not None:
            return [
                self._by_class(row.id, prompt, turn) for row, prompt, turn in zip(rows, prompts, turns, strict=True)
            ]
        return [
            PromptPrediction(row.id, ok, correct, self._tier(prompt, ok, novel), novel)
            for row, prompt, ok, correct, novel in zip(rows, prompts, p_ok, p_correct, novelty, strict=True)
        ]

    def _by_class(self, id_: str | int, prompt: RoutingInput, turn: EncodedTurn) -> PromptPrediction:
        assert self._cold is not None
        prediction = self._cold.prediction(prompt, turn)
        tier = decide(msgspec.structs.replace(self._inputs, prediction=prediction)).tier
        return PromptPrediction(id_, prediction.p_ok, [], tier, prediction.novelty, prediction.classes)

    def _tier(self, prompt: RoutingInput, p_ok: list[float], novelty: float) -> int:
        inputs = self._inputs
        prediction = Prediction(p_ok=p_ok, kind=self.model.kind, novelty=novelty, classifier_version=self.model.version)
        threshold = inputs.novelty_threshold if prompt.turn.strip() else None
        return decide(msgspec.structs.replace(inputs, prediction=prediction, novelty_threshold=threshold)).tier


def predict_lines(
    folder: Path,
    rows: Iterable[PromptRow],
    *,
    quality_target: float | None = None,
    processes: int | None = None,
    catalogue_fingerprint: str = "",
) -> Iterator[tuple[int, bytes]]:
    """(Number of rows, their lines of JSON) in the order of `rows`, with the artefact in `folder` for the catalogue of
    that fingerprint; without one, decided by class.

    `processes`: how many work beside each other, by default the machine's cores where there is enough to do; memory
    stays bounded however long `rows` are. Raises `ArtefactError`.
    """
    given = iter(rows)
    first = list(islice(given, WORTH_A_PROCESS))
    wanted = (os.cpu_count() or 1) if processes is None else processes
    # Refused here, with its reason, rather than in every process.
    model = accepted_artefact(folder, catalogue_fingerprint)
    # A slow encoder takes all cores for each of its batches, and much memory.
    alone = isinstance(model.encoder, SlowEncoder) or len(first) < WORTH_A_PROCESS
    if wanted == 1 or (processes is None and alone):
        predictor = BatchPredictor(model, quality_target, cold=decides_by_class(model))
        for batch in _batches(first, given):
            yield len(batch), _lines(predictor, batch)
        return
    # A process of its own for each core: matrix products with threads of their own would only get into their way.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    with ProcessPoolExecutor(
        wanted, get_context("spawn"), _start, (folder, quality_target, catalogue_fingerprint)
    ) as pool:
        waiting: deque[tuple[int, Future[bytes]]] = deque()
        for batch in _batches(first, given):
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
    return b"".join(msgspec.json.encode(one) + b"\n" for one in predictor.predict(rows))


_predictor: BatchPredictor | None = None


def _start(folder: Path, quality_target: float | None, catalogue_fingerprint: str) -> None:
    """Load the artefact once per process."""
    global _predictor
    model = accepted_artefact(folder, catalogue_fingerprint)
    _predictor = BatchPredictor(model, quality_target, cold=decides_by_class(model))


def _work(rows: list[PromptRow]) -> bytes:
    if _predictor is None:
        raise RuntimeError("the process was not started by predict_lines")
    return _lines(_predictor, rows)
