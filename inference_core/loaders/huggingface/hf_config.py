"""Reads a Hugging Face config.json as ModelConfig, with transformers' defaults; unsupported settings are refused.

What transformers makes of a file is in a table: the defaults of its classes, and the keys that change their logits. It
was made from those classes, so that serving imports none of them; a test makes it again and compares.
"""

import logging
import math
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast, get_args

import msgspec

from inference_core.errors import ModelFileError
from inference_core.io.files import JSON_ERRORS, prepare_types
from inference_core.loaders.huggingface.hf_quantization import LayerFormat, Sparsity, layer_format, sparsity
from inference_core.loaders.model_file import MAX_SETTINGS, read_model_file
from inference_core.loaders.rope_scaling import Rope, max_context, read_ropes, rope_scaling
from inference_core.model_config import (
    Activation,
    Architecture,
    AttentionFeatures,
    ExpertMixture,
    ModelConfig,
    RotaryEmbedding,
)

log = logging.getLogger(__name__)

TABLE = Path(__file__).with_name("transformers_configs.json")

T = TypeVar("T")
ARCHITECTURES: tuple[Architecture, ...] = get_args(Architecture)
_GEMMAS = ("gemma2", "gemma3_text")
_MIXTURES = ("mixtral", "qwen3_moe", "gpt_oss")
# What a file of gpt-oss that has no rotary settings means.
_GPT_OSS_ROPE = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "truncate": False}
# Settings that change the computation, and the architectures for which they are read. Elsewhere a file that sets one
# to anything but a neutral value is refused: its answers would be wrong.
COMPUTATION: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("embedding_multiplier", "residual_multiplier", "attention_multiplier"), ("granite",)),
    **dict.fromkeys(("num_experts", "num_local_experts"), _MIXTURES),
    "moe_intermediate_size": ("qwen3_moe",),
    # Gemma 3's class has the first one, and its attention does without.
    "attn_logit_softcapping": ("gemma2",),
    "final_logit_softcapping": _GEMMAS,
    **dict.fromkeys(("swiglu_alpha", "swiglu_limit"), ("gpt_oss",)),
    "logits_scaling": ("granite",),
    "no_rope_layers": ("smollm3",),
    "partial_rotary_factor": ("phi3",),
    "sliding_window": ("mistral", "qwen2", "qwen3", "phi3", "smollm3", "mixtral", "qwen3_moe", "gpt_oss", *_GEMMAS),
    **dict.fromkeys(
        ("attention_chunk_size", "clip_qkv", "kv_lora_rank", "logit_scale", "n_routed_experts",
         "parallel_attn", "q_lora_rank", "qk_layernorm", "use_qk_norm"),
        (),
    ),
}  # fmt: skip
_ACTIVATIONS: dict[str, Activation] = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu-tanh"}


class Keys(msgspec.Struct, frozen=True):
    """The keys of one architecture."""

    defaults: dict[str, Any]
    """Default values by key; None where the class derives the value."""
    effective: frozenset[str]
    """Keys that change logits, or what the class accepts."""
    without_effect: frozenset[str]
    """Keys that change nothing."""


class _Table(msgspec.Struct):
    ignored: frozenset[str]
    architectures: dict[str, Keys]


def keys_of(architecture: str) -> Keys:
    return _table().architectures[architecture]


def ignored_keys() -> frozenset[str]:
    """Return keys that all classes have and that change no logits: of generation, of the file itself, of training."""
    return _table().ignored


@cache
def _table() -> _Table:
    return msgspec.json.decode(TABLE.read_bytes(), type=_Table)


