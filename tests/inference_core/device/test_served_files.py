"""Every architecture and every file format computes on the CPU and on a card what its plain weights do.

The rows of docs/results/models.md are these tests. What cards refuse is not computed here: the page has it from the
loader.
"""

from pathlib import Path

import pytest
import torch

from inference_core.engine.core import Core
from inference_core.loaders.open_checkpoint import open_checkpoint
from inference_core.model_config import DecoderKind
from inference_core.model_spec import DeviceModelSpec, DeviceScheme
from inference_core.native import cpu
from inference_core.protocol import AddRequest, Knobs, SamplingParams
from tests.inference_core.model_files import FAMILIES, FORMATS, GGUF_FAMILIES, Write
from tests.inference_core.models.test_decoder_against_transformers import SLAB, last_logits, runner_for
from tests.inference_core.parallel.device_meshes import device_core, on_one_device

pytestmark = pytest.mark.models
NAMED = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=4)
FILES: dict[str, Write] = FORMATS | {f"GGUF {name}": write for name, write in GGUF_FAMILIES.items()}
# Cards multiply these with activations of 8 bits.
ROUNDED: dict[str, DeviceScheme] = {"compressed-tensors INT8": "int8", "compressed-tensors FP8": "fp8"}
PACKED = ("AWQ", "GPTQ", "compressed-tensors INT4", "GGUF Q4_0", "GGUF Q4_1", "GGUF Q4_K", "GGUF Q4_K_M (Q4_K, Q6_K)")


def scheme_of(name: str) -> DeviceScheme:
    """How a card multiplies a format: as the catalogue's `weights` of that name has it."""
    return ROUNDED.get(name, "int4" if name in PACKED else "dense")


def spec_of(name: str, path: Path) -> DeviceModelSpec:
    """Nothing is rounded but what the format has rounded."""
    return DeviceModelSpec(
        name=name, path=str(path), compute=scheme_of(name), activations="float32", kv_dtype="float32", max_context=64
    )


def is_computed_by(where: DecoderKind, path: Path) -> bool:
    return not open_checkpoint(path).config.not_computed_by(where)


@pytest.mark.skipif(not cpu.AVAILABLE, reason="needs the native kernels (a C++ compiler at installation)")
@pytest.mark.parametrize("name", FILES)
def test_the_cpu_computes_what_the_plain_weights_do(name: str, tmp_path: Path) -> None:
    path = FILES[name](tmp_path / "model")
    native, plain = (runner_for(path, tmp_path / "cache", kind) for kind in ("native", "torch"))
    tokens = [7 * i % 40 for i in range(30)]
    got, want = last_logits(native, tokens, 0), last_logits(plain, tokens, 0)
    assert want.std() > 0.01
    torch.testing.assert_close(got.log_softmax(-1), want.log_softmax(-1), atol=1e-3, rtol=0)


@pytest.mark.parametrize("name", [*FAMILIES, *FILES])
def test_a_card_computes_what_the_plain_weights_do(name: str, tmp_path: Path) -> None:
    path = (FAMILIES | FILES)[name](tmp_path / "model")
    if not is_computed_by("a GPU", path):
        pytest.skip("cards refuse it")
    card = on_one_device(device_core(spec_of(name, path)), tmp_path / "cache")
    oracle = runner_for(path, tmp_path / "cache", "torch")
    knobs = Knobs(prefill_chunk=16, max_num_batched_tokens=16, max_num_seqs=4)
    plain = Core({name: oracle}, arena_bytes=SLAB, slab_bytes=SLAB, knobs=knobs, seed=0)
    (got, got_logprobs), (want, want_logprobs) = answer(card, name), answer(plain, name)
    assert len(set(want_logprobs)) > 1
    if name in ROUNDED:
        assert abs(got_logprobs[0] - want_logprobs[0]) < 0.2
        return
    assert got == want
    # Minima of 4-bit groups, products in the file, are rounded to float16.
    bound = 1e-3 if scheme_of(name) == "dense" else 2e-2
    torch.testing.assert_close(torch.tensor(got_logprobs), torch.tensor(want_logprobs), atol=bound, rtol=0)


def answer(core: Core, model: str) -> tuple[list[int], list[float]]:
    """Tokens after a prompt of 40 in chunks, and their log-probabilities."""
    prompt = [7 * i % 40 for i in range(40)]
    core.add(AddRequest(request_id="r", model=model, prompt_token_ids=prompt, sampling=NAMED))
    tokens: list[int] = []
    logprobs: list[float] = []
    while core.has_work:
        for output in core.step():
            assert output.error is None
            tokens += output.token_ids
            logprobs += [drawn.logprob for drawn in output.logprobs or []]
    return tokens, logprobs
