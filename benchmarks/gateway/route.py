"""`python -m benchmarks route`: what a routing decision costs, as a whole and stage by stage."""

import itertools
import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import click
import msgspec

from classifier.class_predictor import ClassPredictor
from classifier.features.routing_input import RoutingInput
from classifier.features.stray_text import tokenise
from classifier.features.surface_features import LEXICON, surface_features
from classifier.model.outcome_model import EncodedTurn
from classifier.policy.decide import decide
from gateway.base.inference_request import InferenceRequest
from gateway.inference.class_prior import class_prior
from gateway.inference.classifier_versions import ActiveClassifier, Reading
from gateway.inference.router import RoutingService
from gateway.operations.cli.options import (
    catalog_option,
    data_dir_option,
    echo_answer,
    json_option,
    settings_from,
    table,
)
from inference_core.protocol import SamplingParams
from inference_core.tokenization.prompt_size import FITTED_CHARS_PER_TOKEN
from tiers.catalog.load import load_catalog
from tiers.tier import ChatMessage, GenerationRequest

WARM_UP = 50
# Of the prompts that stand in where the data are absent.
VOCABULARY = " ".join(LEXICON.values()).split()

Clock = Callable[[], int]


class Percentiles(msgspec.Struct, frozen=True, kw_only=True):
    """Of many measurements, in milliseconds."""

    p50: float
    p90: float
    p99: float


class StageTime(msgspec.Struct, frozen=True, kw_only=True):
    """One stage of a decision: CPU time of the thread and wall-clock time."""

    stage: str
    cpu_ms: Percentiles
    wall_ms: Percentiles


class RouteBench(msgspec.Struct, frozen=True, kw_only=True):
    """`decision` is the whole call as the gateway makes it; `process_cpu_ms` counts all threads, so that a mean above
    the decision's own would betray arithmetic that was spread over cores. `stages` were timed in a second pass."""

    classifier: str
    prompts: int
    tokens: int
    source: str
    decision: StageTime
    process_cpu_ms: float
    stages: list[StageTime]


@click.command()
@click.option("--prompts", type=click.IntRange(min=1), default=1000, help="Decisions to measure.")
@click.option("--tokens", type=click.IntRange(min=1), default=512, help="Length of a prompt, at 4 characters.")
@click.option("--seed", default=7, help="Of the choice or generation of prompts.")
@catalog_option
@data_dir_option
@json_option
def route(prompts: int, tokens: int, seed: int, as_json: bool, **given: Any) -> None:
    """Measure routing decisions over real prompts of the public outcomes, or generated ones where these are absent.

    AIO_DATA names the folder of the outcomes. Prompts are joined and cut to the wanted length; every decision is on
    another one, as long as there are enough.
    """
    settings = settings_from(**given)
    catalog = load_catalog(settings.catalog)
    classifier = ActiveClassifier(
        settings.registry_path, catalog.fingerprint, prior=class_prior(catalog, settings.data_path)
    )
    classifier.load()
    # Without tiers: none is down and none has a queue, so that nothing waits.
    service = RoutingService(catalog, {}, classifier, settings.quality_target)
    texts, source = _prompts(prompts, tokens * FITTED_CHARS_PER_TOKEN, seed)
    asks = [_request(text) for text in texts]
    decision, process_cpu_ms = _time_decisions(service, asks)
    result = RouteBench(
        classifier=classifier.model.version,
        prompts=prompts,
        tokens=tokens,
        source=source,
        decision=decision,
        process_cpu_ms=process_cpu_ms,
        stages=_time_stages(classifier, service, asks),
    )
    echo_answer(as_json, result, _text(result))


def _time_decisions(service: RoutingService, asks: Sequence[InferenceRequest]) -> tuple[StageTime, float]:
    for request in asks[:WARM_UP]:
        service.route(request)
    watch = Stopwatch()
    process = time.process_time_ns()
    for request in asks:
        watch.start()
        service.route(request)
        watch.lap("decision")
    return watch.stages()[0], (time.process_time_ns() - process) / len(asks) / 1e6


def _time_stages(
    classifier: ActiveClassifier, service: RoutingService, asks: Sequence[InferenceRequest]
) -> list[StageTime]:
    """The parts of a decision, timed while the service makes it.

    What comes before the classifier is the input. The policy is run once more on its own; what else comes after the
    classifier (limits of the tiers, costs, the record of the inputs) is the service's.
    """
    timed = TimedClassifier(classifier)
    watched = RoutingService(service.served.catalog, {}, timed, service.quality_target)
    watch = timed.watch
    for request in asks:
        watch.start()
        decision = watched.route(request)
        watch.lap("service")
        decide(decision.inputs)
        watch.lap("policy")
    watch.take_off("policy", of="service")
    return watch.stages()