class _Config(msgspec.Struct):
    """The keys of config.json that affect the computation. Defaults are those of no class: see `Keys`."""

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    tie_word_embeddings: bool
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    rope_local_base_freq: float | None = None
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    original_max_position_embeddings: int | None = None
    partial_rotary_factor: float | None = None
    no_rope_layers: list[int] | None = None
    no_rope_layer_interval: int = 0
    attention_bias: bool = False
    mlp_bias: bool = False
    hidden_act: str | None = None
    hidden_activation: str | None = None
    use_sliding_window: bool = False
    sliding_window: int | None = None
    sliding_window_pattern: int | None = None
    layer_types: list[str] | None = None
    query_pre_attn_scalar: float = 0.0
    attn_logit_softcapping: float | None = None
    final_logit_softcapping: float | None = None
    use_bidirectional_attention: bool | None = None
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    attention_multiplier: float = 1.0
    logits_scaling: float = 1.0
    num_local_experts: int | None = None
    num_experts: int | None = None
    num_experts_per_tok: int = 0
    moe_intermediate_size: int | None = None
    norm_topk_prob: bool = False
    decoder_sparse_step: int = 1
    mlp_only_layers: list[int] = []
    swiglu_alpha: float = 1.702
    swiglu_limit: float = 7.0
    bos_token_id: int | None = None
    quantization_config: dict[str, Any] | None = None

    @property
    def activation(self) -> str:
        """The activation's name, by either of its keys."""
        return self.hidden_activation or self.hidden_act or ""


class _Quantised(msgspec.Struct):
    quantization_config: dict[str, Any] | None = None


class _EndTokens(msgspec.Struct):
    eos_token_id: int | list[int] | None = None


prepare_types(_Config, _EndTokens, _Quantised, _Table)


def read_config(folder: Path) -> ModelConfig:
    """Read `folder`/config.json, with the end tokens of generation_config.json if it names any."""
    file = folder / "config.json"
    stated = _decode(file, dict[str, Any])
    config = _config(file, stated)
    _refuse_unsupported(file, config, stated)
    kind, heads = config.model_type, config.num_attention_heads
    head_dim = config.head_dim or config.hidden_size // max(heads, 1)
    rope = _rope(file, config, head_dim)
    residual = _positive(file, "residual_multiplier", config.residual_multiplier)
    return ModelConfig(
        architecture=cast(Architecture, kind),
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.moe_intermediate_size or config.intermediate_size,
        num_layers=config.num_hidden_layers,
        num_heads=heads,
        num_kv_heads=config.num_key_value_heads or heads,
        head_dim=head_dim,
        max_position=max_context(file, rope.scaling, config.max_position_embeddings),
        # What is added to a stream that is divided by Granite's residual multiplier needs no multiplier, and norms of
        # it differ in this number alone.
        rms_eps=config.rms_norm_eps / residual**2,
        rope=rope,
        attention=_attention(file, config),
        experts=_experts(config) if kind in _MIXTURES else None,
        tie_embeddings=config.tie_word_embeddings,
        embedding_scale=_embedding_scale(config) / residual,
        activation="clamped-swiglu" if kind == "gpt_oss" else _ACTIVATIONS[config.activation],
        swiglu_alpha=config.swiglu_alpha,
        swiglu_limit=config.swiglu_limit,
        pre_norm=kind != "olmo2",
        post_norm=kind in ("olmo2", *_GEMMAS),
        final_softcap=config.final_logit_softcapping,
        bos_token_id=config.bos_token_id,
        eos_token_ids=end_token_ids(folder),
    )


def _rope(file: Path, config: _Config, head_dim: int) -> RotaryEmbedding:
    rope, local = read_ropes(file, _rope_settings(config))
    # Where each kind of layers has its own settings, the key of the whole model has no effect.
    original = config.original_max_position_embeddings if local is None else None
    return RotaryEmbedding(
        theta=rope.rope_theta or config.rope_theta,
        scaling=rope_scaling(file, rope, config.max_position_embeddings, original),
        dim=_rotary_dim(file, rope.partial_rotary_factor or config.partial_rotary_factor, head_dim),
        local_theta=_local_theta(config, local) if config.model_type == "gemma3_text" else None,
        skipped_layers=_no_rope_layers(config) if config.model_type == "smollm3" else (),
    )


def _attention(file: Path, config: _Config) -> AttentionFeatures:
    kind = config.model_type
    gpt_oss, has_window = kind == "gpt_oss", kind in ("mistral", "mixtral", "phi3", "gpt_oss", *_GEMMAS)
    return AttentionFeatures(
        qkv_bias=kind == "qwen2" or (gpt_oss and config.attention_bias),
        output_bias=gpt_oss and config.attention_bias,
        qk_norm=kind in ("qwen3", "qwen3_moe", "olmo2", "gemma3_text"),
        qk_norm_whole=kind == "olmo2",
        sliding_window=config.sliding_window if has_window else None,
        window_layers=_window_layers(file, config),
        scale=_attention_scale(file, config),
        sinks=gpt_oss,
        softcap=config.attn_logit_softcapping,
    )


