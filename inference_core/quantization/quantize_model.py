"""Quantises a model layer by layer, in the memory of one layer: calibrate, quantise, write, run the quantised layer."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import torch

from inference_core.errors import QuantizationError
from inference_core.loaders.checkpoint import Checkpoint
from inference_core.loaders.open_checkpoint import open_checkpoint
from inference_core.loaders.packed_tensor import dequantize
from inference_core.models.transformer import rotary_table
from inference_core.models.weights import EMBEDDING, load_embedding
from inference_core.quantization.calibration import CalibrationText, as_chats
from inference_core.quantization.files import WRITTEN, ShardWriter, write_json, write_settings
from inference_core.quantization.method import (
    SITES,
    ActivationStatistics,
    LayerTensors,
    Needs,
    QuantizationMethod,
    Site,
    layer_forward,
)
from inference_core.quantization.quality_report import RECORD, CalibrationRecord, QuantizationRecord
from inference_core.tokenization.load_tokenizer import load_tokenizer

Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class Quantized:
    """Bytes written: of all tensors, and of the quantised layers, which take `source_bytes` as 16-bit numbers."""

    total_bytes: int
    linear_bytes: int
    source_bytes: int


def quantize_model(
    source: Path,
    destination: Path,
    method: QuantizationMethod,
    text: CalibrationText,
    *,
    samples: int | None = None,
    window: int = 512,
    dtype: torch.dtype | None = None,
    cache_dir: Path | None = None,
    progress: Progress = lambda stage, share: None,
) -> Quantized:
    """Quantise `source` (a Hugging Face folder or a GGUF file, dequantised) into the new folder `destination`.

    Linear layers of the decoder are quantised; embeddings, norms, biases and the head stay in `dtype` (None: the
    method's default). Methods that use activations read `text` in `samples` windows of `window` tokens (None: all that
    it has, see `CalibrationText.windows`), as chats where the model has a template (`as_chats`), and every layer is
    calibrated on the output of the quantised layers before it. Memory: a layer in float32, its second moments, a shard
    of at most 512 MiB, and the hidden states of the windows. The same input gives the same files on the same machine.
    `destination` appears only when it is complete.

    Raises QuantizationError if the model cannot be quantised this way, and ModelFileError for a bad source.
    """
    if destination.exists():
        raise QuantizationError(f"{destination} exists; give the name of a folder that does not")
    checkpoint = open_checkpoint(source, cache_dir)
    if checkpoint.config.architecture not in WRITTEN:
        raise QuantizationError(
            f"{source}: a model of the kind {checkpoint.config.architecture} cannot be quantised; those that can are "
            f"{', '.join(WRITTEN)}"
        )
    method.check(checkpoint.config)
    stored = dtype or method.default_dtype
    destination.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{destination.name}.", dir=destination.parent) as name, \
            torch.inference_mode():  # fmt: skip
        folder = Path(name) / "model"
        folder.mkdir()
        calibration = _Calibration(checkpoint, method.needs, text, samples, window)
        with ShardWriter(folder) as shards:
            written = _write_layers(checkpoint, method, stored, calibration, shards, progress)
        write_settings(checkpoint, folder, stored, method.quantization_config())
        write_json(folder / RECORD, _record(checkpoint, method, stored, calibration, text))
        folder.rename(destination)
    return written


class _Calibration:
    """Hidden states of the calibration windows at the current layer."""

    def __init__(
        self, checkpoint: Checkpoint, needs: Needs, text: CalibrationText, samples: int | None, window: int
    ) -> None:
        self._config = checkpoint.config
        self._needs = needs
        self.windows: list[list[int]] = []
        self.chats = False
        if needs != "nothing":
            longest = min(window, checkpoint.config.max_position)
            tokenizer = load_tokenizer(checkpoint.path)
            plain = text.windows(tokenizer, samples, longest)
            self.windows = as_chats(tokenizer, plain)
            self.chats = self.windows != plain
        embedding = load_embedding(checkpoint, "float32")
        self._hidden = [embedding.rows(ids) for ids in self.windows]
        self._cos_sin = rotary_table(self._config, max(map(len, self.windows), default=1))

    def statistics(self, tensors: LayerTensors) -> dict[Site, ActivationStatistics]:
        """Statistics of the inputs of the layer's linear layers."""
        gathered: dict[Site, ActivationStatistics] = {}
        if self._needs == "nothing":
            return gathered
        for site in SITES:
            width = tensors[f"{site.linears[0]}.weight"].shape[1]
            gathered[site] = ActivationStatistics(width, moments=self._needs == "moments")
        for hidden in self._hidden:
            layer_forward(self._config, tensors, hidden, self._cos_sin, lambda site, x: gathered[site].add(x))
        if not all(torch.isfinite(seen.peak).all() for seen in gathered.values()):
            raise QuantizationError("activations of the calibration text overflow float32")
        return gathered

    def pass_through(self, tensors: LayerTensors) -> None:
        """Compute the layer, and advance to the next one."""
        self._hidden = [layer_forward(self._config, tensors, hidden, self._cos_sin) for hidden in self._hidden]


