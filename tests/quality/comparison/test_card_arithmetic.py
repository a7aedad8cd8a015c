"""A comparison computes a card's 8-bit arithmetic on the CPU: the same tokens as the device's own code says (SPEC
QZ-04, QZ-09)."""

from pathlib import Path
from typing import Literal

import pytest
import torch

from inference_core.device.batch import NoGraphs
from inference_core.device.cards import MemoryProfile
from inference_core.device.load_device_core import load_device_core
from inference_core.loaders.open_checkpoint import open_checkpoint
from inference_core.model_spec import DeviceCoreSpec, DeviceModelSpec
from inference_core.protocol import AddRequest, SamplingParams
from inference_core.quantization.quality_report import DEFAULT_LIMITS
from quality.evaluation.effort import Effort
from quality.evaluation.model_outputs import Side, Variant, greedy_continuations
from quality.evaluation.quantised_model import compare_models
from tests.inference_core.quantization.tiny_model import TEXT, write_tiny_model

EightBit = Literal["int8", "fp8"]
SLAB = 1 << 18


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"))


def on_device(model: Path, compute: EightBit, cache: Path, prompts: list[list[int]]) -> list[list[int]]:
    """The first token after each prompt by a group with `device = "cpu"`: a card's code, on its kernels' references."""
    served = DeviceModelSpec(
        name="m", path=str(model), compute=compute, activations="float32", kv_dtype="float32", max_context=128
    )
    spec = DeviceCoreSpec(models=[served], slab_bytes=SLAB, max_num_batched_tokens=64, max_num_seqs=4)
    memory = MemoryProfile(total=20 * SLAB, others=0, weights=2 * SLAB, activations=SLAB)
    checkpoints = {"m": open_checkpoint(model, cache)}
    core = load_device_core(
        spec, checkpoints, torch.device("cpu"), cache, profile=lambda *_: memory, make_graphs=NoGraphs
    )
    said: dict[str, list[int]] = {str(number): [] for number in range(len(prompts))}
    for name, prompt in zip(said, prompts, strict=True):
        sampling = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
        core.add(AddRequest(request_id=name, model="m", prompt_token_ids=prompt, sampling=sampling))
    while core.has_work:
        for output in core.step():
            assert output.error is None
            said[output.request_id] += output.token_ids
    return list(said.values())


@pytest.mark.parametrize("compute", ["int8", "fp8"])
def test_what_is_compared_is_what_the_device_says(model: Path, tmp_path: Path, compute: EightBit) -> None:
    side = Side(str(model), Variant(compute, "float32"))
    ids = side.tokenizer().encode(TEXT)
    prompts = [ids[begin : begin + 30] for begin in range(0, 320, 8)]
    compared = greedy_continuations(side, tmp_path, prompts, 1)
    exact = greedy_continuations(Side(str(model), Variant("float32", "float32")), tmp_path, prompts, 1)
    device = on_device(model, compute, tmp_path, prompts)
    # The order of attention's sums differs, which can tip the rounding of an activation.
    assert differing(compared, device) <= 1
    assert compute == "int8" or differing(exact, device) >= 5


def differing(some: list[list[int]], others: list[list[int]]) -> int:
    return sum(a != b for a, b in zip(some, others, strict=True))


@pytest.mark.parametrize("compute", ["int8", "fp8"])
def test_eight_bits_lose_something_and_little(model: Path, tmp_path: Path, compute: EightBit) -> None:
    report = compare_models(
        Side(str(model), Variant("float32", "float32")),
        Side(str(model), Variant(compute, "float32")),
        tmp_path,
        limits=DEFAULT_LIMITS,
        text=TEXT,
        effort=Effort(text_tokens=192, window=96, first_tokens=0, generations=0),
    )
    assert report.candidate.compute == compute
    assert report.text.mean_kl > 1e-4
    assert report.verdicts[0].passes, report.verdicts[0].reasons
