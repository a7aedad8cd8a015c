"""GGUF files of every architecture compute what transformers computes with the weights that the files hold."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import save_file

from inference_core.errors import ModelFileError
from inference_core.execution.logits_runner import LogitsRunner
from inference_core.loaders.open_checkpoint import open_checkpoint
from inference_core.loaders.packed_tensor import dequantize
from inference_core.loading.load_core import load_core
from inference_core.model_spec import Compute, CoreSpec, ModelSpec
from inference_core.native import cpu
from quality.evaluation.model_outputs import Side, Variant, window_outputs
from tests.inference_core import gpt_oss_models
from tests.inference_core.gguf_export import export, folder_tensors, rounded
from tests.inference_core.loaders.tensor_parts import check_parts
from tests.inference_core.models.test_decoder_against_transformers import (
    LONGROPE,
    SHAPE,
    TOKENS,
    YARN,
    last_logits,
    runner_for,
)
from tests.inference_core.parallel.meshes import greedy_answers
from tests.inference_core.tiny_gguf import LAYERS, decoder_weights, write_gguf

pytestmark = pytest.mark.models
TIED: dict[str, Any] = {**SHAPE, "tie_word_embeddings": True}
MODELS: dict[str, transformers.PretrainedConfig] = {
    "llama": transformers.LlamaConfig(**SHAPE),
    "qwen3-yarn": transformers.Qwen3Config(**SHAPE, rope_parameters=dict(YARN)),
    "mixtral": transformers.MixtralConfig(**SHAPE, num_local_experts=4, num_experts_per_tok=2),
    "qwen3moe": transformers.Qwen3MoeConfig(
        **SHAPE, num_experts=6, num_experts_per_tok=3, moe_intermediate_size=32, norm_topk_prob=True
    ),
    "phi3": transformers.Phi3Config(**SHAPE, **TOKENS, sliding_window=20),
    "phi4-mini": transformers.Phi3Config(
        **TIED, **TOKENS, original_max_position_embeddings=64, rope_parameters=dict(LONGROPE)
    ),
    "granite": transformers.GraniteConfig(
        **TIED, embedding_multiplier=12.0, residual_multiplier=0.22, attention_multiplier=0.1, logits_scaling=8.0
    ),
    "smollm3": transformers.SmolLM3Config(**{**TIED, "num_hidden_layers": 5}, **TOKENS, no_rope_layer_interval=4),
    "olmo2": transformers.Olmo2Config(**SHAPE, **TOKENS),
    "gemma2": transformers.Gemma2Config(
        **TIED, sliding_window=20, query_pre_attn_scalar=16, attn_logit_softcapping=2.0, final_logit_softcapping=3.0
    ),
    "gemma3": transformers.Gemma3TextConfig(
        **{**TIED, "num_hidden_layers": 7}, sliding_window=20, query_pre_attn_scalar=16
    ),
    "gemma3-listed": transformers.Gemma3TextConfig(
        **TIED,
        sliding_window=20,
        query_pre_attn_scalar=16,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
}


def written(
    name: str, folder: Path, kind_of: Callable[[str], str], config: transformers.PretrainedConfig | None = None
) -> transformers.PreTrainedModel:
    """Write a random model as `folder`/m.gguf; return transformers' model of the weights that the file holds."""
    torch.manual_seed(7)
    config = config or MODELS[name]
    drawn = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for parameter in drawn.parameters():
            # Norms start as ones and zeros, which would hide a misplaced one.
            parameter.copy_(torch.randn_like(parameter) * 0.2 + (1.0 if parameter.dim() == 1 else 0.0))
    drawn.save_pretrained(folder / "drawn")
    tensors = folder_tensors(folder / "drawn")
    held = export(tensors, config, folder / "m.gguf", kind_of, listed=name == "gemma3-listed")
    shutil.copytree(folder / "drawn", folder / "held")
    contents = {key: torch.from_numpy(np.ascontiguousarray(values)) for key, values in held.items()}
    save_file(contents, folder / "held" / "model.safetensors", {"format": "pt"})
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder / "held", attn_implementation="eager", dtype=torch.float32
    ).eval()


def native_kind() -> str:
    return "native" if cpu.AVAILABLE else "torch"


def largest_error(runner: LogitsRunner, model: transformers.PreTrainedModel, tokens: list[int], chunk: int) -> float:
    """Of the log probabilities at the end of every chunk."""
    with torch.no_grad():
        want = model(torch.tensor([tokens])).logits[0].log_softmax(-1)
    errors = []
    for start in range(0, len(tokens), chunk):
        part = tokens[start : start + chunk]
        got = last_logits(runner, part, start).log_softmax(-1)
        errors.append(float((got - want[start + len(part) - 1]).abs().max()))
    return max(errors)