def _write_layers(
    checkpoint: Checkpoint,
    method: QuantizationMethod,
    dtype: torch.dtype,
    calibration: _Calibration,
    shards: ShardWriter,
    progress: Progress,
) -> Quantized:
    config = checkpoint.config
    linear_bytes = source_bytes = 0
    shards.add(EMBEDDING, _cast(_plain(checkpoint, EMBEDDING), dtype, EMBEDDING))
    for index in range(config.num_layers):
        progress(f"layer {index + 1} of {config.num_layers}", index / config.num_layers)
        prefix = f"model.layers.{index}."
        tensors = _layer_tensors(checkpoint, prefix)
        statistics = calibration.statistics(tensors)
        linears = method.quantize(tensors, statistics, config, dtype)
        for linear, quantized in linears.items():
            for suffix, part in quantized.parts.items():
                shards.add(f"{prefix}{linear}.{suffix}", part)
            linear_bytes += sum(part.nbytes for part in quantized.parts.values())
            source_bytes += 2 * quantized.values.numel()
            tensors[f"{linear}.weight"] = quantized.values
        for name, tensor in tensors.items():
            if name.removesuffix(".weight") not in linears:
                shards.add(f"{prefix}{name}", _cast(tensor, dtype, f"{prefix}{name}"))
        calibration.pass_through(tensors)
    last = ["model.norm.weight"] if config.tie_embeddings else ["model.norm.weight", "lm_head.weight"]
    for name in last:
        shards.add(name, _cast(_plain(checkpoint, name), dtype, name))
    progress("done", 1.0)
    return Quantized(shards.total_bytes, linear_bytes, source_bytes)


def _layer_tensors(checkpoint: Checkpoint, prefix: str) -> LayerTensors:
    names = [name for name in checkpoint.tensors if name.startswith(prefix)]
    return {name.removeprefix(prefix): _plain(checkpoint, name) for name in names}


def _plain(checkpoint: Checkpoint, name: str) -> torch.Tensor:
    """A float32 copy. Raises QuantizationError for numbers that are not finite."""
    tensor = torch.from_numpy(np.array(dequantize(checkpoint.tensors[name]), np.float32, copy=True))
    if not torch.isfinite(tensor).all():
        raise QuantizationError(f"'{name}' of {checkpoint.path} cannot be quantised: not all of its numbers are finite")
    return tensor


def _cast(tensor: torch.Tensor, dtype: torch.dtype, name: str) -> torch.Tensor:
    cast = tensor.to(dtype)
    if not torch.isfinite(cast).all():
        raise QuantizationError(f"'{name}' has numbers that {dtype} cannot represent; store it in another dtype")
    return cast


def _record(
    checkpoint: Checkpoint,
    method: QuantizationMethod,
    dtype: torch.dtype,
    calibration: _Calibration,
    text: CalibrationText,
) -> QuantizationRecord:
    seen = None
    if calibration.windows:
        tokens = sum(map(len, calibration.windows))
        seen = CalibrationRecord(
            origin=text.origin,
            sha256=text.digest,
            windows=len(calibration.windows),
            tokens=tokens,
            chats=calibration.chats,
        )
    return QuantizationRecord(
        method=method.name,
        settings=msgspec.to_builtins(method.settings()),
        dtype=str(dtype).removeprefix("torch."),
        source=checkpoint.fingerprint,
        calibration=seen,
    )
