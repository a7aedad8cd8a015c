"""The shapes of well-known models, to plan and measure memory and speed without their files.

As their published config.json files state them.
"""

from inference_core.errors import ModelFileError
from inference_core.model_config import ModelConfig, RopeScaling

_LLAMA3_ROPE = RopeScaling(kind="llama3", factor=8.0)

SHAPES: dict[str, ModelConfig] = {
    "smollm2-135m": ModelConfig(
        architecture="llama", vocab_size=49_152, hidden_size=576, intermediate_size=1536, num_layers=30, num_heads=9,
        num_kv_heads=3, head_dim=64, max_position=8192, rms_eps=1e-5, rope_theta=1e5, tie_embeddings=True,
    ),
    "llama-3.2-1b": ModelConfig(
        architecture="llama", vocab_size=128_256, hidden_size=2048, intermediate_size=8192, num_layers=16,
        num_heads=32, num_kv_heads=8, head_dim=64, max_position=131_072, rms_eps=1e-5, rope_theta=5e5,
        rope_scaling=RopeScaling(kind="llama3", factor=32.0), tie_embeddings=True,
    ),
    "llama-3.2-3b": ModelConfig(
        architecture="llama", vocab_size=128_256, hidden_size=3072, intermediate_size=8192, num_layers=28,
        num_heads=24, num_kv_heads=8, head_dim=128, max_position=131_072, rms_eps=1e-5, rope_theta=5e5,
        rope_scaling=RopeScaling(kind="llama3", factor=32.0), tie_embeddings=True,
    ),
    "mistral-7b": ModelConfig(
        architecture="mistral", vocab_size=32_768, hidden_size=4096, intermediate_size=14_336, num_layers=32,
        num_heads=32, num_kv_heads=8, head_dim=128, max_position=32_768, rms_eps=1e-5, rope_theta=1e6,
    ),
    "qwen2.5-7b": ModelConfig(
        architecture="qwen2", vocab_size=152_064, hidden_size=3584, intermediate_size=18_944, num_layers=28,
        num_heads=28, num_kv_heads=4, head_dim=128, max_position=32_768, rms_eps=1e-6, rope_theta=1e6, qkv_bias=True,
    ),
    "llama-3.1-8b": ModelConfig(
        architecture="llama", vocab_size=128_256, hidden_size=4096, intermediate_size=14_336, num_layers=32,
        num_heads=32, num_kv_heads=8, head_dim=128, max_position=131_072, rms_eps=1e-5, rope_theta=5e5,
        rope_scaling=_LLAMA3_ROPE,
    ),
    "qwen3-0.6b": ModelConfig(
        architecture="qwen3", vocab_size=151_936, hidden_size=1024, intermediate_size=3072, num_layers=28,
        num_heads=16, num_kv_heads=8, head_dim=128, max_position=40_960, rms_eps=1e-6, rope_theta=1e6, qk_norm=True,
        tie_embeddings=True,
    ),
    "qwen3-1.7b": ModelConfig(
        architecture="qwen3", vocab_size=151_936, hidden_size=2048, intermediate_size=6144, num_layers=28,
        num_heads=16, num_kv_heads=8, head_dim=128, max_position=40_960, rms_eps=1e-6, rope_theta=1e6, qk_norm=True,
        tie_embeddings=True,
    ),
    "qwen3-4b": ModelConfig(
        architecture="qwen3", vocab_size=151_936, hidden_size=2560, intermediate_size=9728, num_layers=36,
        num_heads=32, num_kv_heads=8, head_dim=128, max_position=40_960, rms_eps=1e-6, rope_theta=1e6, qk_norm=True,
        tie_embeddings=True,
    ),
    "qwen3-8b": ModelConfig(
        architecture="qwen3", vocab_size=151_936, hidden_size=4096, intermediate_size=12_288, num_layers=36,
        num_heads=32, num_kv_heads=8, head_dim=128, max_position=40_960, rms_eps=1e-6, rope_theta=1e6, qk_norm=True,
    ),
    "qwen3-14b": ModelConfig(
        architecture="qwen3", vocab_size=151_936, hidden_size=5120, intermediate_size=17_408, num_layers=40,
        num_heads=40, num_kv_heads=8, head_dim=128, max_position=40_960, rms_eps=1e-6, rope_theta=1e6, qk_norm=True,
    ),
    "qwen3-32b": ModelConfig(
        architecture="qwen3", vocab_size=151_936, hidden_size=5120, intermediate_size=25_600, num_layers=64,
        num_heads=64, num_kv_heads=8, head_dim=128, max_position=40_960, rms_eps=1e-6, rope_theta=1e6, qk_norm=True,
    ),
    "llama-3.3-70b": ModelConfig(
        architecture="llama", vocab_size=128_256, hidden_size=8192, intermediate_size=28_672, num_layers=80,
        num_heads=64, num_kv_heads=8, head_dim=128, max_position=131_072, rms_eps=1e-5, rope_theta=5e5,
        rope_scaling=_LLAMA3_ROPE,
    ),
    "llama-3.1-405b": ModelConfig(
        architecture="llama", vocab_size=128_256, hidden_size=16_384, intermediate_size=53_248, num_layers=126,
        num_heads=128, num_kv_heads=8, head_dim=128, max_position=131_072, rms_eps=1e-5, rope_theta=5e5,
        rope_scaling=_LLAMA3_ROPE,
    ),
}  # fmt: skip


def shape(name: str) -> ModelConfig:
    """The shape of a model. Raises ModelFileError with the known names."""
    if name not in SHAPES:
        raise ModelFileError(f"no shape '{name}'; known are {', '.join(SHAPES)}")
    return SHAPES[name]
