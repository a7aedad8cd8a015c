"""gpt-oss with experts in MXFP4, as safetensors and as GGUF: exact weights, and transformers' logits from them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from inference_core.errors import ModelFileError
from inference_core.execution.logits_runner import LogitsRunner
from inference_core.execution.native_runner import NativeRunner
from inference_core.linear.panels import int8_codes
from inference_core.loaders.block_formats import MXFP4
from inference_core.loaders.huggingface.hf_config import read_config, read_layer_format
from inference_core.loaders.open_checkpoint import open_checkpoint
from inference_core.loaders.packed_tensor import PackedTensor, dequantize
from inference_core.loading.load_core import layout_of
from inference_core.model_config import ExpertMixture, RopeScaling
from inference_core.model_spec import Compute, ModelSpec
from inference_core.models.transformer import rotary_table
from inference_core.models.weights import load_decoder
from inference_core.native import cpu
from inference_core.protocol import ModelInfo, SamplingParams
from inference_core.step_plan import SampleSpec, ScheduledSequence
from tests.inference_core.gpt_oss_models import (
    EXPERTS,
    LAYERS,
    config,
    random_model,
    save_as_gguf,
    save_in_bfloat16,
    save_in_mxfp4,
)

SLAB = 1 << 20
FORMATS = ["bfloat16", "mxfp4", "gguf"]


def saved(model: transformers.PreTrainedModel, form: str, folder: Path) -> Path:
    if form == "gguf":
        save_as_gguf(model, folder / "m.gguf")
        return folder / "m.gguf"
    (save_in_mxfp4 if form == "mxfp4" else save_in_bfloat16)(model, folder)
    return folder


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_has_the_models_own_weights(form: str, tmp_path: Path) -> None:
    model = random_model(config())
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    checkpoint = open_checkpoint(saved(model, form, tmp_path))

    for layer in range(LAYERS):
        stored, ours = f"model.layers.{layer}.mlp.experts", f"model.layers.{layer}.mlp.experts"
        gate_up, down = weights[f"{stored}.gate_up_proj"], weights[f"{stored}.down_proj"]
        for e in range(EXPERTS):
            for part, want in (
                ("gate_proj", gate_up[e, :, 0::2]), ("up_proj", gate_up[e, :, 1::2]), ("down_proj", down[e]),
            ):  # fmt: skip
                tensor = checkpoint.tensors[f"{ours}.{e}.{part}.weight"]
                assert tensor.kind == ("BF16" if form == "bfloat16" else "MXFP4")
                np.testing.assert_array_equal(dequantize(tensor), want.T.numpy())
            bias = checkpoint.tensors[f"{ours}.{e}.up_proj.bias"]
            want_bias = weights[f"{stored}.gate_up_proj_bias"][e, 1::2]
            np.testing.assert_array_equal(dequantize(bias), want_bias.numpy())
    assert checkpoint.config == open_checkpoint(saved(random_model(config()), "mxfp4", tmp_path / "other")).config


def runner_for(path: Path, cache: Path, compute: Compute) -> LogitsRunner:
    spec = ModelSpec(name="m", path=str(path), compute=compute, kv_dtype="float32")
    checkpoint = open_checkpoint(path, cache)
    layout, decoder = layout_of(spec, checkpoint.config), load_decoder(checkpoint, compute, cache)
    arena, cos_sin = torch.empty(SLAB, dtype=torch.uint8), rotary_table(checkpoint.config, 256)
    info = ModelInfo(name="m", model_path="", max_context=256, vocab_size=128, weight_bytes=0, compute=compute)
    native = NativeRunner(info, checkpoint.config, layout, arena, SLAB, cos_sin)
    native.load(decoder)
    return native


def all_logits(runner: LogitsRunner, tokens: list[int]) -> torch.Tensor:
    """log softmax float32 [tokens, vocabulary], a token at a time."""
    spec = SampleSpec(SamplingParams(), [], [], 0, 0, ())
    steps = [[ScheduledSequence("s", [t], i, list(range(6)), spec)] for i, t in enumerate(tokens)]
    return torch.stack([runner.logits(step)[0].log_softmax(-1) for step in steps])


@pytest.mark.skipif(not cpu.AVAILABLE, reason="the native kernels were not built (no C++ compiler)")
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
def test_logits_are_those_of_transformers(form: str, compute: Compute, tmp_path: Path) -> None:
    model = random_model(config())
    path = saved(model, form, tmp_path)
    tokens = torch.randint(0, 128, (60,), generator=torch.Generator().manual_seed(3)).tolist()
    with torch.no_grad():
        want = model(torch.tensor([tokens])).logits[0].log_softmax(-1)
    got = all_logits(runner_for(path, tmp_path / "cache", compute), tokens)
    torch.testing.assert_close(got, want, atol=1e-3, rtol=0)


@given(
    exponents=st.lists(st.integers(104, 143), min_size=3, max_size=3), codes=st.binary(min_size=48, max_size=48)
)  # fmt: skip
def test_eight_bit_codes_have_the_numbers_of_mxfp4(exponents: list[int], codes: bytes) -> None:
    """So that integer arithmetic loses nothing of the weights, where their exponents are not beyond float16's."""
    blocks = np.empty((1, 3), MXFP4)
    blocks["exponent"], blocks["codes"] = exponents, np.frombuffer(codes, np.uint8).reshape(3, 16)
    tensor = PackedTensor("MXFP4", (1, 96), blocks.view(np.uint8).reshape(1, -1))
    found, scale = int8_codes(tensor)
    halves = scale.astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(found.reshape(3, 32) * halves.reshape(3, 1), dequantize(tensor).reshape(3, 32))


