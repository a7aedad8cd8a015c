"""A Hugging Face config.json to ModelConfig, with transformers' defaults, refusing what is not supported."""

from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec

from inference_core.errors import ModelFileError
from inference_core.io.json_errors import JSON_ERRORS
from inference_core.loaders.huggingface.hf_quantization import LayerFormat, layer_format
from inference_core.model_config import Architecture, ModelConfig, RopeScaling

T = TypeVar("T")
ARCHITECTURES: tuple[Architecture, ...] = ("llama", "mistral", "qwen2", "qwen3")


class _Rope(msgspec.Struct):
    """`rope_scaling` of older files, `rope_parameters` of newer ones (which moved theta into it)."""

    rope_type: str | None = None
    type: str | None = None
    rope_theta: float | None = None
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192


class _Config(msgspec.Struct):
    """The keys of config.json that decide the computation."""

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    max_position_embeddings: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    rms_norm_eps: float = 1e-6
    rope_theta: float | None = None
    rope_scaling: _Rope | None = None
    rope_parameters: _Rope | None = None
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    hidden_act: str = "silu"
    use_sliding_window: bool = False
    sliding_window: int | None = None
    bos_token_id: int | None = None
    quantization_config: dict[str, Any] | None = None


class _EndTokens(msgspec.Struct):
    eos_token_id: int | list[int] | None = None


def read_config(folder: Path) -> ModelConfig:
    """`folder`/config.json, with end tokens from generation_config.json where it has them."""
    file = folder / "config.json"
    config = _decode(file, _Config)
    _refuse_unsupported(file, config)
    rope = config.rope_parameters or config.rope_scaling or _Rope()
    heads = config.num_attention_heads
    return ModelConfig(
        architecture=cast(Architecture, config.model_type),
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_layers=config.num_hidden_layers,
        num_heads=heads,
        num_kv_heads=config.num_key_value_heads or heads,
        head_dim=config.head_dim or config.hidden_size // max(heads, 1),
        max_position=config.max_position_embeddings,
        rms_eps=config.rms_norm_eps,
        rope_theta=rope.rope_theta or config.rope_theta or 10000.0,
        rope_scaling=_rope_scaling(file, rope),
        tie_embeddings=config.tie_word_embeddings,
        qkv_bias=config.model_type == "qwen2",
        qk_norm=config.model_type == "qwen3",
        sliding_window=config.sliding_window if config.model_type == "mistral" else None,
        bos_token_id=config.bos_token_id,
        eos_token_ids=end_token_ids(folder),
    )


def read_layer_format(folder: Path) -> LayerFormat | None:
    """How the folder's linear layers are quantised, if they are."""
    file = folder / "config.json"
    return layer_format(file, _decode(file, _Config).quantization_config)


def _refuse_unsupported(file: Path, config: _Config) -> None:
    if config.model_type not in ARCHITECTURES:
        raise ModelFileError(
            f"{file}: model_type '{config.model_type}' is not supported; supported are {', '.join(ARCHITECTURES)}"
        )
    unsupported = {
        "attention_bias": config.attention_bias,
        "mlp_bias": config.mlp_bias,
        "use_sliding_window": config.use_sliding_window,
        f"hidden_act '{config.hidden_act}'": config.hidden_act != "silu",
    }
    for setting, present in unsupported.items():
        if present:
            raise ModelFileError(f"{file}: {setting} is not supported for {config.model_type}")


def _rope_scaling(file: Path, rope: _Rope) -> RopeScaling | None:
    kind = rope.rope_type or rope.type or "default"
    if kind == "default":
        return None
    if kind == "linear":
        return RopeScaling(kind="linear", factor=rope.factor)
    if kind == "llama3":
        return RopeScaling(
            kind="llama3",
            factor=rope.factor,
            low_freq_factor=rope.low_freq_factor,
            high_freq_factor=rope.high_freq_factor,
            original_max_position=rope.original_max_position_embeddings,
        )
    raise ModelFileError(f"{file}: rope scaling '{kind}' is not supported; supported are default, linear and llama3")


def end_token_ids(folder: Path) -> tuple[int, ...]:
    """Ids that end a generation: generation_config.json's if it names any, else config.json's; () if neither does."""
    for file in (folder / "generation_config.json", folder / "config.json"):
        ids = _decode(file, _EndTokens).eos_token_id if file.exists() else None
        if ids is not None:
            return (ids,) if isinstance(ids, int) else tuple(ids)
    return ()


def _decode(file: Path, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except FileNotFoundError as error:
        raise ModelFileError(f"{file.parent} has no {file.name}; it is no Hugging Face model folder") from error
    except (OSError, *JSON_ERRORS) as error:
        raise ModelFileError(f"{file} cannot be read: {error}") from error
