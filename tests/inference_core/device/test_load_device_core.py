"""A core on a device is loaded with the arena that its memory leaves, and serves (SPEC TI-02, TI-06)."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec
import pytest
import torch

from benchmarks.core.random_checkpoint import SHAPES, RandomCheckpoint
from inference_core.device.batch import NoGraphs
from inference_core.device.cards import MemoryProfile
from inference_core.device.load_device_core import load_device_core
from inference_core.engine.core import Core
from inference_core.errors import InvalidRequestError, MemoryPlanError
from inference_core.linear.device import DeviceScheme
from inference_core.model_spec import DeviceCoreSpec, DeviceModelSpec
from inference_core.protocol import AddRequest, SamplingParams, TokenLogprob

CPU = torch.device("cpu")
CONFIG = msgspec.structs.replace(
    SHAPES["llama-3.2-1b"],
    vocab_size=96,
    hidden_size=256,
    intermediate_size=512,
    num_layers=2,
    num_heads=8,
    num_kv_heads=2,
    head_dim=32,
    max_position=256,
)
SLAB = 1 << 18


def spec(*models: DeviceModelSpec) -> DeviceCoreSpec:
    return DeviceCoreSpec(models=list(models), slab_bytes=SLAB, max_num_batched_tokens=64, max_num_seqs=4)


def model(name: str = "m", compute: DeviceScheme = "dense", kv_dtype: str = "float32") -> DeviceModelSpec:
    return DeviceModelSpec(name=name, path="", compute=compute, activations="float32", kv_dtype=kv_dtype)


class Load(Protocol):
    def __call__(self, core_spec: DeviceCoreSpec, total: int = 10 * SLAB) -> Core: ...


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Loads a core on the CPU, as if it had `total` bytes."""

    def profile_of(total: int) -> Callable[[torch.device, Callable[[], object]], MemoryProfile]:
        def profile(device: torch.device, largest_step: Callable[[], object]) -> MemoryProfile:
            largest_step()
            return MemoryProfile(total=total, others=0, weights=2 * SLAB, activations=SLAB)

        return profile

    def load(core_spec: DeviceCoreSpec, total: int = 10 * SLAB) -> Core:
        checkpoints = {m.name: RandomCheckpoint(CONFIG, "Q4_0", seed=5) for m in core_spec.models}
        return load_device_core(core_spec, checkpoints, CPU, tmp_path, profile=profile_of(total), make_graphs=NoGraphs)

    return load


def answer(core: Core, name: str) -> list[int]:
    return [one.token_id for one in drawn(core, name)]


def drawn(core: Core, name: str) -> list[TokenLogprob]:
    """The tokens of an answer with their log-probabilities."""
    sampling = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True, logprobs=0)
    core.add(AddRequest(request_id=name, model=name, prompt_token_ids=list(range(1, 40)), sampling=sampling))
    tokens: list[TokenLogprob] = []
    while core.has_work:
        for output in core.step():
            assert output.error is None
            tokens += output.logprobs or []
        core.check_integrity()
    return tokens


def test_the_arena_takes_what_weights_and_the_largest_step_leave(load: Load) -> None:
    core = load(spec(model()))
    # 10 slabs x 0.9 - 2 - 1 = 6
    assert core.stats().arena_bytes == 6 * SLAB
    assert len(answer(core, "m")) == 10


def test_a_device_that_is_too_small_is_refused_with_the_arithmetic(load: Load) -> None:
    with pytest.raises(MemoryPlanError, match="nothing is left for keys and values"):
        load(spec(model()), total=4 * SLAB)


def test_four_bit_weights_multiplied_as_they_are_say_what_they_say_dequantised(load: Load, tmp_path: Path) -> None:
    dense = drawn(load(spec(model())), "m")
    assert not list(tmp_path.glob("weights/*/*int4*.safetensors"))
    packed = drawn(load(spec(model(compute="int4"))), "m")
    assert list(tmp_path.glob("weights/*/*int4*.safetensors")), "the weights were not kept as 4 bits"
    assert [one.token_id for one in packed] == [one.token_id for one in dense]
    # A model of random weights repeats one token, so the tokens alone say little.
    assert [one.logprob for one in packed] == pytest.approx([one.logprob for one in dense], abs=1e-3)


@pytest.mark.parametrize("compute", ["int8", "fp8", "fp8-blocks"])
def test_eight_bit_models_serve(load: Load, compute: DeviceScheme) -> None:
    assert len(answer(load(spec(model(compute=compute))), "m")) == 10


@pytest.mark.parametrize("kv_dtype", ["float16", "bfloat16", "fp8"])
def test_every_cache_dtype_serves(load: Load, kv_dtype: str) -> None:
    assert len(answer(load(spec(model(kv_dtype=kv_dtype))), "m")) == 10


def test_models_share_one_arena(load: Load) -> None:
    core = load(spec(model("a"), model("b", "int4")))
    assert answer(core, "a") == answer(core, "b")


def test_no_knob_passes_what_memory_was_set_aside_for(load: Load) -> None:
    core = load(spec(model()))
    core.set_knobs({"max_num_batched_tokens": 32})
    with pytest.raises(InvalidRequestError, match="max_num_seqs is 5; this core was loaded with room for 4"):
        core.set_knobs({"max_num_seqs": 5})
    with pytest.raises(InvalidRequestError, match="max_num_batched_tokens is 65"):
        core.set_knobs({"max_num_batched_tokens": 65})


def test_repacked_weights_are_mapped_when_they_are_needed_again(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = answer(load(spec(model(compute="int4"))), "m")
    assert list(tmp_path.glob("weights/*/*int4*.safetensors"))

    def repack(*_: object) -> None:
        raise AssertionError("repacked again")

    monkeypatch.setattr("inference_core.linear.device.pack_int4", repack)
    assert answer(load(spec(model(compute="int4"))), "m") == first
