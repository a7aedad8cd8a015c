"""What goes wrong while a core is loaded: no memory, no compiler, damaged or contended caches, all on a tiny model."""

import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from inference_core.engine.core import Core
from inference_core.errors import MemoryPlanError, ModelFileError
from inference_core.execution.block_memory import allocate_arena
from inference_core.kv_cache.layout import KVDtype
from inference_core.loading.load_core import load_core
from inference_core.model_spec import Compute, CoreSpec, ModelSpec
from inference_core.protocol import AddRequest, SamplingParams
from tests.fuzz.inference_core.gguf_bytes import intact

pytestmark = pytest.mark.processes


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m.gguf"
    path.write_bytes(intact().encoded())
    return path


def core_of(model: Path, cache: Path, compute: Compute = "float32") -> Core:
    spec = ModelSpec(name="m", path=str(model), compute=compute, kv_dtype="float32", max_context=64)
    return load_core(CoreSpec(models=[spec], arena_bytes=1 << 18, slab_bytes=1 << 16), cache)


def answers(core: Core) -> dict[str, list[int]]:
    """Two greedy answers in flight together."""
    said: dict[str, list[int]] = defaultdict(list)
    for name, prompt in (("a", [1, 2, 3]), ("b", [30, 4, 17, 9, 9])):
        sampling = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
        core.add(AddRequest(request_id=name, model="m", prompt_token_ids=prompt, sampling=sampling))
    while core.has_work:
        for output in core.step():
            assert output.error is None
            said[output.request_id] += output.token_ids
    core.check_integrity()
    return dict(said)


@pytest.mark.parametrize("num_bytes", [1 << 60, 1 << 80, 0])
def test_an_arena_that_the_system_refuses_is_a_memory_plan_error(num_bytes: int) -> None:
    with pytest.raises(MemoryPlanError, match=rf"gives no {num_bytes} bytes .* make arena_bytes smaller"):
        allocate_arena(num_bytes)


@pytest.mark.parametrize("kv_dtype", ["float16", "fp8"])
def test_a_cache_that_only_cuda_can_hold_is_refused_with_the_choice(
    kv_dtype: KVDtype, model: Path, tmp_path: Path
) -> None:
    spec = ModelSpec(name="m", path=str(model), compute="float32", kv_dtype=kv_dtype, max_context=64)
    with pytest.raises(ModelFileError, match=f"float32, bfloat16, int8, not {kv_dtype}; change kv_dtype"):
        load_core(CoreSpec(models=[spec], arena_bytes=1 << 18, slab_bytes=1 << 16), tmp_path)


def test_damaged_weights_in_the_cache_are_packed_again(model: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    expected = answers(core_of(model, cache, "int4-int8"))
    (packed,) = (cache / "weights").rglob("cpu-panels-*.safetensors")
    intact_bytes = packed.read_bytes()
    data = np.frombuffer(intact_bytes, np.uint8).copy()
    data[1 << 20 :] ^= 0x5A
    packed.unlink()  # The first core still maps the old file.
    packed.write_bytes(data.tobytes())

    assert answers(core_of(model, cache, "int4-int8")) == expected
    assert packed.read_bytes() == intact_bytes


PROGRAM = """
import sys
from pathlib import Path
if sys.argv[3] == "hide": sys.modules["inference_core.native._cpu"] = None
from inference_core.native import cpu
from tests.inference_core.loading.test_loading_faults import answers, core_of
print("ready", flush=True)
sys.stdin.readline()
for compute in sys.argv[4:]:
    print(cpu.AVAILABLE, answers(core_of(Path(sys.argv[1]), Path(sys.argv[2]), compute)), flush=True)
"""


def started(model: Path, cache: Path, extension: str, *computes: Compute) -> subprocess.Popen[str]:
    """A process that imports everything and waits for a line before it loads the model, once per compute."""
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(model), str(cache), extension, *computes],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_without_the_extension_plain_torch_gives_the_same_answers_and_a_warning(model: Path, tmp_path: Path) -> None:
    computes: tuple[Compute, ...] = ("float32", "int4-int8")
    expected = [f"False {answers(core_of(model, tmp_path / 'cache', compute))}" for compute in computes]

    said, warned = started(model, tmp_path / "other", "hide", *computes).communicate("go\n", timeout=120)

    assert said.splitlines() == ["ready", *expected], warned
    assert "no native CPU kernels, using slower plain torch: install a C++ compiler" in warned


def test_processes_that_pack_the_same_weights_at_once_all_answer(model: Path, tmp_path: Path) -> None:
    expected = answers(core_of(model, tmp_path / "own", "int4-int8"))
    racers = [started(model, tmp_path / "shared", "keep", "int4-int8") for _ in range(2)]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"

    said = [racer.communicate("go\n", timeout=120)[0] for racer in racers]

    assert {line.partition(" ")[2] for line in said} == {f"{expected}\n"}
    files = (tmp_path / "shared" / "weights").rglob("*.safetensors")
    assert len([file for file in files if file.name.startswith("cpu-panels-")]) == 1
