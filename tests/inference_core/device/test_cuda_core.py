"""A whole core on a CUDA device says what the same core says on the host: `make test-gpu` runs it.

The kernels have tests of their own; these find what only a real device shows: captured steps, copies on streams, pinned
memory, and compiled kernels over weights that a loader has packed.
"""

import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from test_served_files import is_computed_by, scheme_of

from inference_core.device.batch import CudaGraphs
from inference_core.device.cards import MemoryProfile
from inference_core.device.load_device_core import device_layout, load_device_core
from inference_core.engine.core import Core
from inference_core.loaders.open_checkpoint import open_checkpoint
from inference_core.model_spec import DeviceCoreSpec, DeviceModelSpec
from inference_core.protocol import AddRequest, SamplingParams, TokenLogprob
from tests.inference_core.model_files import FAMILIES, FORMATS, GGUF_FAMILIES

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SLAB = 4 << 20
FILES = FAMILIES | FORMATS | {f"GGUF {name}": write for name, write in GGUF_FAMILIES.items()}
# Activations and keys of half precision; the largest differences of log-probabilities seen are a fifth of it.
BOUND = 5e-2
# Copied text, so that drafts are found; long enough to be cut into chunks and to cross blocks of 16 tokens.
PROMPTS = [[7 * i % 40 for i in range(40)], [5, 6, 7] * 9, [9] * 3, [*[7 * i % 40 for i in range(32)], 1, 2]]
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, logprobs=4)
# An activation between two codes of 8 bits may become either: on the host, log-probabilities with float32 activations
# differ by up to 0.5 and 0.9 from those with float16.
ROUNDED = {"compressed-tensors INT8": 0.8, "compressed-tensors FP8": 1.5}
Answers = dict[str, list[TokenLogprob]]


def core_on(device: str, folder: Path, *models: DeviceModelSpec, arena: int = 20 * SLAB, **settings: Any) -> Core:
    """Over a small arena, so that many cores fit on one card."""

    def profile(*_: object) -> MemoryProfile:
        return MemoryProfile(total=arena, others=0, weights=0, activations=0)

    limits = {"memory_utilization": 1.0, "slab_bytes": SLAB, "max_num_batched_tokens": 16, "max_num_seqs": 4}
    return load_device_core(
        DeviceCoreSpec(models=list(models), **limits | settings),
        {model.name: open_checkpoint(Path(model.path), folder) for model in models},
        torch.device(device),
        folder,
        profile=profile,
    )


def half(name: str, path: Path, **fields: Any) -> DeviceModelSpec:
    precision = {"activations": "float16", "kv_dtype": "float16", "max_context": 64}
    return DeviceModelSpec(name="m", path=str(path), compute=scheme_of(name), **precision | fields)


def answers(core: Core, sampling: SamplingParams = GREEDY, prompts: list[list[int]] = PROMPTS) -> Answers:
    said: Answers = {str(number): [] for number in range(len(prompts))}
    for number, prompt in enumerate(prompts):
        core.add(AddRequest(request_id=str(number), model="m", prompt_token_ids=prompt, sampling=sampling))
    while core.has_work:
        for output in core.step():
            assert output.finish_reason in (None, "length"), output.error
            said[output.request_id] += output.logprobs or []
        core.check_integrity()
    assert all(len(one) == sampling.max_tokens for one in said.values())
    return said


def assert_alike(given: Answers, wanted: Answers, bound: float = BOUND) -> None:
    """The same tokens with log-probabilities within `bound`, until two candidates are as close as that."""
    for name, said in given.items():
        for one, other in zip(said, wanted[name], strict=True):
            law = dict(other.top)
            for token, logprob in one.top:
                if token in law:
                    assert abs(logprob - law[token]) <= bound
            if one.token_id != other.token_id:
                assert other.logprob - law.get(one.token_id, other.top[-1][1]) <= 2 * bound
                break


