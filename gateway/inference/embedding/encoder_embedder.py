"""Embeddings from an encoder's checkpoint: texts of several requests are computed together, without padding.

A sentence-transformers folder says how its vectors are made: pooling, the longest text, and a prompt before texts. The
files are those that sentence-transformers writes (its documentation, "Creating Custom Models"). A folder without
`modules.json` is a plain checkpoint, whose states are averaged.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from classifier.encoders.checkpoint import EncoderPooling, checkpoint_files
from classifier.encoders.micro_batcher import MicroBatcher
from classifier.errors import CheckpointError
from gateway.base.errors import ApiError
from gateway.inference.embedding.embedder import Float
from inference_core.extras import require_extra
from tiers.catalog.catalog import EmbeddingSpec
from tiers.errors import CatalogError
from tiers.tier import Usage, UsageMeter

if TYPE_CHECKING:
    from classifier.encoders.pooled_transformer import PooledTransformer


_POOLINGS: Final[dict[str, EncoderPooling]] = {
    "cls_token": "cls",
    "mean_tokens": "mean",
    "max_tokens": "max",
    "lasttoken": "last",
}
_MODE = "pooling_mode_"
_MOST_BYTES = 1_000_000


class SentenceFolder(msgspec.Struct, frozen=True, kw_only=True):
    """What is done with a text and its states."""

    checkpoint: Path
    """The folder of the transformer's own files."""
    pooling: EncoderPooling = "mean"
    max_tokens: int | None = None
    """The most tokens of a text that the model was made for; None without a bound of its own."""
    prompt: str = ""
    """What stands before each text unless the caller sends token ids."""
    is_lower_case: bool = False


def read_sentence_folder(folder: Path) -> SentenceFolder:
    """Return what the files of `folder` say. Raises `CheckpointError` for a module or a pooling that is unknown."""
    modules = _json(folder / "modules.json")
    if modules is None:
        return SentenceFolder(checkpoint=folder)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise CheckpointError(f"{folder / 'modules.json'} is no list of modules.")
    kinds = [str(module.get("type", "")).rpartition(".")[2] for module in modules]
    if kinds not in (["Transformer"], ["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise CheckpointError(
            f"{folder / 'modules.json'} has the modules {', '.join(kinds)}; only Transformer, Pooling and Normalize "
            "are computed here, in this order."
        )
    paths = [_inside(folder, str(module.get("path", ""))) for module in modules]
    limits = _fields(paths[0] / "sentence_bert_config.json")
    prompts = _fields(folder / "config_sentence_transformers.json")
    named = prompts.get("prompts") or {}
    default = prompts.get("default_prompt_name")
    if default is not None and (not isinstance(named, dict) or default not in named):
        raise CheckpointError(f"{folder / 'config_sentence_transformers.json'} has no prompt {default!r}.")
    prompt = "" if default is None else str(named[default])
    longest = limits.get("max_seq_length")
    return SentenceFolder(
        checkpoint=paths[0],
        pooling=_pooling(paths[1] / "config.json", prompt) if len(paths) > 1 else "mean",
        max_tokens=longest if isinstance(longest, int) and longest > 0 else None,
        prompt=prompt,
        is_lower_case=bool(limits.get("do_lower_case")),
    )


def _pooling(file: Path, prompt: str) -> EncoderPooling:
    config = _fields(file)
    chosen = [name.removeprefix(_MODE) for name, value in config.items() if name.startswith(_MODE) and value is True]
    if len(chosen) != 1 or chosen[0] not in _POOLINGS:
        raise CheckpointError(
            f"{file} asks for {' and '.join(chosen) or 'no pooling'}; one of {', '.join(_POOLINGS)} is computed here."
        )
    if prompt and config.get("include_prompt") is False:
        raise CheckpointError(
            f"{file} leaves the prompt out of the pooling (include_prompt), which cannot be done here."
        )
    return _POOLINGS[chosen[0]]


def _inside(folder: Path, name: str) -> Path:
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise CheckpointError(f"{folder / 'modules.json'} names {name!r}, which is not in the folder.")
    return path


def _fields(file: Path) -> dict[str, Any]:
    fields = _json(file)
    if fields is not None and not isinstance(fields, dict):
        raise CheckpointError(f"{file} is no JSON object.")
    return fields or {}


def _json(file: Path) -> Any:
    """Return the content of `file`; None if there is none."""
    if not file.is_file():
        return None
    with file.open("rb") as opened:
        content = opened.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise CheckpointError(f"{file} is too large to be a configuration.")
    try:
        return msgspec.json.decode(content)
    except msgspec.DecodeError as error:
        raise CheckpointError(f"{file} is no JSON: {error}.") from error


class EncoderEmbedder:
    """An `Embedder` over the checkpoint in `spec.path`, loaded with the first request: torch takes seconds."""

    def __init__(self, spec: EmbeddingSpec) -> None:
        """Raises `CatalogError` if the folder is not a checkpoint, and `MissingExtraError`."""
        require_extra("local", "the encoder that makes embeddings")
        self.spec = spec
        try:
            self._folder = read_sentence_folder(Path(str(spec.path)).expanduser())
            checkpoint_files(self._folder.checkpoint)
        except CheckpointError as error:
            raise CatalogError(f"embeddings '{spec.name}'.path: {error}") from error
        self._loading = asyncio.Lock()
        self._model: PooledTransformer | None = None
        self._batcher = MicroBatcher[list[int], Float](lambda rows: list(self._opened().encode_ids(rows)))

    async def open(self) -> None:
        async with self._loading:
            if self._model is None:
                try:
                    self._model = await asyncio.to_thread(_load, self._folder, self.spec.max_tokens)
                except CheckpointError as error:
                    raise ApiError(503, f"{self.spec.name}: {error}", code="model_unavailable") from error

    @property
    def vocabulary(self) -> int:
        return self._opened().tokenizer.get_vocab_size()

    @property
    def max_tokens(self) -> int:
        return self._opened().max_tokens

    @property
    def size(self) -> int:
        return self._opened().hidden

    def least_tokens(self, text: str) -> int:
        return 0

    def tokens(self, text: str) -> list[int]:
        """See `Embedder.tokens`. Encodes as a batch, since the library holds the interpreter lock for a single text."""
        read = self._folder.prompt + text
        if self._folder.is_lower_case:
            read = read.lower()
        return list(self._opened().tokenizer.encode_batch([read])[0].ids)

    async def embed(self, rows: Sequence[list[int]], *, priority: int, salt: str, meter: UsageMeter) -> Float:
        """See `Embedder.embed`; the batcher has no priorities, and caches nothing that a salt would protect."""
        states = [self._batcher.submit(row) for row in rows]

        def read() -> Usage:
            started = (state.running() or (state.done() and not state.cancelled()) for state in states)
            return Usage(prompt_tokens=sum(len(row) for row, was in zip(rows, started, strict=True) if was))

        meter.add(read)
        return np.stack(await asyncio.gather(*map(asyncio.wrap_future, states)))

    def _opened(self) -> "PooledTransformer":
        assert self._model is not None, "open it first"
        return self._model


def _load(folder: SentenceFolder, max_tokens: int) -> "PooledTransformer":
    from classifier.encoders.pooled_transformer import PooledTransformer

    most = max_tokens if folder.max_tokens is None else min(max_tokens, folder.max_tokens)
    return PooledTransformer.load(folder.checkpoint, max_tokens=most, pooling=folder.pooling)
