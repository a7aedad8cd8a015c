"""What a device serves beyond Llama's features equals the oracle; what it does not compute is refused by name."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_device import SLAB, SLABS, TinyModels
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GptOssConfig,
    GraniteConfig,
    Phi3Config,
    PretrainedConfig,
)

from inference_core.core import Core
from inference_core.device.load_device_core import load_device_core
from inference_core.device.spec import DeviceCoreSpec, DeviceModelSpec
from inference_core.errors import ModelFileError
from inference_core.execution.runner import ModelRunner
from inference_core.loaders.open_checkpoint import open_checkpoint
from inference_core.protocol import AddRequest, Knobs, SamplingParams

SHAPE = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
NAMED = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=4)


def saved(folder: Path, config: PretrainedConfig) -> Path:
    torch.manual_seed(5)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.2 + (1.0 if parameter.dim() == 1 else 0.0))
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    "config",
    [
        GraniteConfig(**SHAPE, embedding_multiplier=12.0, residual_multiplier=0.22, attention_multiplier=0.1),
        Phi3Config(**SHAPE, rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}),
    ],
    ids=["granite", "phi3"],
)
def test_a_device_computes_what_the_oracle_does(config: PretrainedConfig, tmp_path: Path) -> None:
    models = TinyModels(tmp_path, model=saved(tmp_path / "model", config))
    (got, got_logprobs), (want, want_logprobs) = answer(models.device_runner()), answer(models.oracle())
    assert got == want
    torch.testing.assert_close(torch.tensor(got_logprobs), torch.tensor(want_logprobs), atol=1e-4, rtol=0)


def answer(runner: ModelRunner) -> tuple[list[int], list[float]]:
    """Tokens after a prompt of 40 in chunks of 16, and their log-probabilities."""
    knobs = Knobs(prefill_chunk=16, max_num_batched_tokens=32, max_num_seqs=8)
    core = Core({"m": runner}, arena_bytes=SLABS * SLAB, slab_bytes=SLAB, knobs=knobs, seed=0)
    prompt = [3 * i % 96 for i in range(40)]
    core.add(AddRequest(request_id="r", model="m", prompt_token_ids=prompt, sampling=NAMED))
    tokens: list[int] = []
    logprobs: list[float] = []
    while core.has_work:
        for output in core.step():
            assert output.error is None
            tokens += output.token_ids
            logprobs += [drawn.logprob for drawn in output.logprobs or []]
    return tokens, logprobs


@pytest.mark.parametrize(
    ("config", "named"),
    [(Gemma3TextConfig, "gelu-tanh"), (GptOssConfig, "attention sinks, a bias of attention's output")],
)
def test_features_that_no_device_computes_are_refused_by_name(config: Any, named: str, tmp_path: Path) -> None:
    own = {"num_local_experts": 4} if config is GptOssConfig else {}
    folder = saved(tmp_path / "model", config(**SHAPE, **own))
    spec = DeviceCoreSpec(models=[DeviceModelSpec(name="m", path=str(folder), compute="dense")])
    with pytest.raises(ModelFileError, match=rf"a GPU does not compute .*{named}.*engine ="):
        load_device_core(spec, {"m": open_checkpoint(folder)}, torch.device("cpu"), tmp_path)
