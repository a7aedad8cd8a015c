"""No model file, however hostile, does anything worse than raise ModelFileError.

Targets of `inference_core/model_files.py` damage such files. Here are intact ones, known traps, and a process that may
not grow.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from inference_core.model_spec import Compute
from tests.fuzz.inference_core import gguf_bytes
from tests.fuzz.inference_core.hf_folder import CONFIG, TOKENIZER, HFFolder, intact
from tests.fuzz.inference_core.model_files import KINDS, ends_of_requests, opens, packed_folders, tokenises

INTACT = intact()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return INTACT.write(tmp_path)


@pytest.mark.parametrize(("kind", "compute"), KINDS)
def test_the_file_that_targets_damage_is_intact(kind: str, compute: Compute, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_bytes.intact(kind).encoded())

    assert opens(path)
    assert tokenises(path)
    assert set(ends_of_requests(path, compute, tmp_path / "cache")) <= {"stop", "length"}


def test_the_folders_that_targets_damage_are_intact(folder: Path) -> None:
    assert opens(folder)
    assert tokenises(folder)
    assert all(opens(packed) for packed in packed_folders())


@pytest.mark.parametrize(
    "header",
    [
        b"[" * 100_000,
        b'{"__metadata__": ' + b"[" * 100_000,
        b'{"a": {"dtype": "F32", "shape": [' + b"9223372036854775807, " * 500 + b'1], "data_offsets": [0, 4]}}',
        b'{"a": {"dtype": "F32", "shape": [' + b"1, " * 100 + b'1], "data_offsets": [0, 4]}}',
        b'{"a": {"dtype": "F32", "shape": [' + b"9" * 5000 + b'], "data_offsets": [0, 4]}}',
        b'{"\xff": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}',
        b'{"\\ud800": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}',
    ],
    ids=["deep", "deep metadata", "huge shape", "many dimensions", "huge number", "no UTF-8", "lone surrogate"],
)
def test_a_header_that_is_hostile_to_parsers_is_refused(folder: Path, header: bytes) -> None:
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    assert not opens(folder)


@pytest.mark.parametrize("key", ["num_hidden_layers", "vocab_size", "num_attention_heads", "max_position_embeddings"])
@pytest.mark.parametrize("value", [-1, 0, 2**40, 10**30])
def test_an_absurd_count_in_the_settings_costs_no_memory(folder: Path, key: str, value: int) -> None:
    opens(HFFolder(CONFIG | {key: value}, INTACT.directory, INTACT.data).write(folder))


@pytest.mark.parametrize(
    "model",
    [
        {"type": "WordLevel", "vocab": {"A": 0}, "unk_token": "<unk>"},
        {"type": "BPE", "vocab": {"A": 0, "B": 1, "AB": 2}, "merges": ["A B"], "continuing_subword_prefix": "####"},
    ],
    ids=["no token for what is unknown", "a prefix longer than its tokens"],
)
def test_a_tokeniser_that_would_fail_or_panic_is_refused(folder: Path, model: dict[str, object]) -> None:
    content = json.loads(TOKENIZER) | {"model": model}
    (folder / "tokenizer.json").write_text(json.dumps(content))

    assert not tokenises(folder)


def test_damaged_files_are_refused_by_a_process_that_may_not_grow() -> None:
    """Address space capped at 256 MiB above what importing takes: greedy reading would end in MemoryError or a kill."""
    program = """
import resource
from pathlib import Path
from tests.fuzz.engines import mutate_for
from tests.fuzz.trial import Trial
from tests.hostile.target import target_at

trials = [Trial(target_at(f"fuzz/inference_core.model_files.{name}")) for name in ("gguf_fields", "folder_fields")]
pages = int(Path("/proc/self/statm").read_text().split()[0])
limit = pages * resource.getpagesize() + (256 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
for trial in trials:
    mutate_for(trial, executions=60, seed=2)
    assert not trial.findings, trial.findings
print("alive")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600, check=False)

    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr[-2000:]
