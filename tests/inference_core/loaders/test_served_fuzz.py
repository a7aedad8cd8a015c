"""A model whose file opens is served or refused, whatever its weights hold; and nothing reads a file greedily."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_core.errors import ModelFileError
from inference_core.loading.load_core import load_core
from inference_core.model_spec import Compute, CoreSpec, ModelSpec
from inference_core.protocol import AddRequest, SamplingParams
from tests.inference_core.loaders.byte_damage import damaged_bytes
from tests.inference_core.loaders.gguf_bytes import intact

KINDS: list[tuple[str, Compute]] = [("Q4_1", "int4-int8"), ("Q8_0", "int4-int8"), ("Q4_0", "int4"), ("F32", "float32")]


def answers(path: Path, compute: Compute, cache: Path) -> list[str | None]:
    """How two requests end on the model at `path`: greedy with log-probabilities, and seeded."""
    spec = ModelSpec(name="m", path=str(path), compute=compute, max_context=64)
    core = load_core(CoreSpec(models=[spec], arena_bytes=1 << 18, slab_bytes=1 << 16, threads=2), cache)
    for number, sampling in enumerate(
        [
            SamplingParams(temperature=0, max_tokens=4, logprobs=2),
            SamplingParams(temperature=0.8, top_k=3, seed=1, max_tokens=4),
        ]
    ):
        core.add(AddRequest(request_id=str(number), model="m", prompt_token_ids=[1, 2, 3, 4, 5], sampling=sampling))
    ends: dict[str, str | None] = {}
    for _ in range(40):
        for output in core.step():
            ends[output.request_id] = output.finish_reason
    core.check_integrity()
    assert not core.has_work
    return list(ends.values())


@pytest.mark.parametrize(("kind", "compute"), KINDS)
@settings(max_examples=max(10, settings().max_examples // 10))
@given(data=st.data())
def test_any_weights_are_served_or_end_in_an_error_of_the_request(
    tmp_path_factory: pytest.TempPathFactory, kind: str, compute: Compute, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("served")
    file = intact(kind)
    body = data.draw(damaged_bytes(file.data, header=len(file.data)))
    (folder / "m.gguf").write_bytes(replace(file, data=body).encoded())
    try:
        ends = answers(folder / "m.gguf", compute, folder / "cache")
    except ModelFileError:
        return  # Its data was cut.
    assert set(ends) <= {"stop", "length", "error"}


def test_an_intact_file_is_served(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(intact().encoded())

    assert set(answers(tmp_path / "m.gguf", "int4-int8", tmp_path / "cache")) <= {"stop", "length"}


def test_damaged_files_are_refused_by_a_process_that_may_not_grow(tmp_path: Path) -> None:
    """Address space capped at 256 MiB above what importing takes: greedy reading would end in MemoryError or a kill."""
    program = """
import resource, sys
from pathlib import Path
from hypothesis import given, settings
from tests.inference_core.loaders import gguf_bytes, hf_folder
from tests.inference_core.loaders.byte_damage import damaged_bytes
from tests.inference_core.loaders.exercise import opens, tokenises

folder = Path(sys.argv[1])
intact = gguf_bytes.intact().encoded()

def read_gguf(content):
    path = folder / "m.gguf"
    path.unlink(missing_ok=True)
    path.write_bytes(content)
    opens(path)
    tokenises(path)

def read_hf(content):
    opens(content.write(folder / "hf"))

def run(strategy, read):
    quiet = settings(max_examples=int(sys.argv[2]), derandomize=True, database=None, deadline=None)
    quiet(given(strategy)(read))()

pages = int(Path("/proc/self/statm").read_text().split()[0])
limit = pages * resource.getpagesize() + (256 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
(folder / "hf").mkdir()
run(gguf_bytes.damaged().map(lambda file: file.encoded()), read_gguf)
run(damaged_bytes(intact, 2048), read_gguf)
run(hf_folder.damaged(), read_hf)
print("alive")
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path), str(max(30, settings().max_examples // 4))],
        capture_output=True,
        text=True,
        timeout=3000,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr[-2000:]
