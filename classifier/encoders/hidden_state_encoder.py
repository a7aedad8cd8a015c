"""The hidden state of a served model as an artefact's encoder: numpy here, the model in a core or loaded locally."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from classifier.encoders.encoding_cache import RememberedEncodings
from classifier.encoders.hidden_states import Float, StateSource, StateSpec
from classifier.encoders.kernel_projection import KernelLayer
from classifier.encoders.static_encoder import Encoding

Tensors = Mapping[str, npt.NDArray[np.generic]]

NAME = "hidden-states"
# Needs torch; a process that gets states from a core must not import it.
_LOCAL = "classifier.encoders.local_hidden_states"


class HiddenStateEncoder:
    """Mean hidden states of a middle layer, from which a `KernelLayer` makes embedding and word logits.

    States come from `source`: in a gateway from the core that serves the model. Before `read_from` the model is loaded
    in this process, with the first prompt or by `warm`.
    """

    name = NAME

    def __init__(self, spec: StateSpec, above: KernelLayer, source: StateSource | None = None) -> None:
        self.spec, self.above = spec, above
        self.dim, self.logit_bias = above.dim, above.bias
        self._source = source
        self._remembered = RememberedEncodings()

    def read_from(self, source: StateSource) -> None:
        """Get states from `source` from now on."""
        self._source = source

    @property
    def source(self) -> StateSource:
        """The source of the states."""
        if self._source is None:
            local: StateSource = import_module(_LOCAL).LocalStates(self.spec)
            self._source = local
        return self._source

    def warm(self) -> None:
        """Check that states are available. Raises `ArtefactError` if the model is missing or a different one."""
        self.source.warm()

    def submit(self, turn: str) -> "Future[Encoding]":
        """Start to encode one turn; cancelling the future cancels the computation."""
        done: Future[Encoding] = Future()
        known = self._remembered.get(turn)
        if known is not None:
            done.set_result(known)
            return done
        state = self.source.submit(turn)
        done.add_done_callback(lambda _: state.cancel())
        state.add_done_callback(lambda _: self._finish(turn, state, done))
        return done

    def encode(self, turn: str, tokens: Sequence[str], features: Float) -> Encoding:
        """Encode one turn; `tokens` and `features` are ignored, because the model reads the text.

        Returns at once if the turn was submitted shortly before. Otherwise raises `ArtefactError` if the source cannot
        compute synchronously, as in a gateway.
        """
        known = self._remembered.get(turn)
        return self.encode_many([turn])[0] if known is None else known

    def encode_many(self, turns: Sequence[str]) -> list[Encoding]:
        """Encode turns in one batch."""
        found = self.above.encodings(self.source.states(turns))
        self._remembered.put(turns, found)
        return found

    def tensors(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return what `from_tensors` needs. It includes the state spec, so that encoders over other states differ."""
        return {
            "encoder.state_spec": np.frombuffer(msgspec.json.encode(self.spec), np.uint8),
            **self.above.tensors(),
        }

    def description(self) -> dict[str, Any]:
        """The encoder's entry in the manifest, without the fingerprint."""
        return {"name": self.name, "dim": self.dim, "pooling": "mean", **msgspec.structs.asdict(self.spec)}

    @classmethod
    def from_tensors(cls, tensors: Tensors, registry: Path | None) -> "HiddenStateEncoder":
        """Rebuild the encoder saved by `tensors`; the model is loaded when the first state is needed.

        Raises KeyError for a missing tensor, ValueError for shapes that disagree or an invalid state spec.
        """
        try:
            spec = msgspec.json.decode(tensors["encoder.state_spec"].tobytes(), type=StateSpec)
        except msgspec.MsgspecError as error:
            raise ValueError(f"encoder.state_spec: {error}") from error
        return cls(spec, KernelLayer.from_tensors(tensors))

    def _finish(self, turn: str, state: "Future[Float]", done: "Future[Encoding]") -> None:
        if not done.set_running_or_notify_cancel():
            return
        try:
            encoding = self.above.encodings(state.result()[None])[0]
        except BaseException as error:
            done.set_exception(error)
            return
        self._remembered.put([turn], [encoding])
        done.set_result(encoding)