class TimedClassifier:
    """A classifier whose stages end laps of its stopwatch: what `LoadedVersion.read` does, step by step."""

    on_trial = False

    def __init__(self, classifier: ActiveClassifier) -> None:
        self.watch = Stopwatch()
        self._model = classifier.model
        self._predictor = ClassPredictor(self._model, classifier.prior)

    def read(self, given: RoutingInput) -> Reading:
        """P(no worse) of every tier, and the prompt's embedding."""
        lap, model = self.watch.lap, self._model
        lap("input")
        tokens = tokenise(given.turn)
        lap("words")
        features = surface_features(given.turn, tokens, given.turn_chars)
        lap("features")
        encoding = model.encoder.encode(given.turn, tokens, features)
        lap("encoder")
        turn = EncodedTurn(features, *encoding)
        prediction = self._predictor.prediction(given, turn)
        lap("classes")
        return Reading(prediction, encoding.embedding)

    def split(self) -> None:
        """No experiment is timed."""

    def model_for(self, request_id: str, arm: object = None) -> "TimedClassifier":
        """Itself."""
        return self


class Stopwatch:
    """CPU and wall-clock nanoseconds of named laps; what the clocks themselves cost is taken off."""

    def __init__(self) -> None:
        self._clocks: tuple[Clock, Clock] = (time.thread_time_ns, time.perf_counter_ns)
        self._laps: dict[str, tuple[list[int], list[int]]] = {}
        self._began = [0, 0]
        self._own = [0, 0]
        for _ in range(200):
            self.start()
            self.lap("")
        own = self._laps.pop("")
        self._own = [round(statistics.median(nanoseconds)) for nanoseconds in own]

    def start(self) -> None:
        """Begin a lap."""
        self._began = [clock() for clock in self._clocks]

    def lap(self, name: str) -> None:
        """End a lap, call it `name` and begin the next one."""
        now = [clock() for clock in self._clocks]
        laps = self._laps.setdefault(name, ([], []))
        for nanoseconds, end, began, own in zip(laps, now, self._began, self._own, strict=True):
            nanoseconds.append(max(end - began - own, 0))
        self.start()

    def take_off(self, part: str, of: str) -> None:
        """Subtract the laps called `part` from those called `of`, turn by turn."""
        for whole, less in zip(self._laps[of], self._laps[part], strict=True):
            whole[:] = [max(total - inner, 0) for total, inner in zip(whole, less, strict=True)]

    def stages(self) -> list[StageTime]:
        """All laps by name, in the order in which they were first run."""
        return [
            StageTime(stage=name, cpu_ms=_percentiles(cpu), wall_ms=_percentiles(wall))
            for name, (cpu, wall) in self._laps.items()
        ]


def _percentiles(nanoseconds: Sequence[int]) -> Percentiles:
    ordered = sorted(nanoseconds)
    p50, p90, p99 = (ordered[min(int(share * len(ordered)), len(ordered) - 1)] / 1e6 for share in (0.5, 0.9, 0.99))
    return Percentiles(p50=round(p50, 4), p90=round(p90, 4), p99=round(p99, 4))


def _prompts(count: int, chars: int, seed: int) -> tuple[list[str], str]:
    """`count` texts of `chars` characters, and where their words are from."""
    from classifier.errors import TrainingDataError
    from classifier.training.data.dataset import data_folder, load_outcomes

    chance = random.Random(seed)
    try:
        texts = [row.prompt for row in load_outcomes(data_folder())]
        source = "real prompts"
    except TrainingDataError:
        texts = [" ".join(chance.choices(VOCABULARY, k=60)).capitalize() + "?" for _ in range(2000)]
        source = "generated prompts"
    chance.shuffle(texts)
    endless = itertools.cycle(texts)
    prompts: list[str] = []
    for _ in range(count):
        text = next(endless)
        while len(text) < chars:
            text += "\n\n" + next(endless)
        prompts.append(text[:chars])
    return prompts, source


def _request(text: str) -> InferenceRequest:
    return InferenceRequest(
        api="chat",
        requested_model="auto",
        generation=GenerationRequest(
            request_id="bench",
            sampling=SamplingParams(),
            arrival=time.monotonic(),
            messages=[ChatMessage(role="user", content=text)],
        ),
        created_at=time.time(),
    )


def _text(result: RouteBench) -> str:
    rows = [
        [
            stage.stage,
            *(f"{ms:.3f}" for times in (stage.cpu_ms, stage.wall_ms) for ms in (times.p50, times.p90, times.p99)),
        ]
        for stage in (result.decision, *result.stages)
    ]
    head = ["ms", "CPU p50", "p90", "p99", "wall p50", "p90", "p99"]
    return (
        f"{result.prompts} {result.source} of {result.tokens} tokens, classifier {result.classifier}\n\n"
        f"{table(head, rows)}\n\nCPU time of all threads: {result.process_cpu_ms:.3f} ms per decision"
    )
