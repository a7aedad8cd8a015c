"""The decoder's logits equal transformers' for every supported architecture, in chunks as in one pass (SPEC KV-11)."""

from pathlib import Path

import pytest
import torch
import transformers

from inference_core.attention import CpuAttention, ReferenceAttention
from inference_core.execution.logits_runner import DecoderRunner, LogitsRunner
from inference_core.execution.native_runner import NativeRunner
from inference_core.loaders.open_checkpoint import open_checkpoint
from inference_core.loading.load_core import layout_of
from inference_core.model_spec import ModelSpec
from inference_core.models.transformer import rotary_table
from inference_core.models.weights import load_decoder
from inference_core.native import cpu
from inference_core.protocol import ModelInfo, SamplingParams
from inference_core.step_plan import SampleSpec, ScheduledSequence

SLAB = 1 << 20
SHAPE = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
# Of 8 frequencies the ramp begins and ends between whole ones.
GPT_OSS_YARN = {**YARN, "beta_fast": 8.0, "beta_slow": 1.0, "truncate": False}
# Of 16 numbers of a head 12 are rotated. Long factors, since the context that is served is longer than 64.
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.75,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
    "long_factor": [1.0, 1.5, 2.0, 3.0, 5.0, 8.0],
}
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
ARCHITECTURES: dict[str, transformers.PretrainedConfig] = {
    "llama": transformers.LlamaConfig(**SHAPE),
    "llama-tied": transformers.LlamaConfig(**{**SHAPE, "tie_word_embeddings": True}),
    "llama-3.1": transformers.LlamaConfig(**SHAPE, rope_parameters=LLAMA3),
    "mistral": transformers.MistralConfig(**SHAPE, sliding_window=20),
    "qwen2": transformers.Qwen2Config(**SHAPE),
    "qwen3": transformers.Qwen3Config(**SHAPE),
    "qwen3-yarn": transformers.Qwen3Config(**SHAPE, rope_parameters=YARN),
    "phi3": transformers.Phi3Config(**SHAPE, **TOKENS, sliding_window=20),
    "phi4-mini": transformers.Phi3Config(**SHAPE, **TOKENS, rope_parameters=LONGROPE),
    "granite": transformers.GraniteConfig(
        **SHAPE, embedding_multiplier=12.0, residual_multiplier=0.22, attention_multiplier=0.1, logits_scaling=8.0
    ),
    "smollm3": transformers.SmolLM3Config(**SHAPE, **TOKENS, no_rope_layer_interval=2),
    "olmo2": transformers.Olmo2Config(**SHAPE, **TOKENS),
    "mixtral": transformers.MixtralConfig(**SHAPE, num_local_experts=4, num_experts_per_tok=2),
    "qwen3-moe": transformers.Qwen3MoeConfig(
        **SHAPE, num_experts=6, num_experts_per_tok=3, moe_intermediate_size=32, norm_topk_prob=False
    ),
    "qwen3-moe-normalised": transformers.Qwen3MoeConfig(
        **SHAPE, num_experts=6, num_experts_per_tok=3, moe_intermediate_size=32, norm_topk_prob=True
    ),
    # With a limit that many numbers reach.
    "gpt-oss": transformers.GptOssConfig(
        **SHAPE,
        num_local_experts=6,
        num_experts_per_tok=3,
        sliding_window=20,
        swiglu_limit=0.7,
        rope_parameters=GPT_OSS_YARN,
    ),
    "gemma2": transformers.Gemma2Config(
        **SHAPE, sliding_window=20, query_pre_attn_scalar=24, attn_logit_softcapping=2.0, final_logit_softcapping=3.0
    ),
    "gemma3": transformers.Gemma3TextConfig(
        **SHAPE, sliding_window=20, layer_types=["sliding_attention", "full_attention", "sliding_attention"]
    ),
}


def checkpoint_folder(name: str, folder: Path) -> transformers.PreTrainedModel:
    """A model with random weights, saved as a Hugging Face folder."""
    torch.manual_seed(7)
    model = transformers.AutoModelForCausalLM.from_config(ARCHITECTURES[name], attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            # Norms and biases start as ones and zeros, which would hide a misplaced one.
            parameter.copy_(torch.randn_like(parameter) * 0.2 + (1.0 if parameter.dim() == 1 else 0.0))
    model.save_pretrained(folder)
    return model


def runner_for(folder: Path, cache: Path, kind: str) -> LogitsRunner:
    spec = ModelSpec(name="m", path=str(folder), compute="float32", kv_dtype="float32")
    checkpoint = open_checkpoint(folder, cache)
    layout, decoder = layout_of(spec, checkpoint.config), load_decoder(checkpoint, "float32", cache)
    arena, cos_sin = torch.empty(SLAB, dtype=torch.uint8), rotary_table(checkpoint.config, 256)
    info = ModelInfo(name="m", model_path="", max_context=256, vocab_size=128, weight_bytes=0, compute="float32")
    if kind == "native":
        native = NativeRunner(info, checkpoint.config, layout, arena, SLAB, cos_sin)
        native.load(decoder)
        return native
    attention = {"operators": CpuAttention, "torch": ReferenceAttention}[kind]
    return DecoderRunner(info, decoder, layout, attention(checkpoint.config, layout, arena, cos_sin), SLAB)


def last_logits(runner: LogitsRunner, tokens: list[int], start: int) -> torch.Tensor:
    """Logits after computing `tokens` at positions from `start` of the one sequence."""
    spec = SampleSpec(SamplingParams(), [], [], 0, 0, ())
    return runner.logits([ScheduledSequence("s", tokens, start, list(range(6)), spec)])[0]


@pytest.mark.parametrize("kind", ["native", "operators", "torch"] if cpu.AVAILABLE else ["torch"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_logits_equal_those_of_transformers(name: str, kind: str, tmp_path: Path) -> None:
    model = checkpoint_folder(name, tmp_path / "model")
    runner = runner_for(tmp_path / "model", tmp_path / "cache", kind)
    tokens = torch.randint(0, 128, (70,), generator=torch.Generator().manual_seed(3)).tolist()
    with torch.no_grad():
        want = model(torch.tensor([tokens])).logits[0].log_softmax(-1)
    for chunk in (70, 32, 1):
        for start in range(0, 70, chunk):
            part = tokens[start : start + chunk]
            got = last_logits(runner, part, start).log_softmax(-1)
            torch.testing.assert_close(got, want[start + len(part) - 1], atol=1e-3, rtol=0)
