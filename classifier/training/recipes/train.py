"""Train an artefact over the hidden states of a model: a layer on the states.

And the command `aio classifier train`, independent of the command-line library, with any of the encoders.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from classifier.encoders.hidden_state_encoder import Float, HiddenStateEncoder, StateSource, StateSpec
from classifier.features.routing_input import routing_input_of_text
from classifier.training.data.dataset import OutcomeRow, data_folder, load_outcomes
from classifier.training.fitting.static_encoder import fit_directions
from classifier.training.recipes.train_static import (
    Candidate,
    Progress,
    hidden_states,
    rows_of,
    save_encoder,
    train,
)
from inference_core.model_spec import Compute

if TYPE_CHECKING:
    from classifier.training.fitting.teacher import HiddenStates

NAME = "hidden"
LAYER = 15  # of SmolLM2's 30: the middle layers predict difficulty best
COMPUTE: Compute = "int4-int8"
EMBEDDING_DIM = 96


class ReadLayer(NamedTuple):
    """The hidden states to train on: a model, as for `resolve_model_path`, and the number of its layers."""

    model: str
    layer: int = LAYER


def parse_read_layer(text: str, default_model: Callable[[], str]) -> ReadLayer:
    """Parse `hidden[:MODEL[:LAYER]]`. Raises `ValueError` for anything else."""
    name, _, rest = text.partition(":")
    model, colon, last = rest.rpartition(":")
    layer = LAYER
    if colon and last.isdecimal():
        rest, layer = model, int(last)
    if name != NAME or layer < 1:
        raise ValueError(f"{text!r} names no hidden states; give {NAME}[:MODEL[:LAYER]], LAYER at least 1")
    return ReadLayer(rest or default_model(), layer)


class StoredStates:
    """A `StateSource` for training: the teacher's states, computed once and kept in the user's cache."""

    def __init__(self, teacher: "HiddenStates") -> None:
        self._teacher = teacher

    def warm(self) -> None:
        """Do nothing: the teacher is loaded when a state is missing."""

    def submit(self, turn: str) -> "Future[Float]":
        """Return the state of one turn, computed synchronously."""
        done: Future[Float] = Future()
        done.set_result(self.states([turn])[0])
        return done

    def states(self, turns: Sequence[str]) -> Float:
        """Return the states float32 [turns, hidden], rounded to float16 as in the cache."""
        return self._teacher(turns)


def stored_states(read: ReadLayer, progress: Progress = lambda stage, share: None) -> tuple[StateSpec, StateSource]:
    """Return the spec of those states and their source. Raises `ModelFileError` if the model is not on this machine."""
    # Imports the inference core, and torch with it.
    from classifier.encoders.local_hidden_states import state_spec, user_cache
    from classifier.training.fitting.teacher import MAX_TOKENS, HiddenStates

    spec = state_spec(read.model, read.layer, COMPUTE, MAX_TOKENS)
    # By content: files with the same name can differ.
    folder = user_cache() / "teacher" / spec.fingerprint
    return spec, StoredStates(HiddenStates(read.model, folder, read.layer, progress))


def train_over_hidden_states(
    rows: Sequence[OutcomeRow],
    root: Path,
    read: ReadLayer,
    *,
    states: tuple[StateSpec, StateSource] | None = None,
    dim: int = EMBEDDING_DIM,
    seed: int = 0,
    progress: Progress = lambda stage, share: None,
) -> Candidate:
    """Train on the rows of the split "train" and write `root/<version>/`.

    `states`: the source of the states, by default `stored_states` of `read`. Raises `ModelFileError` if the model is
    not on this machine, `TrainingDataError` without such rows.
    """
    turns = [routing_input_of_text(row.prompt).turn for row in rows_of(rows, "train")]
    progress("reading hidden states", 0.0)
    spec, source = states or stored_states(read, progress)
    trained_on = source.states(turns)
    progress("fitting the encoder", 0.7)
    encoder = HiddenStateEncoder(spec, fit_directions(trained_on, dim=dim), source)
    return save_encoder(encoder, root, rows=rows, seed=seed, progress=progress)


def train_command(
    root: Path,
    *,
    data: Path | None = None,
    encoder: Path | ReadLayer | None = None,
    teacher: str = "",
    seed: int = 0,
    progress: Progress = lambda stage, share: None,
) -> Candidate:
    """Train on known outcomes into the registry `root`; nothing is promoted.

    `data`: folder with routing_outcomes.jsonl.gz; by default `AIO_DATA` or ../shared/data. `encoder`, instead of the
    static one: the folder of a Hugging Face checkpoint to fine-tune, or the layer of a model whose hidden states to
    read. `teacher`: model whose hidden states are distilled ("" for none); they are computed once, in minutes, and kept
    in the user's cache. Raises `TrainingDataError` if the data are missing, `ModelFileError` if the teacher is.
    """
    rows = load_outcomes(data or data_folder())
    if encoder is None:
        return train(rows, root, teacher=hidden_states(teacher, progress), seed=seed, progress=progress)
    if isinstance(encoder, ReadLayer):
        return train_over_hidden_states(rows, root, encoder, seed=seed, progress=progress)
    # Loads torch and transformers, which the static encoder does not need.
    from classifier.training.recipes.fit_transformer import train_over_checkpoint

    return train_over_checkpoint(rows, root, encoder, seed=seed, progress=progress)
