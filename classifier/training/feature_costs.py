"""What each group of features costs: CPU microseconds of one prompt at a time, on this machine."""

import time
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from classifier.encoder import BatchEncoder, Encoder, SlowEncoder
from classifier.features import surface_features
from classifier.outcome_model import EncodedTurn, OutcomeModel
from classifier.routing_input import RoutingInput, routing_input_of_text
from classifier.tokens import tokenise
from classifier.training.baselines import dense_features
from classifier.training.predictors import PredictorUnavailableError

PROMPTS, SLOW_PROMPTS = 300, 50
WARM_UP = 20


class FeatureCost(msgspec.Struct, frozen=True, kw_only=True):
    """CPU microseconds per prompt of one group, of all threads where the encoder is slow.

    `served`: part of the shipped decision.
    """

    group: str
    served: bool
    median_us: float
    p99_us: float


def feature_costs(model: OutcomeModel, prompts: Sequence[str], train: Sequence[str] = ()) -> list[FeatureCost]:
    """Costs of the shipped groups, and of the baselines' features fitted on `train` prompts (left out without)."""
    sample = [prompts[i] for i in np.random.default_rng(0).permutation(len(prompts))[: prompts_for(model)]]
    inputs = [routing_input_of_text(text) for text in sample]
    turns = [model.encode(one) for one in inputs]
    tokens = [tokenise(one.turn) for one in inputs]
    groups: list[tuple[str, Callable[[int], object]]] = [
        ("cut and count (routing input)", lambda i: routing_input_of_text(sample[i])),
        ("words (tokenise)", lambda i: tokenise(inputs[i].turn)),
        ("surface features", lambda i: surface_features(inputs[i].turn, tokens[i], inputs[i].turn_chars)),
        (
            f"embedding and word logits ({model.encoder.name})",
            _encoding(model.encoder, inputs, tokens, turns),
        ),
        ("neighbours and novelty", lambda i: model.memory.look_up_one(turns[i].embedding)),
        ("heads and calibration", _heads(model, turns)),
        ("all of a prediction", _all(model, inputs)),
    ]
    if isinstance(model.encoder, SlowEncoder):
        del groups[-1]  # it remembers these prompts
    clock = clock_of(model)
    found = [_cost(name, True, run, len(sample), clock) for name, run in groups]
    if train:
        for features in dense_features():
            try:
                features.fit(train)
            except PredictorUnavailableError:
                continue
            found.append(_cost(f"baseline: {features.name}", False, lambda i, f=features: f.compute([sample[i]]), 60))  # type: ignore[misc]
    return found


def _encoding(
    encoder: Encoder, inputs: Sequence[RoutingInput], tokens: Sequence[Sequence[str]], turns: Sequence[EncodedTurn]
) -> Callable[[int], object]:
    if isinstance(encoder, BatchEncoder):  # its `encode` remembers
        return lambda i: encoder.encode_many([inputs[i].turn])
    return lambda i: encoder.encode(inputs[i].turn, tokens[i], turns[i].features)


def _heads(model: OutcomeModel, turns: Sequence[EncodedTurn]) -> Callable[[int], object]:
    nearby = [model.memory.look_up_one(turn.embedding) for turn in turns]
    return lambda i: model.prediction(turns[i], nearby[i])


def _all(model: OutcomeModel, inputs: Sequence[RoutingInput]) -> Callable[[int], object]:
    return lambda i: model.predict(inputs[i])


def prompts_for(model: OutcomeModel) -> int:
    """How many prompts are measured."""
    return SLOW_PROMPTS if isinstance(model.encoder, SlowEncoder) else PROMPTS


def clock_of(model: OutcomeModel) -> Callable[[], int]:
    """CPU nanoseconds: of this thread, or of all where the encoder computes on other ones."""
    return time.process_time_ns if isinstance(model.encoder, SlowEncoder) else time.thread_time_ns


def _cost(
    name: str,
    served: bool,
    run: Callable[[int], object],
    count: int,
    clock: Callable[[], int] = time.thread_time_ns,
) -> FeatureCost:
    spent = []
    for i in [*range(min(WARM_UP, count)), *range(count)]:
        start = clock()
        run(i)
        spent.append((clock() - start) / 1e3)
    measured = spent[-count:]
    return FeatureCost(
        group=name,
        served=served,
        median_us=round(float(np.median(measured)), 1),
        p99_us=round(float(np.quantile(measured, 0.99)), 1),
    )
