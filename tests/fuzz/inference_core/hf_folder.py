"""Hugging Face folders written field by field, so that any field can be made wrong."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e4,
    "tie_word_embeddings": True,
    "eos_token_id": 2,
}
SHAPES: dict[str, list[int]] = {
    "model.embed_tokens.weight": [40, 32],
    "model.norm.weight": [32],
    "model.layers.0.input_layernorm.weight": [32],
    "model.layers.0.self_attn.q_proj.weight": [32, 32],
    "model.layers.0.self_attn.k_proj.weight": [16, 32],
    "model.layers.0.self_attn.v_proj.weight": [16, 32],
    "model.layers.0.self_attn.o_proj.weight": [32, 32],
    "model.layers.0.post_attention_layernorm.weight": [32],
    "model.layers.0.mlp.gate_proj.weight": [48, 32],
    "model.layers.0.mlp.up_proj.weight": [48, 32],
    "model.layers.0.mlp.down_proj.weight": [32, 48],
}


@dataclass(frozen=True)
class HFFolder:
    """`directory` is the JSON of the safetensors file."""

    config: dict[str, Any]
    directory: dict[str, Any]
    data: bytes

    @property
    def safetensors(self) -> bytes:
        header = json.dumps(self.directory).encode()
        return len(header).to_bytes(8, "little") + header + self.data

    def write(self, folder: Path) -> Path:
        """New files each time: a file that is mapped must not change."""
        for name, content in {
            "config.json": json.dumps(self.config).encode(),
            "model.safetensors": self.safetensors,
            "tokenizer.json": TOKENIZER,
        }.items():
            (folder / name).unlink(missing_ok=True)
            (folder / name).write_bytes(content)
        return folder


def intact() -> HFFolder:
    directory: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in SHAPES.items():
        size = 2 * shape[0] * (shape[1] if len(shape) == 2 else 1)
        directory[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    return HFFolder(CONFIG, directory, b"\x80\x3c" * (end // 2))


def _tokenizer() -> bytes:
    letters = {chr(code): code - 65 for code in range(65, 65 + 38)}
    tokenizer = Tokenizer(BPE(letters | {"AB": 38}, [("A", "B")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|im_end|>"])
    return tokenizer.to_str().encode()


TOKENIZER = _tokenizer()
