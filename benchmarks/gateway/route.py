"""`python -m benchmarks route`: what a routing decision costs."""

import itertools
import random
import time
from collections.abc import Sequence
from typing import Any

import click
import msgspec

from classifier.features.surface_features import LEXICON
from gateway.base.inference_request import InferenceRequest
from gateway.cli.options import echo_answer, json_option, setting_options, settings_from, table
from gateway.inference.class_prior import class_prior
from gateway.inference.classifier_versions import ActiveClassifier
from gateway.inference.router import RoutingService
from inference_core.protocol import SamplingParams
from inference_core.tokenization.prompt_size import FITTED_CHARS_PER_TOKEN
from tiers.catalog.load import load_catalog
from tiers.conversation import Turn
from tiers.tier import GenerationRequest

WARM_UP = 50
# Of the prompts that stand in where the data are absent.
VOCABULARY = " ".join(LEXICON.values()).split()


class Percentiles(msgspec.Struct, frozen=True, kw_only=True):
    """Of many measurements, in milliseconds."""

    p50: float
    p90: float
    p99: float


class DecisionTime(msgspec.Struct, frozen=True, kw_only=True):
    """CPU time of the thread and wall-clock time."""

    cpu_ms: Percentiles
    wall_ms: Percentiles


class RouteBench(msgspec.Struct, frozen=True, kw_only=True):
    """`decision` is the whole call as the gateway makes it; `process_cpu_ms` counts all threads, so that a mean above
    the decision's own would betray arithmetic that was spread over cores."""

    classifier: str
    prompts: int
    tokens: int
    source: str
    decision: DecisionTime
    process_cpu_ms: float


@click.command()
@click.option("--prompts", type=click.IntRange(min=1), default=1000, help="Decisions to measure.")
@click.option("--tokens", type=click.IntRange(min=1), default=512, help="Length of a prompt, at 4 characters.")
@click.option("--seed", default=7, help="Of the choice or generation of prompts.")
@setting_options("catalog", "data_dir")
@json_option
def route(prompts: int, tokens: int, seed: int, as_json: bool, **arguments: Any) -> None:
    """Measure routing decisions over real prompts of the public outcomes, or generated ones where these are absent.

    AIO_DATA names the folder of the outcomes. Prompts are joined and cut to the wanted length; every decision is on
    another one, as long as there are enough.
    """
    settings = settings_from(**arguments)
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
    )
    echo_answer(as_json, result, _text(result))


def _time_decisions(service: RoutingService, asks: Sequence[InferenceRequest]) -> tuple[DecisionTime, float]:
    for request in asks[:WARM_UP]:
        service.route(request)
    cpu, wall = list[int](), list[int]()
    process = time.process_time_ns()
    for request in asks:
        began = time.perf_counter_ns(), time.thread_time_ns()
        service.route(request)
        cpu.append(time.thread_time_ns() - began[1])
        wall.append(time.perf_counter_ns() - began[0])
    process_ms = (time.process_time_ns() - process) / len(asks) / 1e6
    return DecisionTime(cpu_ms=_percentiles(cpu), wall_ms=_percentiles(wall)), process_ms


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
            messages=[Turn.of("user", text)],
        ),
        created_at=time.time(),
    )


def _text(result: RouteBench) -> str:
    both = (result.decision.cpu_ms, result.decision.wall_ms)
    row = [f"{ms:.3f}" for times in both for ms in (times.p50, times.p90, times.p99)]
    return (
        f"{result.prompts} {result.source} of {result.tokens} tokens, classifier {result.classifier}\n\n"
        f"{table(['CPU p50 ms', 'p90', 'p99', 'wall p50', 'p90', 'p99'], [row])}\n\n"
        f"CPU time of all threads: {result.process_cpu_ms:.3f} ms per decision"
    )