@pytest.mark.parametrize("name", FILES)
def test_a_card_says_what_its_references_say(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Every architecture and every file format, in chunks, side by side, from captured steps."""
    path = FILES[name](tmp_path / "model")
    if not is_computed_by("a GPU", path):
        pytest.skip("cards refuse it")
    card, host = (core_on(device, tmp_path / "cache", half(name, path)) for device in ("cuda", "cpu"))
    with caplog.at_level(logging.WARNING):
        said = answers(card)
    assert not caplog.records  # every step that may be captured was
    assert_alike(said, answers(host), ROUNDED.get(name, BOUND))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return FAMILIES["llama"](tmp_path_factory.mktemp("llama") / "model")


@pytest.fixture(scope="module")
def wanted(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    return answers(core_on("cpu", tmp_path_factory.mktemp("cache"), half("llama", llama)))


def test_captured_steps_say_what_launched_ones_say(llama: Path, wanted: Answers, tmp_path: Path) -> None:
    captured = core_on("cuda", tmp_path, half("llama", llama))
    launched = core_on("cuda", tmp_path, half("llama", llama), capture_steps=False)
    for _ in range(2):  # the second time everything is replayed
        said = answers(captured)
        assert_alike(said, wanted)
        assert_alike(answers(launched), said)
    graphs = captured._models["m"].runner._graphs  # type: ignore[attr-defined]
    assert isinstance(graphs, CudaGraphs)
    assert len(graphs.captured) > 1


@pytest.mark.parametrize("activations", ["float16", "bfloat16"])
@pytest.mark.parametrize("kv_dtype", ["float16", "bfloat16", "fp8"])
def test_caches_of_every_kind(activations: str, kv_dtype: str, llama: Path, tmp_path: Path) -> None:
    model = half("llama", llama, activations=activations, kv_dtype=kv_dtype)
    card, host = (core_on(device, tmp_path, model) for device in ("cuda", "cpu"))
    coarse = kv_dtype == "fp8" or "bfloat16" in (activations, kv_dtype)
    assert_alike(answers(card), answers(host), 0.2 if coarse else BOUND)


@pytest.mark.parametrize("host_cache_bytes", [0, 1 << 28], ids=["computed again", "copied back"])
def test_preempted_sequences_say_the_same(host_cache_bytes: int, llama: Path, wanted: Answers, tmp_path: Path) -> None:
    model = half("llama", llama, host_cache_bytes=host_cache_bytes)
    slab = 8 * device_layout(model, open_checkpoint(llama, tmp_path).config).block_bytes
    cramped = core_on("cuda", tmp_path, model, arena=slab, slab_bytes=slab)
    assert_alike(answers(cramped), wanted)
    stats = cramped.stats().models[0]
    assert stats.preemptions > 0
    assert (stats.swap.back_blocks > 0) == (host_cache_bytes > 0)


@pytest.mark.parametrize("way", ["prompt_lookup", "draft_model"])
def test_drafts_change_no_answer(way: str, llama: Path, wanted: Answers, tmp_path: Path) -> None:
    target = half("llama", llama, draft="d", knobs={"speculation": way, "draft_control": "fixed", "lookup_ngram": 1})
    draft = msgspec.structs.replace(half("llama", llama), name="d", knobs={"speculation": "off"})
    core = core_on("cuda", tmp_path, target, draft, max_num_batched_tokens=64)
    assert_alike(answers(core), wanted)
    speculation = core.stats().models[0].speculation
    assert speculation is not None
    assert sum(speculation.accepted) > 0


def test_a_seed_draws_the_same_on_card_and_host(llama: Path, tmp_path: Path) -> None:
    """Random numbers are integers: rows differ only where logits do."""
    warm = msgspec.structs.replace(GREEDY, temperature=0.9, top_p=0.9, top_k=20, seed=3)
    card, host = (core_on(device, tmp_path, half("llama", llama)) for device in ("cuda", "cpu"))
    said, expected = answers(card, warm), answers(host, warm)
    same = sum(a.token_id == b.token_id for name in said for a, b in zip(said[name], expected[name], strict=True))
    assert same >= 0.75 * sum(len(one) for one in said.values())
