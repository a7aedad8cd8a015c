"""Hugging Face folders written field by field, so that any field can be made wrong."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
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
OPTIONAL = ["head_dim", "rope_scaling", "rope_parameters", "sliding_window", "bos_token_id", "quantization_config"]
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
    """`directory` is the JSON of the safetensors file; `length` what its first eight bytes claim (None: the truth)."""

    config: dict[str, Any]
    directory: dict[str, Any]
    data: bytes
    length: int | None = None

    @property
    def safetensors(self) -> bytes:
        header = json.dumps(self.directory).encode()
        return (len(header) if self.length is None else self.length).to_bytes(8, "little") + header + self.data

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

_numbers = (
    st.integers(-3, 100)
    | st.sampled_from([2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**63, 2**64, 10**30, -(2**63), -(10**30)])
    | st.sampled_from([0.0, 0.5, -1.0, 1e-300, 1e300])
)
json_values = st.recursive(
    st.none() | st.booleans() | _numbers | st.text(max_size=6) | st.sampled_from(["linear", "llama3", "F32", "I8"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.text(max_size=4) | st.sampled_from(["rope_type", "factor", "rope_theta", "dtype", "shape"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


@st.composite
def damaged(draw: st.DrawFn) -> HFFolder:
    """An intact folder with one to three fields replaced by anything that JSON can hold."""
    folder = intact()
    for _ in range(draw(st.integers(1, 3))):
        match draw(st.sampled_from(["config", "config", "entry", "entry", "entry", "row", "length", "data"])):
            case "config":
                key = draw(st.sampled_from([*CONFIG, *OPTIONAL]))
                folder = replace(folder, config=folder.config | {key: draw(json_values | _numbers)})
            case "entry":
                name = draw(st.sampled_from(list(SHAPES)))
                field = draw(st.sampled_from(["dtype", "shape", "data_offsets"]))
                entry = folder.directory.get(name)
                if isinstance(entry, dict):
                    entry = entry | {field: draw(json_values | st.lists(_numbers, max_size=12))}
                    folder = replace(folder, directory=folder.directory | {name: entry})
            case "row":
                name = draw(st.sampled_from(["__metadata__", "lm_head.weight", *SHAPES]))
                folder = replace(folder, directory=folder.directory | {name: draw(json_values)})
            case "length":
                folder = replace(folder, length=draw(st.integers(0, 2**64 - 1)))
            case _:
                folder = replace(folder, data=draw(st.binary(max_size=64)) + folder.data[draw(st.integers(0, 4096)) :])
    return folder
