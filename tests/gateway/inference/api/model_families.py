"""Small random models of many families, as files that a catalogue names, and what transformers answers with each.

To add a family, add a row to `FAMILIES`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from gguf import GGUFReader
from gguf.quants import dequantize
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from tests.inference_core.k_quants import HEAD_DIM, HIDDEN, INNER, LAYERS, q4_k_m, write_k_quants
from tests.inference_core.tiny_gguf import GGUF_NAMES

END = "<|end|>"
MERGES = [("t", "h")]
TOKENS = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *("".join(pair) for pair in MERGES), END]
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
SHAPE: dict[str, Any] = {
    "vocab_size": len(TOKENS),
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": TOKENS.index(END),
    "pad_token_id": TOKENS.index(END),
}
# Shorter than the prompts of tests, so that windows matter.
WINDOW = 20


@dataclass(frozen=True)
class Family:
    """`write` makes the model below a folder and returns what a catalogue names; `read` has transformers load that.
    `compute`: one in which our arithmetic is as exact as transformers'."""

    write: Callable[[Path], Path]
    read: Callable[[Path], transformers.PreTrainedModel]
    compute: str = "float32"
    is_quantised: bool = False


def tokenizer() -> transformers.PreTrainedTokenizerFast:
    """A tokeniser of bytes and one merge, with the chat template."""
    backend = Tokenizer(BPE({token: number for number, token in enumerate(TOKENS)}, MERGES))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([END])
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=END)
    made.chat_template = TEMPLATE
    return made


def folder_of(config: transformers.PretrainedConfig) -> Family:
    """A family of Hugging Face folders with weights in float32."""

    def write(folder: Path) -> Path:
        torch.manual_seed(7)
        model = transformers.AutoModelForCausalLM.from_config(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                # Norms start as ones, which would hide a misplaced one.
                parameter.copy_(torch.randn_like(parameter) * 0.2 + (1.0 if parameter.dim() == 1 else 0.0))
        model.save_pretrained(folder / "model")
        tokenizer().save_pretrained(folder / "model")
        return folder / "model"

    def read(path: Path) -> transformers.PreTrainedModel:
        # Capped scores need the eager implementation.
        return transformers.AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager").eval()

    return Family(write, read)


def write_q4_k_m(folder: Path) -> Path:
    """A Llama file that mixes Q4_K and Q6_K as llama.cpp's recipe Q4_K_M does; its numbers are random codes."""
    vocabulary = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": [3 if token == END else 1 for token in TOKENS],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in MERGES],
        "tokenizer.ggml.eos_token_id": TOKENS.index(END),
        "tokenizer.chat_template": TEMPLATE,
    }
    folder.mkdir(parents=True, exist_ok=True)
    return write_k_quants(folder / "tiny-Q4_K_M.gguf", q4_k_m, len(TOKENS), vocabulary)


def read_gguf(path: Path) -> transformers.PreTrainedModel:
    """transformers' Llama with the weights as the `gguf` package decodes them."""
    names = {short: name for name, short in GGUF_NAMES.items()}
    weights = {}
    for tensor in GGUFReader(path).tensors:
        values = np.array(dequantize(tensor.data, tensor.tensor_type))
        stem, _, leaf = tensor.name.rpartition(".")
        if stem in names:
            name = names[stem]
        else:
            _, layer, part = stem.split(".")
            name = f"model.layers.{layer}.{names[part]}"
        # A head's rows are pairs of neighbours in the file, and halves in transformers.
        heads = {"attn_q": SHAPE["num_attention_heads"], "attn_k": SHAPE["num_key_value_heads"]}.get(
            stem.split(".")[-1]
        )
        if heads is not None:
            values = values.reshape(heads, -1, 2, values.shape[-1]).swapaxes(1, 2).reshape(values.shape)
        weights[f"{name}.{leaf}"] = torch.from_numpy(values)
    config = transformers.LlamaConfig(
        **SHAPE
        | {
            "hidden_size": HIDDEN,
            "intermediate_size": INNER,
            "head_dim": HEAD_DIM,
            "num_hidden_layers": LAYERS,
        },
        rms_norm_eps=1e-5,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    model.load_state_dict(weights)
    return model


FAMILIES: dict[str, Family] = {
    "mixtral": folder_of(transformers.MixtralConfig(**SHAPE, num_local_experts=4, num_experts_per_tok=2)),
    "qwen3-moe": folder_of(
        transformers.Qwen3MoeConfig(
            **SHAPE, num_experts=6, num_experts_per_tok=3, moe_intermediate_size=32, norm_topk_prob=True
        )
    ),
    "gemma2": folder_of(
        transformers.Gemma2Config(
            **SHAPE,
            sliding_window=WINDOW,
            query_pre_attn_scalar=24,
            attn_logit_softcapping=2.0,
            final_logit_softcapping=3.0,
        )
    ),
    "gemma3": folder_of(
        transformers.Gemma3TextConfig(
            **SHAPE,
            sliding_window=WINDOW,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        )
    ),
    "phi3": folder_of(transformers.Phi3Config(**SHAPE, sliding_window=WINDOW)),
    "q4-k-m": Family(write_q4_k_m, read_gguf, compute="int4", is_quantised=True),
}


def greedy(family: Family, path: Path, messages: list[dict[str, str]], count: int) -> list[int]:
    """The tokens that transformers chooses after a conversation, up to the end token or `count`."""
    prompt = tokenizer().apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    model = family.read(path)
    end = TOKENS.index(END)
    with torch.no_grad():
        answer = model.generate(
            torch.tensor([prompt]), max_new_tokens=count, do_sample=False, eos_token_id=end, pad_token_id=end
        )
    tokens: list[int] = answer[0, len(prompt) :].tolist()
    return tokens


def catalogue(models: dict[str, Path]) -> str:
    """The text of a catalogue on the CPU core, of one tier for each model, or two of the only one."""
    lines = ["[core]", "arena_bytes = 33_554_432", "slab_bytes = 1_048_576"]
    for name, path in models.items():
        lines += ["[[core.models]]", f'name = "{name}"', f'path = "{path}"', f'compute = "{FAMILIES[name].compute}"']
        lines += ['kv_dtype = "float32"']
    tiers = {name: name for name in models}
    if len(tiers) == 1:
        tiers |= {"again": next(iter(models))}
    for number, (tier, name) in enumerate(tiers.items(), start=1):
        price = f"{{ input_usd_per_million = {number}, output_usd_per_million = {number} }}"
        lines += ["[[tiers]]", f'name = "{tier}"', f'model = "{name}"', f"price = {price}"]
    unmeasured = [name for name in models if FAMILIES[name].is_quantised]
    return "\n".join([*lines, "[unmeasured]", *(f'"{name}" = "random numbers"' for name in unmeasured)])
