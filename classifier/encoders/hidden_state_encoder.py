"""The hidden state of a served model as an artefact's encoder: numpy here, the model in a core or loaded locally.

A `StateSpec` names the model and the layer that is read. The embedding of a pooled state has its principal directions.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from classifier.encoders.static_encoder import RememberedEncodings
from inference_core.io.files import prepare_types

Float = npt.NDArray[np.float32]


class StateSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Where a state is read: the mean over the first `max_tokens` tokens of a turn, without a chat template, of the
    residual stream after layer `layer` (the first is 1) of a model.
    """

    model: str
    """A path as for `resolve_model_path`."""
    fingerprint: str
    """Hash of the model's file (`file_fingerprint`)."""
    compute: str
    """The arithmetic (`ModelSpec.compute`). Together with the fingerprint it identifies the model whose states were
    trained on.
    """
    layer: int
    max_tokens: int

    def cut(self, token_ids: list[int]) -> list[int]:
        """Return the tokens to read; a turn without any is read as token 0."""
        return token_ids[: self.max_tokens] or [0]


prepare_types(StateSpec)


class StateSource(Protocol):
    """Computes the states of a `StateSpec`; thread-safe."""

    def warm(self) -> None:
        """Check the model, and load what the first turn would otherwise wait for.

        Raises `ArtefactError` if the model is missing or a different one.
        """

    def submit(self, turn: str) -> "Future[Float]":
        """Start to compute the state float32 [hidden] of one turn. Never blocks."""

    def states(self, turns: Sequence[str]) -> Float:
        """Return the states float32 [turns, hidden] synchronously. Raises `ArtefactError` if it only has `submit`."""


Tensors = Mapping[str, npt.NDArray[np.generic]]

CLIP = 5.0  # standard deviations; bounds the influence of outliers
_NAMES = ("mean", "scale", "directions")


class PrincipalDirections:
    """A state is standardised, rotated to its first principal directions and scaled to unit length."""

    def __init__(self, mean: Float, scale: Float, directions: Float) -> None:
        """`mean`, `scale` [hidden]; `directions` [hidden, dim]. Raises `ValueError` for shapes that disagree."""
        if not mean.shape == scale.shape == directions.shape[:1]:
            raise ValueError(
                f"encoder: mean {mean.shape}, scale {scale.shape} and directions {directions.shape} do not belong "
                "together"
            )
        self.mean, self.scale, self.directions = mean, scale, directions

    @property
    def dim(self) -> int:
        """Length of an embedding."""
        return int(self.directions.shape[1])

    def encodings(self, states: Float) -> list[Float]:
        """Convert states [n, hidden] to embeddings of unit length, or all zero."""
        return list(unit((standardised(states, self.mean, self.scale) @ self.directions).astype(np.float32)))

    def tensors(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return the layer's tensors by name, float32."""
        return {f"encoder.{name}": np.asarray(getattr(self, name), np.float32) for name in _NAMES}

    @classmethod
    def from_tensors(cls, tensors: Tensors) -> "PrincipalDirections":
        """Rebuild the layer from `tensors`. Raises KeyError for a missing one, ValueError for shapes that disagree."""
        mean, scale, directions = (tensors[f"encoder.{name}"].astype(np.float32) for name in _NAMES)
        # Earlier releases kept more directions than the embedding has, for what the outcomes were predicted from.
        kept = int(tensors["encoder.dim"][0]) if "encoder.dim" in tensors else directions.shape[1]
        if not 0 < kept <= directions.shape[1]:
            raise ValueError(f"encoder: {kept} of {directions.shape[1]} directions do not belong together")
        return cls(mean, scale, np.ascontiguousarray(directions[:, :kept]))


def standardised(states: Float, mean: Float, scale: Float) -> Float:
    """Return `states` [n, hidden] in standard deviations from the mean, at most `CLIP`."""
    clipped: Float = np.clip((states - mean) / scale, -CLIP, CLIP)
    return clipped


def unit(rows: Float) -> Float:
    """Return `rows` [n, d] at unit length; zero rows stay zero."""
    length = np.sqrt((rows * rows).sum(axis=1, keepdims=True))
    units: Float = np.divide(rows, length, out=np.zeros_like(rows), where=length > 1e-6)
    return units


NAME = "hidden-states"
# Needs torch; a process that gets states from a core must not import it.
_LOCAL = "classifier.encoders.local_hidden_states"


class HiddenStateEncoder:
    """Mean hidden states of a middle layer, from which `PrincipalDirections` make an embedding.

    States come from `source`: in a gateway from the core that serves the model. Before `read_from` the model is loaded
    in this process, with the first prompt or by `warm`.
    """

    name = NAME

    def __init__(self, spec: StateSpec, above: PrincipalDirections, source: StateSource | None = None) -> None:
        self.spec, self.above = spec, above
        self.dim = above.dim
        self._source = source
        self._remembered = RememberedEncodings()

    def read_from(self, source: StateSource) -> None:
        """Get states from `source` from now on."""
        self._source = source

    @property
    def source(self) -> StateSource:
        if self._source is None:
            local: StateSource = import_module(_LOCAL).LocalStates(self.spec)
            self._source = local
        return self._source

    def warm(self) -> None:
        """Check that states are available. Raises `ArtefactError` if the model is missing or a different one."""
        self.source.warm()

    def submit(self, turn: str) -> "Future[Float]":
        """Start to encode one turn; cancelling the future cancels the computation."""
        done: Future[Float] = Future()
        remembered = self._remembered.get(turn)
        if remembered is not None:
            done.set_result(remembered)
            return done
        state = self.source.submit(turn)
        done.add_done_callback(lambda _: state.cancel())
        state.add_done_callback(lambda _: self._finish(turn, state, done))
        return done

    def encode(self, turn: str, tokens: Sequence[str]) -> Float:
        """Encode one turn; `tokens` are ignored, because the model reads the text.

        Returns at once if the turn was submitted shortly before. Otherwise raises `ArtefactError` if the source cannot
        compute synchronously, as in a gateway.
        """
        remembered = self._remembered.get(turn)
        return self.encode_many([turn])[0] if remembered is None else remembered

    def encode_many(self, turns: Sequence[str]) -> list[Float]:
        encodings = self.above.encodings(self.source.states(turns))
        self._remembered.put(turns, encodings)
        return encodings

    def tensors(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return what `from_tensors` needs. It includes the state spec, so that encoders over other states differ."""
        return {"encoder.state_spec": np.frombuffer(msgspec.json.encode(self.spec), np.uint8), **self.above.tensors()}

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
        return cls(spec, PrincipalDirections.from_tensors(tensors))

    def _finish(self, turn: str, state: "Future[Float]", done: "Future[Float]") -> None:
        if not done.set_running_or_notify_cancel():
            return
        try:
            encoding = self.above.encodings(state.result()[None])[0]
        except BaseException as error:
            done.set_exception(error)
            return
        self._remembered.put([turn], [encoding])
        done.set_result(encoding)
