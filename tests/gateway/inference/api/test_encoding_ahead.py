"""An encoder that takes milliseconds is waited for before a decision, while other requests are served."""

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import numpy.typing as npt

from classifier.complexity.encoder_classes import EncoderClasses
from classifier.encoders.micro_batcher import MicroBatcher
from classifier.encoders.transformer_encoder import PooledProjection, TransformerEncoder
from classifier.features.routing_input import routing_input_of_text
from classifier.model.outcome_model import OutcomeModel
from classifier.registry.artefact import default_artefact, load_artefact
from gateway.base.inference_request import InferenceRequest
from gateway.inference.classifier_versions import LoadedVersion
from gateway.inference.router import RoutingService
from tests.gateway.chats import chat
from tiers.catalog.load import load_catalog

SHIPPED = load_artefact(default_artefact())
Float = npt.NDArray[np.float32]


class Held:
    """The shipped encoder, behind a thread that waits until it is let go."""

    name = "held"

    def __init__(self) -> None:
        self.inner, self.go = SHIPPED.encoder, threading.Event()
        self.dim, self.blocked_for = self.inner.dim, 0
        self.done: dict[str, Float] = {}
        self._batcher = MicroBatcher(self._run)

    def _run(self, turns: list[str]) -> list[Float]:
        assert self.go.wait(60)
        self.done |= {turn: self.inner.encode(turn, turn.lower().split()) for turn in turns}
        return [self.done[turn] for turn in turns]

    def warm(self) -> None: ...

    def submit(self, turn: str) -> "Future[Float]":
        return self._batcher.submit(turn)

    def encode(self, turn: str, tokens: Sequence[str]) -> Float:
        if turn not in self.done:
            self.blocked_for += 1
            return self.submit(turn).result()
        return self.done[turn]


class One:
    def __init__(self, version: LoadedVersion) -> None:
        self.version = version

    def split(self) -> None:
        return None

    def model_for(self, request_id: str, arm: object = None) -> LoadedVersion:
        return self.version


def ask(turn: str) -> InferenceRequest:
    return chat(turn)


async def test_the_event_loop_goes_on_while_a_prompt_is_encoded_and_routing_then_waits_for_nothing() -> None:
    encoder = Held()
    model = OutcomeModel(SHIPPED.manifest, encoder)
    routing = RoutingService(load_catalog("laptop"), {}, One(LoadedVersion(model)), None)
    waiting = [asyncio.create_task(routing.prepare(ask(f"Why is case {i} so?"))) for i in range(3)]
    await asyncio.sleep(0)  # the loop is free although nothing is encoded yet
    assert not any(task.done() for task in waiting)
    encoder.go.set()
    await asyncio.gather(*waiting)
    for i in range(3):
        model.encode(routing_input_of_text(f"Why is case {i} so?"))
    assert encoder.blocked_for == 0


async def test_encoders_that_take_microseconds_are_not_asked_ahead_and_failures_are_left_to_routing() -> None:
    quick = LoadedVersion(SHIPPED)
    assert not quick.slow
    await RoutingService(load_catalog("laptop"), {}, One(quick), None).prepare(ask("Why?"))

    class Broken:
        def split(self) -> None:
            return None

        def model_for(self, request_id: str, arm: object = None) -> LoadedVersion:
            raise RuntimeError("no artefact")

    await RoutingService(load_catalog("laptop"), {}, Broken(), None).prepare(ask("Why?"))


def test_a_turn_that_was_submitted_is_not_computed_twice() -> None:
    class Counted(TransformerEncoder):
        computed = 0

        def encode_many(self, turns: Sequence[str]) -> list[Float]:
            Counted.computed += len(turns)
            return self.above.encodings(np.ones((len(turns), 4), np.float32))

    eye = np.eye(4, dtype=np.float32)
    zero = np.zeros(4, np.float32)
    encoder = Counted(Path("nowhere"), "00", max_tokens=8, above=PooledProjection(zero, eye))
    ahead = encoder.submit("Why?").result(60)
    assert encoder.encode("Why?", []) is ahead
    assert Counted.computed == 1


class Submitted(EncoderClasses):
    """Classes that are only asked for."""

    def __init__(self) -> None:
        self.turns: list[str] = []

    def submit(self, turn: str) -> "Future[Float]":
        self.turns.append(turn)
        done: Future[Float] = Future()
        done.set_result(SHIPPED.encoder.encode(turn, ()))
        return done


async def test_the_turn_is_encoded_ahead_with_its_material_and_its_classes_without() -> None:
    encoder, classes = Held(), Submitted()
    encoder.go.set()
    model = OutcomeModel(SHIPPED.manifest, encoder)
    given = routing_input_of_text("Any error?\n\n2026-01-01 10:00:00 INFO up\n2026-01-01 10:00:01 ERROR down")
    await LoadedVersion(model, classes=classes).encode_ahead(given)
    assert list(encoder.done) == [given.turn]
    assert "ERROR down" in given.turn
    assert classes.turns == ["Any error? here is the log"]