@pytest.mark.skipif(not cpu.AVAILABLE, reason="the native kernels were not built (no C++ compiler)")
@pytest.mark.parametrize("form", ["mxfp4", "gguf"])
def test_integer_arithmetic_moves_logits_by_the_rounding_of_activations_alone(form: str, tmp_path: Path) -> None:
    model = random_model(config())
    path = saved(model, form, tmp_path)
    tokens = torch.randint(0, 128, (60,), generator=torch.Generator().manual_seed(3)).tolist()
    with torch.no_grad():
        want = model(torch.tensor([tokens])).logits[0].log_softmax(-1)
    got = all_logits(runner_for(path, tmp_path / "cache", "int4-int8"), tokens)
    difference = (got - want).abs()
    assert difference.mean() < 0.05
    assert difference.max() < 0.6, "a router that is nearly undecided may take another expert"


def test_a_part_of_an_expert_is_read_alone(tmp_path: Path) -> None:
    save_in_mxfp4(random_model(config()), tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    name = "model.layers.1.mlp.experts.2.up_proj.weight"
    whole = dequantize(checkpoint.tensors[name])
    part = checkpoint.cut(name, range(5, 40), range(32, 64))
    assert part.kind == "MXFP4"
    np.testing.assert_array_equal(dequantize(part), whole[5:40, 32:64])
    with pytest.raises(ModelFileError, match="split a group of 32"):
        checkpoint.cut(name, range(5, 40), range(16))


def _without(name: str) -> Callable[[dict[str, Any]], Any]:
    return lambda tensors: tensors.pop(name)


def _changed(name: str, change: Callable[[Any], Any]) -> Callable[[dict[str, Any]], Any]:
    return lambda tensors: tensors.update({name: np.ascontiguousarray(change(tensors[name]))})


GATE_UP = "model.layers.0.mlp.experts.gate_up_proj"


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (_without(f"{GATE_UP}_scales"), r"lacks its gate_up_proj_scales"),
        (_changed(f"{GATE_UP}_blocks", lambda b: b.view(np.int8)), "is of kind I8; MXFP4 has U8"),
        (_changed(f"{GATE_UP}_blocks", lambda b: b[..., :8]), "16 bytes of blocks for each"),
        (_changed(f"{GATE_UP}_scales", lambda s: s[:, :, :1]), "16 bytes of blocks for each"),
        (_changed("model.layers.0.mlp.experts.down_proj_bias", lambda b: b[:3]), "lacks 1 of"),
        (_changed("model.layers.0.self_attn.sinks", lambda s: s[:3]), r"sinks' has shape \(3,\)"),
        (_without("model.layers.2.mlp.router.bias"), r"lacks 1 of .*gate\.bias"),
    ],
)  # fmt: skip
def test_parts_that_do_not_fit_are_refused(
    damage: Callable[[dict[str, Any]], Any], reason: str, tmp_path: Path
) -> None:
    save_in_mxfp4(random_model(config()), tmp_path)
    tensors = load_file_plain(tmp_path / "model.safetensors")
    damage(tensors)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ModelFileError, match=reason):
        open_checkpoint(tmp_path)