def drawn_tokens(count: int) -> list[int]:
    return torch.randint(3, 128, (count,), generator=torch.Generator().manual_seed(3)).tolist()


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0"])
@pytest.mark.parametrize("name", MODELS)
def test_logits_equal_those_of_transformers_with_the_files_weights(name: str, kind: str, tmp_path: Path) -> None:
    model = written(name, tmp_path, lambda _: kind)
    runner = runner_for(tmp_path / "m.gguf", tmp_path / "cache", native_kind())
    for chunk in (70, 10):
        assert largest_error(runner, model, drawn_tokens(70), chunk) < 1e-3


@pytest.mark.parametrize("name", ["llama", "mixtral", "phi4-mini", "granite", "gemma3"])
def test_parts_of_tensors_are_those_of_the_whole(name: str, tmp_path: Path) -> None:
    written(name, tmp_path, lambda _: "Q8_0")
    checkpoint = open_checkpoint(tmp_path / "m.gguf")
    head_dim = checkpoint.config.head_dim
    for tensor, stored in checkpoint.tensors.items():
        if stored.shape[0] % head_dim == 0 and len(stored.shape) == 2:
            rows = range(head_dim, stored.shape[0])
            np.testing.assert_array_equal(
                dequantize(checkpoint.cut(tensor, rows)), dequantize(stored)[rows.start : rows.stop], err_msg=tensor
            )
    check_parts(checkpoint, "model.embed_tokens.weight")


# As llama.cpp's Q4_K_M: 6 bits for values, for half of the down projections, and for the head.
def q4_k_m(name: str) -> str:
    wide = (
        name == "output.weight" or ".attn_v." in name or (".ffn_down." in name and name.startswith(("blk.0", "blk.2")))
    )
    return "Q6_K" if wide else "Q4_K"


# Of the mean size of a logit. Q6_K is bfloat16 under the first, and 8 bits under the second, as activations are.
BOUNDS: dict[Compute, float] = {"int4": 0.02, "int4-int8": 0.12}
WIDE = {**SHAPE, "hidden_size": 256, "intermediate_size": 512, "head_dim": 64}


@pytest.mark.parametrize("name", ["llama", "qwen3moe", "gemma3"])
def test_a_mixed_q4_k_m_file_answers_as_transformers_does_with_its_weights(name: str, tmp_path: Path) -> None:
    config = {
        "llama": transformers.LlamaConfig(**WIDE),
        "qwen3moe": transformers.Qwen3MoeConfig(
            **WIDE, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=256, norm_topk_prob=True
        ),
        "gemma3": transformers.Gemma3TextConfig(
            **{**WIDE, "num_hidden_layers": 6}, sliding_window=20, query_pre_attn_scalar=64
        ),
    }[name]
    model = written(name, tmp_path, q4_k_m, config)
    model.generation_config.eos_token_id = None
    prompts = [drawn_tokens(count) for count in (40, 7)]
    for prompt in prompts:
        with torch.no_grad():
            answer = model.generate(torch.tensor([prompt]), max_new_tokens=24, do_sample=False)
        expected = answer[0, len(prompt) :].tolist()
        assert greedy(tmp_path, "float32", prompt) == expected
        assert len(set(expected)) > 4, "an answer that repeats a token shows little"
    with torch.no_grad():
        exact = model(torch.tensor([prompts[0]])).logits[0].numpy()
    for compute, bound in BOUNDS.items():
        side = Side(str(tmp_path / "m.gguf"), Variant(compute, "float32"))
        ((_, given),) = window_outputs(side, tmp_path / "cache", [prompts[0]])
        assert np.abs(given - exact).mean() <= bound * np.abs(exact).mean(), compute


def greedy(folder: Path, compute: Compute, prompt: list[int]) -> list[int]:
    spec = ModelSpec(name="m", path=str(folder / "m.gguf"), compute=compute, kv_dtype="float32")
    core = load_core(CoreSpec(models=[spec], arena_bytes=2**24, slab_bytes=2**20), folder / "cache")
    return greedy_answers(core, [prompt], 24)["0"]


@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K"])
def test_the_encoders_of_these_tests_lose_what_their_kinds_lose(kind: str) -> None:
    values = np.random.default_rng(4).normal(0, 1, (8, 512)).astype(np.float32)
    error = np.sqrt(((rounded(values, kind) - values) ** 2).mean())
    assert error < {"Q4_K": 0.09, "Q6_K": 0.03}[kind]


