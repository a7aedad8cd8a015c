"""Reads a PEFT folder as a checked Adapter: every tensor belongs to the model, has the right shape, and is finite.

adapter_config.json gives ranks and scales by layer. Anything beyond plain LoRA is refused.
"""

import math
import re
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from inference_core.errors import ModelFileError
from inference_core.io.files import JSON_ERRORS, prepare_types
from inference_core.loaders.huggingface.safetensors_file import SafetensorsFile
from inference_core.loaders.model_file import MAX_SETTINGS, file_fingerprint, read_model_file
from inference_core.loaders.packed_tensor import PLAIN_DTYPES, Kind, PackedTensor, dequantize
from inference_core.lora.adapter import Adapter, AdapterTarget, LowRank, adapter_targets
from inference_core.model_config import ModelConfig

CONFIG_FILE = "adapter_config.json"
# Initialisations that also change the base model's weights: such an adapter is wrong over the unchanged base.
_CHANGED_BASES = ("pissa", "olora", "corda", "loftq")
Number = TypeVar("Number", int, float)
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.]+")


class AdapterConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The keys that decide the computation, in PEFT's vocabulary; those after `init_lora_weights` must be empty."""

    peft_type: str = "LORA"
    r: int = 8
    lora_alpha: float = 8.0
    use_rslora: bool = False
    target_modules: list[str] | str | None = None
    rank_pattern: dict[str, int] = {}
    alpha_pattern: dict[str, float] = {}
    bias: str = "none"
    init_lora_weights: bool | str = True
    use_dora: bool = False
    lora_bias: bool = False
    fan_in_fan_out: bool = False
    use_qalora: bool = False
    modules_to_save: Any = None
    layer_replication: Any = None
    trainable_token_indices: Any = None
    target_parameters: Any = None
    alora_invocation_tokens: Any = None
    arrow_config: Any = None

    def rank_of(self, module: str) -> int:
        """The rank of the layer `module`, such as `model.layers.0.self_attn.q_proj`."""
        return _by_pattern(self.rank_pattern, module, self.r)

    def scale_of(self, module: str) -> float:
        """The factor of a layer's B (A x): alpha / r, or alpha / sqrt(r) for rsLoRA (Kalajdzievski 2023)."""
        rank, alpha = self.rank_of(module), _by_pattern(self.alpha_pattern, module, self.lora_alpha)
        return alpha / math.sqrt(rank) if self.use_rslora else alpha / rank


prepare_types(AdapterConfig)


def read_adapter_config(folder: Path) -> AdapterConfig:
    """Read `folder`/adapter_config.json. Raises ModelFileError if it is unreadable or needs more than plain LoRA."""
    file = folder / CONFIG_FILE
    try:
        config = msgspec.json.decode(read_model_file(file, MAX_SETTINGS), type=AdapterConfig)
    except ModelFileError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise ModelFileError(f"{folder} has no {CONFIG_FILE}; it is not a PEFT adapter folder") from error
        raise
    except JSON_ERRORS as error:
        raise ModelFileError(f"{file} cannot be read: {error}") from error
    _refuse_unsupported(file, config)
    return config


def _refuse_unsupported(file: Path, config: AdapterConfig) -> None:
    if config.peft_type != "LORA":
        raise ModelFileError(f"{file}: peft_type is {config.peft_type!r}; supported is 'LORA'")
    if config.bias != "none":
        raise ModelFileError(f"{file}: bias is {config.bias!r}; adapters that train biases are not served, only 'none'")
    changed = config.init_lora_weights
    if isinstance(changed, str) and changed.lower().startswith(_CHANGED_BASES):
        raise ModelFileError(
            f"{file}: init_lora_weights is {changed!r}, which changes the base model too; convert the adapter to plain "
            "LoRA when saving it (path_initial_model_for_weight_conversion)"
        )
    names = config.__struct_fields__
    for name in names[names.index("use_dora") :]:
        if getattr(config, name):
            raise ModelFileError(f"{file}: {name} is {getattr(config, name)!r}; plain LoRA is served, without {name}")
    for pattern in (*config.rank_pattern, *config.alpha_pattern):
        if not _PLAIN_NAME.fullmatch(pattern):
            raise ModelFileError(
                f"{file}: the pattern {pattern!r} is a regular expression; name modules plainly, such as 'q_proj' or "
                "'layers.0.self_attn.q_proj'"
            )
    if not all(rank > 0 for rank in (config.r, *config.rank_pattern.values())):
        raise ModelFileError(f"{file}: r is {config.r} and rank_pattern {config.rank_pattern}; ranks are at least 1")


