"""From a PEFT folder to a checked Adapter: every tensor belongs to the model, has its shape, and is a number."""

import re
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inference_core.errors import ModelFileError
from inference_core.loaders.fingerprint import file_fingerprint
from inference_core.loaders.huggingface.safetensors_file import SafetensorsFile
from inference_core.loaders.packed_tensor import PLAIN_DTYPES, Kind, PackedTensor, dequantize
from inference_core.lora.adapter import Adapter, AdapterTarget, LowRank, adapter_targets
from inference_core.lora.adapter_config import CONFIG_FILE, AdapterConfig, read_adapter_config
from inference_core.model_config import ModelConfig

WEIGHTS_FILE = "adapter_model.safetensors"
MAX_RANK = 512
_KINDS: dict[str, Kind] = {kind: kind for kind in PLAIN_DTYPES}  # type: ignore[misc]
_NAME = re.compile(r"base_model\.model\.(model\.layers\.(\d+)\.(\w+)\.(\w+))\.lora_([AB])\.weight")


def read_adapter(folder: Path, config: ModelConfig) -> Adapter:
    """The adapter in `folder` for a model of `config`; its tensors stay mapped.

    Raises ModelFileError if a file is missing or corrupt, if it asks for more than plain LoRA (`AdapterConfig`), or
    if a tensor does not fit the model: what was found and what is allowed.
    """
    settings = read_adapter_config(folder)
    if not (folder / WEIGHTS_FILE).is_file():
        raise ModelFileError(f"{folder} has no {WEIGHTS_FILE}; adapters are served from safetensors alone")
    file = SafetensorsFile(folder / WEIGHTS_FILE)
    pairs = _pairs(file, config)
    layers: list[dict[str, LowRank]] = [{} for _ in range(config.num_layers)]
    for (layer, name), (module, halves) in pairs.items():
        layers[layer][name] = _low_rank(file, module, halves, adapter_targets(config)[name], settings)
    _check_complete(folder, settings, layers)
    return Adapter(folder, _digest(folder), layers)


def _pairs(file: SafetensorsFile, config: ModelConfig) -> dict[tuple[int, str], tuple[str, dict[str, str]]]:
    """By (block, module name) the module's path, and its tensors' names by "A" and "B"."""
    allowed = adapter_targets(config)
    pairs: dict[tuple[int, str], tuple[str, dict[str, str]]] = {}
    for tensor in file:
        found = _NAME.fullmatch(tensor)
        if found is None or found[4] not in allowed or allowed[found[4]].parent != found[3]:
            raise ModelFileError(
                f"{file.path}: tensor '{tensor}' changes nothing that adapters are served for: LoRA of "
                f"{', '.join(allowed)} in model.layers"
            )
        module, layer, _, name, half = found.groups()
        if int(layer) >= config.num_layers:
            raise ModelFileError(
                f"{file.path}: tensor '{tensor}' is of layer {layer}; the model has {config.num_layers}"
            )
        pairs.setdefault((int(layer), name), (module, {}))[1][half] = tensor
    if not pairs:
        raise ModelFileError(f"{file.path} holds no tensors")
    return pairs


def _low_rank(
    file: SafetensorsFile, module: str, halves: dict[str, str], target: AdapterTarget, settings: AdapterConfig
) -> LowRank:
    if len(halves) < 2:
        raise ModelFileError(f"{file.path}: {module} has lora_{next(iter(halves))} alone; both A and B are needed")
    rank, scale = settings.rank_of(module), settings.scale_of(module)
    if rank > MAX_RANK:
        raise ModelFileError(f"{file.path}: {module} has rank {rank}; served are ranks up to {MAX_RANK}")
    if not np.isfinite(scale):
        raise ModelFileError(f"{file.path}: {module} is scaled by {scale}; lora_alpha must be a number")
    down = _tensor(file, halves["A"], (rank, target.inputs))
    return LowRank(down, _tensor(file, halves["B"], (target.outputs, rank)), scale)


def _tensor(file: SafetensorsFile, name: str, shape: tuple[int, int]) -> PackedTensor:
    entry = file.entries[name]
    if entry.shape != shape:
        raise ModelFileError(
            f"{file.path}: tensor '{name}' is {list(entry.shape)}; by {CONFIG_FILE} and the model it is {list(shape)}"
        )
    if entry.dtype not in _KINDS:
        raise ModelFileError(
            f"{file.path}: tensor '{name}' is of kind {entry.dtype}; supported are {', '.join(PLAIN_DTYPES)}"
        )
    data: NDArray[Any] = file[name]
    tensor = PackedTensor(_KINDS[entry.dtype], shape, data)
    if not np.isfinite(dequantize(tensor)).all():
        raise ModelFileError(f"{file.path}: tensor '{name}' holds NaN or infinity")
    return tensor


def _check_complete(folder: Path, settings: AdapterConfig, layers: list[dict[str, LowRank]]) -> None:
    """Raises ModelFileError if a module that the configuration names outright has no tensors."""
    named = settings.target_modules if isinstance(settings.target_modules, list) else []
    found = {name for layer in layers for name in layer}
    for module in named:
        if module.rpartition(".")[2] not in found:
            raise ModelFileError(
                f"{folder}: target_modules names {module!r}, but {WEIGHTS_FILE} holds no tensors of it (only of "
                f"{', '.join(sorted(found))})"
            )


def _digest(folder: Path) -> bytes:
    digests = [file_fingerprint(folder / name) for name in (CONFIG_FILE, WEIGHTS_FILE)]
    return blake2b("/".join(digests).encode(), digest_size=16).digest()