def load_file_plain(path: Path) -> dict[str, Any]:
    """bfloat16 becomes float32, which NumPy has."""
    from safetensors.torch import load_file as load_torch

    return {n: (t.float() if t.dtype == torch.bfloat16 else t).numpy() for n, t in load_torch(path).items()}


def test_a_file_without_rotary_settings_has_those_of_gpt_oss(tmp_path: Path) -> None:
    random_model(config()).save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    for key in ("rope_parameters", "layer_types"):
        del settings[key]
    (tmp_path / "config.json").write_text(json.dumps(settings))

    read = open_checkpoint(tmp_path).config

    assert read.rope.theta == 150000.0
    assert read.attention.window_layers == (0, 2)
    assert read.rope.scaling == RopeScaling(
        kind="yarn", factor=32.0, original_max_position=4096, truncate=False, attention_factor=0.1 * np.log(32) + 1
    )


def test_the_settings_of_the_published_model_are_read(tmp_path: Path) -> None:
    published = {
        "architectures": ["GptOssForCausalLM"], "attention_bias": True, "attention_dropout": 0.0,
        "eos_token_id": 200002, "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2880,
        "initial_context_length": 4096, "initializer_range": 0.02, "intermediate_size": 2880,
        "layer_types": ["sliding_attention", "full_attention"] * 12, "max_position_embeddings": 131072,
        "model_type": "gpt_oss", "num_attention_heads": 64, "num_experts_per_tok": 4, "num_hidden_layers": 24,
        "num_key_value_heads": 8, "num_local_experts": 32, "output_router_logits": False, "pad_token_id": 199999,
        "quantization_config": {"modules_to_not_convert": ["model.layers.*.mlp.router"], "quant_method": "mxfp4"},
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096,
            "rope_type": "yarn", "truncate": False,
        },
        "rope_theta": 150000, "router_aux_loss_coef": 0.9, "sliding_window": 128, "swiglu_limit": 7.0,
        "tie_word_embeddings": False, "use_cache": True, "vocab_size": 201088,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(published))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [200002, 199999, 200012]}))

    read = read_config(tmp_path)

    assert read.experts == ExpertMixture(count=32, per_token=4, normalised=True, has_bias=True)
    assert read.activation == "clamped-swiglu"
    attention = read.attention
    assert (attention.qkv_bias, attention.output_bias, attention.sinks) == (True, True, True)
    assert (attention.sliding_window, read.window_of(0), read.window_of(1)) == (128, 128, None)
    assert read.max_position == 131072
    assert read.rope.scaling is not None
    assert (read.rope.scaling.factor, read.rope.scaling.truncate, read.rope.theta) == (32.0, False, 150000)
    assert read.eos_token_ids == (200002, 199999, 200012)
    assert read_layer_format(tmp_path) == "mxfp4"