def _by_pattern(patterns: dict[str, Number], module: str, default: Number) -> Number:
    """The value of the first pattern that matches `module` or the end of its path, as in PEFT."""
    return next((v for name, v in patterns.items() if module == name or module.endswith("." + name)), default)


WEIGHTS_FILE = "adapter_model.safetensors"
MAX_RANK = 512
_KINDS: dict[str, Kind] = {kind: kind for kind in PLAIN_DTYPES}  # type: ignore[misc]
_NAME = re.compile(r"base_model\.model\.(model\.layers\.(\d+)\.(\w+)\.(\w+))\.lora_([AB])\.weight")


def read_adapter(folder: Path, config: ModelConfig) -> Adapter:
    """Read the adapter in `folder` for a `config` model; its tensors stay memory-mapped.

    Raises ModelFileError, naming what was found and what is allowed, if a file is missing or corrupt, needs more than
    plain LoRA (`AdapterConfig`), or has a tensor that does not fit the model.
    """
    settings = read_adapter_config(folder)
    if not (folder / WEIGHTS_FILE).is_file():
        raise ModelFileError(f"{folder} has no {WEIGHTS_FILE}; adapters are read only from safetensors")
    file = SafetensorsFile(folder / WEIGHTS_FILE)
    pairs = _pairs(file, config)
    layers: list[dict[str, LowRank]] = [{} for _ in range(config.num_layers)]
    for (layer, name), (module, halves) in pairs.items():
        layers[layer][name] = _low_rank(file, module, halves, adapter_targets(config)[name], settings)
    _check_complete(folder, settings, layers)
    return Adapter(folder, _digest(folder), layers)


def _pairs(file: SafetensorsFile, config: ModelConfig) -> dict[tuple[int, str], tuple[str, dict[str, str]]]:
    """Maps (block, module name) to the module's path and its tensors' names by "A" and "B"."""
    allowed = adapter_targets(config)
    pairs: dict[tuple[int, str], tuple[str, dict[str, str]]] = {}
    for tensor in file:
        match = _NAME.fullmatch(tensor)
        if match is None or match[4] not in allowed or allowed[match[4]].parent != match[3]:
            raise ModelFileError(
                f"{file.path}: tensor '{tensor}' is not supported; supported is LoRA of "
                f"{', '.join(allowed)} in model.layers"
            )
        module, layer, _, name, half = match.groups()
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
        raise ModelFileError(f"{file.path}: {module} has only lora_{next(iter(halves))}; both A and B are needed")
    rank, scale = settings.rank_of(module), settings.scale_of(module)
    if rank > MAX_RANK:
        raise ModelFileError(f"{file.path}: {module} has rank {rank}; supported are ranks up to {MAX_RANK}")
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
    """Raises ModelFileError if a module that `target_modules` names has no tensors."""
    named = settings.target_modules if isinstance(settings.target_modules, list) else []
    present = {name for layer in layers for name in layer}
    for module in named:
        if module.rpartition(".")[2] not in present:
            raise ModelFileError(
                f"{folder}: target_modules names {module!r}, but {WEIGHTS_FILE} holds no tensors of it (only of "
                f"{', '.join(sorted(present))})"
            )


def _digest(folder: Path) -> bytes:
    digests = [file_fingerprint(folder / name) for name in (CONFIG_FILE, WEIGHTS_FILE)]
    return blake2b("/".join(digests).encode(), digest_size=16).digest()