def _experts(config: _Config) -> ExpertMixture:
    kind = config.model_type
    return ExpertMixture(
        count=config.num_local_experts or config.num_experts or 8,
        per_token=config.num_experts_per_tok,
        normalised=kind in ("mixtral", "gpt_oss") or config.norm_topk_prob,
        has_bias=kind == "gpt_oss",
    )


def _embedding_scale(config: _Config) -> float:
    return math.sqrt(config.hidden_size) if config.model_type in _GEMMAS else config.embedding_multiplier


def _rope_settings(config: _Config) -> dict[str, Any]:
    """The older key has the last word, as in transformers."""
    usual = _GPT_OSS_ROPE if config.model_type == "gpt_oss" else {}
    return config.rope_scaling or config.rope_parameters or usual


def logits_divisor(folder: Path) -> float:
    """What the logits of the folder's model are divided by (Granite)."""
    file = folder / "config.json"
    return _positive(file, "logits_scaling", _config(file, _decode(file, dict[str, Any])).logits_scaling)


def norm_offset(config: ModelConfig) -> float:
    """What Gemma adds to the weights of its norms as its folders have them."""
    return 1.0 if config.architecture in ("gemma2", "gemma3_text") else 0.0


def _attention_scale(file: Path, config: _Config) -> float | None:
    if config.model_type == "granite":
        return _positive(file, "attention_multiplier", config.attention_multiplier)
    if config.model_type in _GEMMAS:
        return 1.0 / math.sqrt(_positive(file, "query_pre_attn_scalar", config.query_pre_attn_scalar))
    return None


def _positive(file: Path, name: str, value: float) -> float:
    if not 0 < value < math.inf:
        raise ModelFileError(f"{file}: {name} is {value}; it must be a positive number")
    return value


def _window_layers(file: Path, config: _Config) -> tuple[int, ...] | None:
    """The layers with a window, where only some have one."""
    by_layer = (*_GEMMAS, "gpt_oss") if config.layer_types is None else (*_GEMMAS, "gpt_oss", "mistral")
    if config.model_type not in by_layer:
        return None
    layers = range(config.num_hidden_layers)
    if config.layer_types is not None:
        other = set(config.layer_types) - {"sliding_attention", "full_attention"}
        if other or len(config.layer_types) != len(layers):
            raise ModelFileError(f"{file}: layer_types must name sliding_attention or full_attention for every layer")
        return tuple(i for i in layers if config.layer_types[i] == "sliding_attention")
    pattern = config.sliding_window_pattern or (6 if config.model_type == "gemma3_text" else 2)
    return tuple(i for i in layers if (i + 1) % pattern)


def _local_theta(config: _Config, local: Rope | None) -> float:
    return (local.rope_theta if local is not None else None) or config.rope_local_base_freq or 10000.0


def _no_rope_layers(config: _Config) -> tuple[int, ...]:
    """SmolLM3's list has 1 for the layers that rotate."""
    layers = range(config.num_hidden_layers)
    if config.no_rope_layers is not None:
        return tuple(i for i in layers if i < len(config.no_rope_layers) and not config.no_rope_layers[i])
    return tuple(i for i in layers if not (i + 1) % config.no_rope_layer_interval)


def _rotary_dim(file: Path, factor: float | None, head_dim: int) -> int | None:
    if factor is None or factor == 1.0:
        return None
    size = int(head_dim * factor)
    if size < 2 or size % 2 or size > head_dim:
        raise ModelFileError(f"{file}: a partial_rotary_factor of {factor} rotates {size} of {head_dim} numbers")
    return size


def read_layer_format(folder: Path) -> LayerFormat | None:
    """The quantisation format of the folder's linear layers, None if unquantised."""
    file = folder / "config.json"
    return layer_format(file, _decode(file, _Quantised).quantization_config)


def read_sparsity(folder: Path) -> Sparsity:
    """What the folder's settings say of zeros in its weights."""
    file = folder / "config.json"
    return sparsity(file, _decode(file, _Quantised).quantization_config)


