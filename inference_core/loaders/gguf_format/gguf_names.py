"""The decoder's names for the tensors of GGUF files, and how stacked and interleaved ones are taken apart."""

from collections.abc import Iterable, Mapping

from inference_core.loaders.decoder_tensors import Shape
from inference_core.loaders.tensor_views import View
from inference_core.model_config import ModelConfig

_TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.gate_proj",
    "ffn_up_exps": "mlp.experts.up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
}
_WITH_POST_NORMS = {
    "ffn_norm": "pre_feedforward_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_OWN_NAMES = {
    "phi3": {"ffn_up": "mlp.gate_up_proj"},
    "gpt_oss": {"post_attention_norm": "post_attention_layernorm"},
}
_STACKED = ".mlp.experts."


def hugging_face_name(name: str, config: ModelConfig) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`; an unknown name stays as it is."""
    if name in _TOP_NAMES:
        return _TOP_NAMES[name]
    names = _LAYER_NAMES | (_WITH_POST_NORMS if config.post_norm else {}) | _OWN_NAMES.get(config.architecture, {})
    match name.split("."):
        case ["blk", layer, "attn_sinks", "weight"]:
            return f"model.layers.{layer}.self_attn.sinks"
        case ["blk", layer, part, leaf] if part in names:
            return f"model.layers.{layer}.{names[part]}.{leaf}"
    return name


def is_stacked(name: str) -> bool:
    """Whether a stored tensor has the weights or the biases of all experts of a layer."""
    return _STACKED in name


def expert_views(config: ModelConfig, stacked: Mapping[str, Shape]) -> dict[str, View]:
    """The tensors of single experts: of `stacked` matrices [experts, outputs, inputs], which lie below each other, and
    of biases [experts, outputs]."""
    found = {}
    for name, shape in stacked.items():
        for expert in range(config.num_experts):
            own = name.replace(_STACKED, f"{_STACKED}{expert}.")
            if len(shape) == 2:
                found[own] = View(source=name, item=expert)
            else:
                found[own] = View(source=name, first=expert * shape[1], count=shape[1])
    return found


def interleaved_views(config: ModelConfig, stored: Iterable[str]) -> dict[str, View]:
    """Queries and keys of the architectures whose neighbouring numbers llama.cpp rotates together: its converter
    interleaves the two halves of every head's rows."""
    return {
        name: View(source=name, head_dim=config.head_dim, interleaved=True)
        for name in stored
        if ".q_proj." in name or ".k_proj." in name
    }
