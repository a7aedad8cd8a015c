"""PEFT's adapter_config.json: ranks and scales by layer. Anything beyond plain LoRA is refused."""

import math
import re
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from inference_core.errors import ModelFileError
from inference_core.io.json_errors import JSON_ERRORS
from inference_core.loaders.model_file import MAX_SETTINGS, read_model_file

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
