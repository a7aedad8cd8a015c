"""Repacked weights: built once, mapped after, rebuilt when damaged, safe when processes race."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import load_file

from inference_core.io.files import atomic_file
from inference_core.loaders.weight_cache import WeightCache
from tests.examples import examples

Arrays = dict[str, NDArray[Any]]


def some_arrays(seed: int = 0) -> Arrays:
    rng = np.random.default_rng(seed)
    return {
        "codes": rng.integers(0, 256, (7, 33), np.uint8),
        "scales": rng.standard_normal((5, 3)).astype(np.float16),
        "empty": np.empty((0, 4), np.float32),
        "bias": rng.standard_normal(129).astype(np.float32),
        "bfloat16": rng.integers(0, 2**16, 40_000, np.uint16),
        "transposed": rng.standard_normal((4, 6)).astype(np.float32).T,
    }


class Builder:
    """Counts how often the weights were repacked."""

    def __init__(self, seed: int = 0) -> None:
        self.calls = 0
        self.arrays = some_arrays(seed)

    def __call__(self) -> Iterator[tuple[str, NDArray[Any]]]:
        self.calls += 1
        yield from self.arrays.items()


def assert_equal(found: Arrays, expected: Arrays) -> None:
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)
        assert not found[name].flags.writeable


def test_weights_are_built_once_and_mapped_after(tmp_path: Path) -> None:
    build = Builder()

    first = WeightCache(tmp_path).load_or_build("f", "v1", build)
    second = WeightCache(tmp_path).load_or_build("f", "v1", build)

    assert build.calls == 1
    assert_equal(first, build.arrays)
    assert_equal(second, build.arrays)


def test_mapped_arrays_are_aligned_for_vector_loads(tmp_path: Path) -> None:
    arrays = WeightCache(tmp_path).load_or_build("f", "v1", Builder())

    assert {name: array.ctypes.data % 64 for name, array in arrays.items() if array.size} == {
        name: 0 for name in arrays if name != "empty"
    }


def test_another_source_or_layout_is_another_file(tmp_path: Path) -> None:
    cache = WeightCache(tmp_path)
    a, b, c = Builder(1), Builder(2), Builder(3)

    cache.load_or_build("f", "v1", a)

    assert_equal(cache.load_or_build("g", "v1", b), b.arrays)
    assert_equal(cache.load_or_build("f", "v2", c), c.arrays)
    assert_equal(cache.load_or_build("f", "v1", b), a.arrays)


def test_the_file_is_readable_by_the_safetensors_package(tmp_path: Path) -> None:
    build = Builder()
    WeightCache(tmp_path).load_or_build("f", "v1", build)

    read = load_file(tmp_path / "weights" / "f" / "v1.safetensors")

    for name, array in build.arrays.items():
        np.testing.assert_array_equal(read[name], array)


@settings(max_examples=examples(25))
@given(data=st.data())
def test_a_truncated_file_is_rebuilt(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    root = tmp_path_factory.mktemp("cache")
    build = Builder()
    WeightCache(root).load_or_build("f", "v1", build)
    file = root / "weights" / "f" / "v1.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])

    assert_equal(WeightCache(root).load_or_build("f", "v1", build), build.arrays)
    assert build.calls == 2
    assert file.read_bytes() == content


@pytest.mark.parametrize("position", [0, 7, 20, 200, -1, -4096])
def test_a_damaged_file_is_rebuilt(tmp_path: Path, position: int) -> None:
    build = Builder()
    WeightCache(tmp_path).load_or_build("f", "v1", build)
    file = tmp_path / "weights" / "f" / "v1.safetensors"
    content = bytearray(file.read_bytes())
    content[position] ^= 0x11
    file.write_bytes(content)

    assert_equal(WeightCache(tmp_path).load_or_build("f", "v1", build), build.arrays)
    assert build.calls == 2


def test_weights_in_use_survive_a_rebuild_by_another_process(tmp_path: Path) -> None:
    old, new = Builder(1), Builder(2)
    arrays = WeightCache(tmp_path).load_or_build("f", "v1", old)
    (tmp_path / "weights" / "f" / "v1.safetensors").unlink()

    WeightCache(tmp_path).load_or_build("f", "v1", new)

    assert_equal(arrays, old.arrays)


def test_an_unwritable_folder_still_gives_weights(tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_bytes(b"a file where the folder should be")
    build = Builder()

    assert_equal(WeightCache(blocked).load_or_build("f", "v1", build), build.arrays)


def test_a_failed_build_leaves_nothing_behind(tmp_path: Path) -> None:
    def fail() -> Iterator[tuple[str, NDArray[Any]]]:
        yield "a", np.ones(3, np.float32)
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        WeightCache(tmp_path).load_or_build("f", "v1", fail)

    assert list((tmp_path / "weights" / "f").iterdir()) == []


def test_processes_that_race_all_get_the_weights(tmp_path: Path) -> None:
    program = """
import sys, numpy as np
from pathlib import Path
from inference_core.loaders.weight_cache import WeightCache
print("ready", flush=True)
sys.stdin.readline()
build = lambda: iter([("a", np.arange(300_000, dtype=np.float32))])
for round in range(20):
    arrays = WeightCache(Path(sys.argv[1])).load_or_build("f", f"v{round}", build)
    assert arrays["a"].sum(dtype=np.float64) == 44999850000.0
"""
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()

    assert [racer.wait(60) for racer in racers] == [0, 0, 0]
    assert len(list((tmp_path / "weights" / "f").iterdir())) == 20
    for racer in racers:
        racer.communicate()


def test_an_atomic_file_keeps_the_old_content_until_the_block_ends_well(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "file"
    with atomic_file(path) as file:
        file.write(b"old")

    def fail_while_writing() -> None:
        with atomic_file(path) as file:
            file.write(b"new")
            assert path.read_bytes() == b"old"
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_while_writing()

    assert path.read_bytes() == b"old"
    assert list(path.parent.iterdir()) == [path]
