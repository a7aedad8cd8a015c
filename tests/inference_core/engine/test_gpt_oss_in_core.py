"""A core that serves gpt-oss in MXFP4: greedy tokens are those of transformers, through chunks of prompts, shared
prefixes, preemption, drafts and adapters."""

from pathlib import Path

import pytest
import torch
import transformers

from inference_core.engine.core import Core
from inference_core.loaders.open_checkpoint import open_checkpoint
from inference_core.loading.load_core import load_core
from inference_core.lora.adapter_file import read_adapter
from inference_core.model_spec import CoreSpec, ModelSpec
from inference_core.native import cpu
from inference_core.protocol import AddRequest, Knobs, SamplingParams
from tests.inference_core.gpt_oss_models import config, random_model, save_in_mxfp4
from tests.inference_core.lora.adapters import write_adapter

pytestmark = pytest.mark.skipif(not cpu.AVAILABLE, reason="the native kernels were not built (no C++ compiler)")
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
ANSWER = 24
BASE = Knobs(max_num_batched_tokens=64, prefill_chunk=16)


@pytest.fixture(scope="module")
def model() -> transformers.PreTrainedModel:
    return random_model(config())


@pytest.fixture(scope="module")
def folder(model: transformers.PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gpt-oss")
    save_in_mxfp4(model, path)
    return path


def prompts(count: int) -> list[list[int]]:
    """Two blocks that all share, then tokens of their own; a run that comes back, so that look-ups draft."""
    generator = torch.Generator().manual_seed(5)
    shared = torch.randint(0, 128, (32,), generator=generator).tolist()
    own = [torch.randint(0, 128, (9 + 7 * i,), generator=generator).tolist() for i in range(count)]
    return [shared + part + part[:4] for part in own]


def greedy_of(model: transformers.PreTrainedModel, prompt: list[int], length: int = ANSWER) -> list[int]:
    tokens, cache = list(prompt), None
    with torch.no_grad():
        for _ in range(length):
            seen = 0 if cache is None else len(tokens) - 1
            out = model(torch.tensor([tokens[seen:]]), past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            tokens.append(int(out.logits[0, -1].argmax()))
    return tokens[len(prompt) :]


def core_for(folder: Path, knobs: Knobs, *, slabs: int = 64, adapters: dict[str, str] | None = None) -> Core:
    spec = ModelSpec(
        name="m", path=str(folder), compute="float32", kv_dtype="float32", max_context=256, adapters=adapters or {}
    )
    # A slab of one block: 16 tokens of 3 layers of 2 heads of 16 numbers, keys and values.
    slab = 3 * 2 * 2 * 16 * 16 * 4
    return load_core(CoreSpec(models=[spec], arena_bytes=slabs * slab, slab_bytes=slab), folder / "cache", knobs=knobs)


def answers(core: Core, given: list[list[int]], adapters: list[str] | None = None) -> list[list[int]]:
    """The tokens of each prompt's answer, all in flight together."""
    sampling = SamplingParams(temperature=0, max_tokens=ANSWER, ignore_eos=True)
    tokens: dict[str, list[int]] = {str(i): [] for i in range(len(given))}
    for i, prompt in enumerate(given):
        adapter = "" if adapters is None else adapters[i]
        request = AddRequest(request_id=str(i), model="m", prompt_token_ids=prompt, sampling=sampling, adapter=adapter)
        core.add(request)
    while core.has_work:
        for output in core.step():
            tokens[output.request_id] += output.token_ids
    core.check_integrity()
    return list(tokens.values())


@pytest.fixture(scope="module")
def expected(model: transformers.PreTrainedModel) -> list[list[int]]:
    return [greedy_of(model, prompt) for prompt in prompts(6)]


def test_chunks_and_shared_prefixes_change_nothing(folder: Path, expected: list[list[int]]) -> None:
    core = core_for(folder, BASE)
    assert answers(core, prompts(6)) == expected
    assert answers(core, prompts(6)) == expected
    assert core.stats().models[0].prefix_hit_tokens > 0


def test_preempted_requests_go_on_where_they_were(folder: Path, expected: list[list[int]]) -> None:
    core = core_for(folder, BASE, slabs=9)
    assert answers(core, prompts(6)) == expected
    assert core.stats().models[0].preemptions > 0


def test_drafts_change_nothing(folder: Path, expected: list[list[int]]) -> None:
    drafting = {"speculation": "prompt_lookup", "lookup_ngram": 1, "max_draft_tokens": 4, "draft_control": "fixed"}
    core = core_for(folder, Knobs(max_num_batched_tokens=64, **drafting))
    assert answers(core, prompts(6)) == expected
    speculation = core.stats().models[0].speculation
    assert speculation is not None
    assert sum(speculation.proposed) > 0


def test_an_adapter_of_attention_is_that_of_the_merged_model(
    folder: Path, expected: list[list[int]], tmp_path: Path
) -> None:
    adapter = write_adapter(tmp_path / "a", open_checkpoint(folder).config, modules=ATTENTION)
    merged = random_model(config())
    with torch.no_grad():
        for index, layer in enumerate(read_adapter(adapter, open_checkpoint(folder).config).layers):
            for name, low in layer.items():
                up, down = torch.from_numpy(low.up.data.copy()), torch.from_numpy(low.down.data.copy())
                getattr(merged.model.layers[index].self_attn, name).weight += low.scale * up @ down
    core = core_for(folder, BASE, adapters={"a": str(adapter)})
    got = answers(core, prompts(4), ["a", "", "a", ""])
    assert got[1::2] == expected[1:4:2]
    assert got[0::2] == [greedy_of(merged, prompt) for prompt in prompts(4)[0::2]]
    assert got[0] != expected[0]