def _config(file: Path, stated: dict[str, Any]) -> _Config:
    """What a file states, with the defaults of its architecture's class."""
    kind = stated.get("model_type")
    if kind not in ARCHITECTURES:
        raise ModelFileError(
            f"{file}: model_type {kind!r} is not supported; supported are {', '.join(ARCHITECTURES)}. "
            'An installed program may serve it: engine = "vllm" in the catalogue'
        )
    # null stands for a default where nothing else would be possible.
    values = (keys_of(kind).defaults, stated)
    merged = {n: value for table in values for n, value in table.items() if value is not None or n in _nullable()}
    try:
        return msgspec.convert(_with_whole_numbers(merged), _Config)
    except JSON_ERRORS as error:
        raise ModelFileError(f"{file} cannot be read: {error}") from error


def _is_neutral(value: Any) -> bool:
    """Whether a setting with this value does nothing: a number that multiplies, or anything that is off."""
    return value is None or value is False or value == [] or (not isinstance(value, bool) and value in (0, 1.0))


@cache
def _nullable() -> frozenset[str]:
    fields = msgspec.structs.fields(_Config)
    return frozenset(field.name for field in fields if type(None) in get_args(field.type))


def _with_whole_numbers(values: dict[str, Any]) -> dict[str, Any]:
    """Numbers such as 32.0 as the whole numbers that they are: settings of both kinds are read from them."""
    return {
        name: int(value) if isinstance(value, float) and value.is_integer() else value for name, value in values.items()
    }


def _refuse_unsupported(file: Path, config: _Config, stated: dict[str, Any]) -> None:
    kind, read = config.model_type, _Config.__struct_fields__
    keys = keys_of(kind)
    for key, value in stated.items():
        foreign = key in COMPUTATION and kind not in COMPUTATION[key]
        unread = key in keys.effective and key not in read
        if (foreign or unread) and not _is_neutral(value) and value != keys.defaults.get(key):
            raise ModelFileError(f"{file}: {key} = {value!r} is not supported for {kind}")
    known_keys = {*read, *COMPUTATION, *keys.defaults, *keys.effective, *keys.without_effect, *ignored_keys()}
    if unknown := sorted(stated.keys() - known_keys):
        log.warning("%s: unknown to this version and to transformers' %s: %s", file, kind, ", ".join(unknown))
    other_layers = set(config.layer_types or ()) - {"full_attention"}
    unsupported = {
        f"layer_types {', '.join(sorted(other_layers))}": other_layers
        and kind not in (*_GEMMAS, "mistral", "gpt_oss")
        # Layers of one type are what the window alone says, too.
        and not (kind in ("mixtral", "phi3") and set(config.layer_types or ()) == {"sliding_attention"}),
        "partial_rotary_factor": kind != "phi3"
        and _rope_settings(config).get("partial_rotary_factor") not in (None, 1.0),
        "attention_bias": config.attention_bias and kind != "gpt_oss",
        "mlp_bias": config.mlp_bias,
        "use_sliding_window": config.use_sliding_window,
        "num_experts that differs from num_local_experts": kind in _MIXTURES
        and len({stated[key] for key in ("num_experts", "num_local_experts") if stated.get(key)}) > 1,
        "a mixture of experts in some layers": kind in _MIXTURES
        and bool(config.mlp_only_layers or config.decoder_sparse_step != 1),
        "use_bidirectional_attention": bool(config.use_bidirectional_attention),
        f"hidden_act '{config.activation}'": config.activation not in _ACTIVATIONS,
    }
    for setting, present in unsupported.items():
        if present:
            raise ModelFileError(f"{file}: {setting} is not supported for {kind}")


def end_token_ids(folder: Path) -> tuple[int, ...]:
    """Ids that end a generation: generation_config.json's if it names any, else config.json's, else ()."""
    for file in (folder / "generation_config.json", folder / "config.json"):
        ids = _decode(file, _EndTokens).eos_token_id if file.exists() else None
        if ids is not None:
            return (ids,) if isinstance(ids, int) else tuple(ids)
    return ()


def _decode(file: Path, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(read_model_file(file, MAX_SETTINGS), type=kind)
    except ModelFileError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise ModelFileError(f"{file.parent} has no {file.name}; it is not a Hugging Face model folder") from error
        raise
    except JSON_ERRORS as error:
        raise ModelFileError(f"{file} cannot be read: {error}") from error
