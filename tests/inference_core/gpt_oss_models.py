"""Small gpt-oss models with random weights: as transformers saves them, with experts in MXFP4, and as a GGUF file with
the names that the `gguf` package's converter gives."""

import copy
import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from gguf import GGUFWriter
from gguf.quants import quantize
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

LAYERS, EXPERTS = 3, 4
YARN = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64,
    "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
}  # fmt: skip


def config(**changes: Any) -> transformers.GptOssConfig:
    shape = {
        "vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": LAYERS,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256,
        "num_local_experts": EXPERTS, "num_experts_per_tok": 2, "sliding_window": 20, "rope_parameters": YARN,
    }  # fmt: skip
    return transformers.GptOssConfig(**(shape | changes))


def random_model(settings: transformers.GptOssConfig, seed: int = 7) -> transformers.PreTrainedModel:
    """A model in float32, every parameter random, so that a misplaced one shows, and a bfloat16; experts' weights are
    numbers that MXFP4 has."""
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(settings, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_((torch.randn_like(parameter) * 0.2 + (1.0 if "norm" in name else 0.0)).bfloat16())
            if name.endswith(("gate_up_proj", "down_proj")):
                exact = gguf.quants.dequantize(blocks_of(parameter), gguf.GGMLQuantizationType.MXFP4)
                parameter.copy_(torch.from_numpy(exact).transpose(1, 2))
    return model


def blocks_of(weights: torch.Tensor) -> NDArray[np.uint8]:
    """MXFP4 in GGML's order, uint8 [experts, outputs, inputs / 32 * 17], of weights [experts, inputs, outputs]."""
    rows = weights.detach().transpose(1, 2).contiguous().numpy()
    blocks: NDArray[np.uint8] = quantize(rows, gguf.GGMLQuantizationType.MXFP4)
    return blocks


def save_in_bfloat16(model: transformers.PreTrainedModel, folder: Path) -> None:
    # A copy, since a model that becomes bfloat16 rounds its rotary table, too.
    copy.deepcopy(model).to(torch.bfloat16).save_pretrained(folder)


def save_in_mxfp4(model: transformers.PreTrainedModel, folder: Path) -> None:
    """As OpenAI's folders are: bfloat16, and experts' weights as blocks and scales, neighbours sharing a byte."""
    save_in_bfloat16(model, folder)
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        packed = blocks_of(tensors.pop(name).float())
        blocks = packed.reshape(*packed.shape[:2], -1, 17)
        codes = np.concatenate([blocks[..., 1:] & 15, blocks[..., 1:] >> 4], axis=-1)
        pairs = np.ascontiguousarray(codes[..., 0::2] | codes[..., 1::2] << 4)
        tensors[f"{name}_blocks"] = torch.from_numpy(pairs)
        tensors[f"{name}_scales"] = torch.from_numpy(np.ascontiguousarray(blocks[..., 0]))
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    settings = json.loads((folder / "config.json").read_text())
    settings["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
    (folder / "config.json").write_text(json.dumps(settings))


def save_as_gguf(model: transformers.PreTrainedModel, path: Path, settings: dict[str, Any] | None = None) -> None:
    """As llama.cpp converts it: gate and up apart, experts' weights in MXFP4, everything else in float32."""
    given = model.config
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GPT_OSS, LAYERS)
    writer = GGUFWriter(path, "gpt-oss")
    writer.add_block_count(LAYERS)
    writer.add_context_length(given.max_position_embeddings)
    writer.add_embedding_length(given.hidden_size)
    writer.add_feed_forward_length(given.intermediate_size)
    writer.add_expert_feed_forward_length(given.intermediate_size)
    writer.add_head_count(given.num_attention_heads)
    writer.add_head_count_kv(given.num_key_value_heads)
    writer.add_key_length(given.head_dim)
    writer.add_value_length(given.head_dim)
    writer.add_layer_norm_rms_eps(given.rms_norm_eps)
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(given.num_experts_per_tok)
    writer.add_sliding_window(given.sliding_window)
    writer.add_rope_freq_base(YARN["rope_theta"])
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(YARN["factor"])
    writer.add_rope_scaling_orig_ctx_len(YARN["original_max_position_embeddings"])
    for name, parameter in model.named_parameters():
        for stored, values in _split(name, parameter.detach()):
            stem, _, leaf = stored.rpartition(".")
            own = names.get_name(stem)
            assert own is not None, f"the gguf package knows no {stem}"
            if values.dim() == 3:
                packed = quantize(values.contiguous().numpy(), gguf.GGMLQuantizationType.MXFP4)
                writer.add_tensor(f"{own}.{leaf}", packed, raw_dtype=gguf.GGMLQuantizationType.MXFP4)
            else:
                writer.add_tensor(f"{own}.{leaf}", values.float().contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _split(name: str, values: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    """The converter's tensors of one of transformers': [experts, outputs, inputs] for weights of experts."""
    if name.endswith("sinks"):
        return [(f"{name}.weight", values)]
    if ".experts." not in name:
        return [(name, values)]
    leaf = "bias" if name.endswith("_bias") else "weight"
    stem, rows = name.removesuffix("_bias"), values if leaf == "bias" else values.transpose(1, 2)
    if stem.endswith("down_proj"):
        return [(f"{stem}.{leaf}", rows)]
    return [
        (stem.replace("gate_up_proj", p) + f".{leaf}", rows[:, i::2]) for i, p in enumerate(("gate_proj", "up_proj"))
    ]
