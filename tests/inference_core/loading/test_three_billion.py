"""A model of 3B shape really generates on the CPU, in less than a third of what it takes in FP16 (SPEC TI-01)."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.core.random_checkpoint import SHAPES
from inference_core.loaders.decoder_tensors import decoder_tensors
from inference_core.native import cpu

_GENERATE = """
import json, sys
from pathlib import Path
from inference_core.execution.block_memory import allocate_arena
from benchmarks.core.random_checkpoint import SHAPES, RandomCheckpoint
from inference_core.loading.load_core import runner_of
from inference_core.engine.core import Core
from inference_core.model_spec import CoreSpec, ModelSpec
from inference_core.protocol import AddRequest, SamplingParams

def resident():
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmRSS:")[1].split()[0])

spec = ModelSpec(name="m", path="", compute="int4-int8", max_context=256)
core_spec = CoreSpec(models=[spec], arena_bytes=64 * 2**20, slab_bytes=16 * 2**20)
arena = allocate_arena(core_spec.arena_bytes)
before = resident()
runner = runner_of(spec, RandomCheckpoint(SHAPES["llama-3.2-3b"], "Q4_0"), core_spec, arena, Path(sys.argv[1]))
core = Core({"m": runner}, arena_bytes=core_spec.arena_bytes, slab_bytes=core_spec.slab_bytes)
sampling = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
core.add(AddRequest(request_id="r", model="m", prompt_token_ids=list(range(1, 33)), sampling=sampling))
tokens = []
while core.has_work:
    for output in core.step():
        assert output.error is None, output.error
        tokens += output.token_ids
print(json.dumps({"tokens": tokens, "bytes": resident() - before}))
"""


@pytest.mark.slow
@pytest.mark.skipif(not cpu.AVAILABLE, reason="kernels not built")
def test_a_three_billion_shape_generates_in_less_than_a_third_of_its_fp16_memory(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _GENERATE, str(tmp_path)], capture_output=True, text=True, check=True, timeout=1500
    )
    answer = json.loads(done.stdout)
    config = SHAPES["llama-3.2-3b"]
    parameters = sum(int(np.prod(shape)) for shape in decoder_tensors(config).values())
    assert len(answer["tokens"]) == 8
    assert all(0 <= token < config.vocab_size for token in answer["tokens"])
    assert answer["bytes"] < 2 * parameters / 3