@pytest.mark.parametrize(
    ("architecture", "settings", "reason"),
    [
        ("llama", {"attention.clamp_kqv": 8.0}, r"'llama\.attention\.clamp_kqv' = 8\.0 is not supported"),
        ("llama", {"final_logit_softcapping": 30.0}, r"'llama\.final_logit_softcapping'"),
        ("llama", {"attention.causal": False}, r"'llama\.attention\.causal' = False"),
        ("llama", {"logit_scale": 8.0}, r"'llama\.logit_scale'"),
        ("llama", {"expert_weights_scale": 2.5}, r"'llama\.expert_weights_scale' = 2\.5"),
        ("llama", {"expert_gating_func": 2}, r"'llama\.expert_gating_func' = 2"),
        ("llama", {"use_parallel_residual": True}, r"'llama\.use_parallel_residual' = True"),
        ("llama", {"leading_dense_block_count": 1}, r"'llama\.leading_dense_block_count' = 1"),
        ("llama", {"expert_count": 2**31, "expert_used_count": 2}, "at most 4096 are supported"),
        ("olmo2", {"attention.sliding_window": 64}, r"'olmo2\.attention\.sliding_window' = 64"),
        ("granite", {"rope.scaling.finetuned": False}, r"'granite\.rope\.scaling\.finetuned' = False"),
        ("granite", {"logit_scale": -1.0}, r"'granite\.logit_scale' is -1\.0; it must be positive"),
        ("granite", {"expert_count": 4}, r"'granite\.expert_count' = 4"),
        (
            "gemma3",
            {"attention.sliding_window": 8, "attention.sliding_window_pattern": [True]},
            "1 entries for 2 layers",
        ),
        ("phi3", {"rope.dimension_count": 32}, "heads have 16 dimensions"),
        ("qwen3", {"rope.dimension_count": 8}, "heads have 16 dimensions"),
    ],
)
def test_settings_that_would_compute_something_else_are_refused_by_name(
    tmp_path: Path, architecture: str, settings: dict[str, Any], reason: str
) -> None:
    path = write_gguf(tmp_path / "m.gguf", decoder_weights(), architecture=architecture, settings=settings)
    with pytest.raises(ModelFileError, match=reason):
        open_checkpoint(path)


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        ((3, 96, 64), r"ffn_gate_exps.* is \(3, 96, 64\), but 4 experts need a matrix each"),
        ((4, 80, 64), r"experts\.0\.gate_proj\.weight' has shape \(80, 64\)"),
    ],
)
def test_experts_of_another_number_or_size_than_the_file_says_are_refused(
    shape: tuple[int, ...], reason: str, tmp_path: Path
) -> None:
    weights = {name: values for name, values in decoder_weights().items() if ".mlp." not in name}
    raw = {
        f"blk.{layer}.ffn_{part}_exps.weight": ("F32", np.ones((4, *size), np.float32))
        for layer in range(LAYERS)
        for part, size in (("gate", (96, 64)), ("up", (96, 64)), ("down", (64, 96)))
    }
    raw |= {f"blk.{layer}.ffn_gate_inp.weight": ("F32", np.ones((4, 64), np.float32)) for layer in range(LAYERS)}
    raw["blk.0.ffn_gate_exps.weight"] = ("F32", np.ones(shape, np.float32))
    counts = {"expert_count": 4, "expert_used_count": 2}
    path = write_gguf(tmp_path / "m.gguf", weights, settings=counts, raw=raw)
    with pytest.raises(ModelFileError, match=reason):
        open_checkpoint(path)


def test_parts_of_gpt_oss_and_its_experts_are_those_of_the_whole(tmp_path: Path) -> None:
    gpt_oss_models.save_as_gguf(gpt_oss_models.random_model(gpt_oss_models.config()), tmp_path / "m.gguf")
    checkpoint = open_checkpoint(tmp_path / "m.gguf")
    for tensor, stored in checkpoint.tensors.items():
        rows = range(1, stored.shape[0] - 1)
        np.testing.assert_array_equal(
            dequantize(checkpoint.cut(tensor, rows)), dequantize(stored)[rows.start : rows.stop], err_msg=tensor
        )


def test_gpt_oss_files_with_biases_of_other_experts_are_refused(tmp_path: Path) -> None:
    raw = {"blk.0.ffn_gate_exps.bias": ("F32", np.ones((3, 96), np.float32))}
    counts = {"expert_count": 4, "expert_used_count": 2}
    path = write_gguf(tmp_path / "m.gguf", decoder_weights(), architecture="gpt-oss", settings=counts, raw=raw)
    with pytest.raises(ModelFileError, match=r"ffn_gate_exps\.bias' is \(3, 96\), but 4 experts need a bias each"):
        open_checkpoint(path)
