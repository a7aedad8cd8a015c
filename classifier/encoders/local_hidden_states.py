"""Hidden states without a serving core: from a core in this process, whose states are bit-identical."""

import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

import numpy as np

from classifier.encoders.hidden_state_encoder import Float, StateSpec
from classifier.encoders.micro_batcher import MicroBatcher
from classifier.errors import ArtefactError
from inference_core.engine.core import Core
from inference_core.errors import CoreError, ModelFileError
from inference_core.loaders.hub_model import resolve_model_path
from inference_core.loaders.model_file import file_fingerprint
from inference_core.loading.load_core import load_core
from inference_core.model_spec import CoreSpec, ModelSpec
from inference_core.protocol import AddRequest, SamplingParams
from inference_core.protocol.commands import EvidenceRequest
from inference_core.tokenization.load_tokenizer import load_tokenizer
from inference_core.tokenization.tokenizer import Tokenizer

_NAME = "encoder"
_TOGETHER = 64  # concurrent turns in the core
_ARENA_BYTES = 128 * 2**20


class LocalStates:
    """A `StateSource` that loads the model into this process with the first turn, or by `warm`."""

    def __init__(self, spec: StateSpec, cache_dir: Path | None = None) -> None:
        """`cache_dir`: for repacked weights, by default the user's cache."""
        self.spec, self._cache_dir = spec, cache_dir or user_cache()
        self._using = threading.Lock()
        self._loaded: tuple[Core, Tokenizer] | None = None
        self._batcher = MicroBatcher[str, Float](lambda turns: list(self.states(turns)))

    def warm(self) -> None:
        """Load the model. Raises `ArtefactError` if it is not on this machine or not the one that was trained on."""
        with self._using:
            self._load()

    def submit(self, turn: str) -> "Future[Float]":
        """Compute the state of one turn, batched with others."""
        return self._batcher.submit(turn)

    def states(self, turns: Sequence[str]) -> Float:
        """Return the states float32 [turns, hidden]."""
        with self._using:
            core, tokenizer = self._load()
            ids = [self.spec.cut(tokenizer.encode(turn)) for turn in turns]
            states: list[Float] = []
            for start in range(0, len(ids), _TOGETHER):
                states += self._embedded(core, ids[start : start + _TOGETHER])
        return np.stack(states) if states else np.zeros((0, core.model_infos[0].hidden_size), np.float32)

    def _embedded(self, core: Core, prompts: list[list[int]]) -> list[Float]:
        for number, prompt in enumerate(prompts):
            core.add(
                AddRequest(
                    request_id=str(number),
                    model=_NAME,
                    prompt_token_ids=prompt,
                    sampling=SamplingParams(temperature=0.0, max_tokens=1),
                    speculate=False,
                    evidence=EvidenceRequest(layer=self.spec.layer, pooling="mean"),
                    embed=True,
                )
            )
        states: dict[str, Float] = {}
        while len(states) < len(prompts):
            for output in core.step():
                if output.evidence is None:
                    raise ArtefactError(f"{self.spec.model} returned no hidden state: {output.error}.")
                states[output.request_id] = np.frombuffer(output.evidence.state, "<f4")
        return [states[str(number)] for number in range(len(prompts))]

    def _load(self) -> tuple[Core, Tokenizer]:
        if self._loaded is None:
            spec = self.spec
            try:
                path = resolve_model_path(spec.model)
                fingerprint = file_fingerprint(path, self._cache_dir)
                if fingerprint != spec.fingerprint:
                    raise ArtefactError(
                        f"this artefact reads hidden states of {spec.model} {spec.fingerprint[:12]}…, but the model "
                        f"there is {fingerprint[:12]}…. Restore the file or train the artefact again."
                    )
                model = ModelSpec(name=_NAME, path=spec.model, compute=spec.compute)  # type: ignore[arg-type]
                core = load_core(CoreSpec(models=[model], arena_bytes=_ARENA_BYTES), self._cache_dir)
                self._loaded = core, load_tokenizer(path)
            except (ModelFileError, CoreError) as error:
                raise ArtefactError(f"this artefact reads hidden states of {spec.model}: {error}.") from error
        return self._loaded


def state_spec(model: str, layer: int, compute: str, max_tokens: int) -> StateSpec:
    """Return the spec of a layer of the model on this machine. Raises `ModelFileError` without the model."""
    path = resolve_model_path(model)
    fingerprint = file_fingerprint(path, user_cache())
    return StateSpec(model=model, fingerprint=fingerprint, compute=compute, layer=layer, max_tokens=max_tokens)


def user_cache() -> Path:
    """Return the folder for this user's derived data, which may be deleted."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "aio"
