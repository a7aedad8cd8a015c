"""A tiny random Llama folder with a tokeniser of single bytes; a few channels of its activations are outliers."""

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from inference_core.loaders.huggingface.hf_config import read_config
from inference_core.model_config import ModelConfig

HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 64, 128, 2, 4, 2, 16
END = "<|end|>"
TEXT = (
    "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness, "
    "it was the epoch of belief, it was the epoch of incredulity, it was the season of Light. "
) * 4


def alphabet() -> list[str]:
    """The 256 characters that stand for bytes, and an end token."""
    return [*sorted(pre_tokenizers.ByteLevel.alphabet()), END]


def weights(seed: int = 0) -> dict[str, torch.Tensor]:
    """Random weights in float32 under Hugging Face names."""
    rng = np.random.default_rng(seed)
    vocab = len(alphabet())

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.from_numpy(rng.standard_normal((rows, columns), np.float32) / np.float32(np.sqrt(columns)))

    def norm() -> torch.Tensor:
        scale = np.exp(rng.normal(0, 0.3, HIDDEN)).astype(np.float32)
        scale[rng.choice(HIDDEN, 3, replace=False)] *= 5  # What makes outliers of activations.
        return torch.from_numpy(scale)

    tensors = {"model.embed_tokens.weight": matrix(vocab, HIDDEN) * 8, "model.norm.weight": torch.ones(HIDDEN)}
    tensors["lm_head.weight"] = matrix(vocab, HIDDEN) * 3
    for i in range(LAYERS):
        prefix = f"model.layers.{i}."
        tensors |= {
            prefix + "input_layernorm.weight": norm(),
            prefix + "self_attn.q_proj.weight": matrix(HEADS * HEAD_DIM, HIDDEN) / 4,
            prefix + "self_attn.k_proj.weight": matrix(KV_HEADS * HEAD_DIM, HIDDEN),
            prefix + "self_attn.v_proj.weight": matrix(KV_HEADS * HEAD_DIM, HIDDEN),
            prefix + "self_attn.o_proj.weight": matrix(HIDDEN, HEADS * HEAD_DIM),
            prefix + "post_attention_layernorm.weight": norm(),
            prefix + "mlp.gate_proj.weight": matrix(INNER, HIDDEN),
            prefix + "mlp.up_proj.weight": matrix(INNER, HIDDEN),
            prefix + "mlp.down_proj.weight": matrix(HIDDEN, INNER),
        }
    return tensors


def write_tiny_model(folder: Path, seed: int = 0) -> Path:
    """A folder as Hugging Face has them, weights in float32."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(alphabet()),
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e4,
        "tie_word_embeddings": False,
        "eos_token_id": alphabet().index(END),
    }
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer(BPE({token: i for i, token in enumerate(alphabet())}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": END}))
    save_file(weights(seed), folder / "model.safetensors")
    return folder


def tiny_config(folder: Path) -> ModelConfig:
    """The settings of `write_tiny_model`'s folder."""
    return read_config(folder)
