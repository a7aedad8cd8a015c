"""The extension picks its kernels at run time and refuses what it cannot do."""

import runpy
from pathlib import Path

import pytest
import torch

from inference_core.native import cpu

pytestmark = pytest.mark.skipif(not cpu.AVAILABLE, reason="the native kernels were not built (no C++ compiler)")


def test_portable_kernels_exist_on_every_machine() -> None:
    assert cpu.extension().instruction_sets()[-1] == "portable"


def test_an_unknown_instruction_set_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="'mmx'"):
        cpu.extension().use_instruction_set("mmx")


def test_emulated_tiles_are_chosen_by_name_alone() -> None:
    native = cpu.extension()
    assert "amx-emulated" not in native.instruction_sets()
    assert native.instruction_set() == native.instruction_sets()[0]
    assert (native.prompt_format() == "tiles") == (native.instruction_set() == "amx")
    native.use_instruction_set("amx-emulated")
    assert native.instruction_set() == "amx-emulated"
    assert native.prompt_format() == "tiles"
    native.use_instruction_set(native.instruction_sets()[0])


@pytest.mark.usefixtures("instruction_set")
def test_prompts_are_multiplied_in_spans_where_bytes_are_multiplied_fast_and_there_are_no_tiles() -> None:
    native = cpu.extension()
    spans = ["avx512-bf16", "avx512", "i8mm-bf16", "i8mm"]
    formats = {"amx": "tiles", **dict.fromkeys(spans, "spans")}
    assert native.prompt_format() == formats.get(native.instruction_set())


def test_kernels_are_chosen_by_the_environment_and_unknown_ones_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def loaded(name: str) -> str:
        """The kernels that a process has chosen once it has imported the module with this name in its environment."""
        monkeypatch.setenv("AIO_INSTRUCTION_SET", name)
        runpy.run_path(str(cpu.__file__))
        return str(cpu.extension().instruction_set())

    try:
        assert loaded("amx-emulated") == "amx-emulated"
        with pytest.raises(ValueError, match="this processor has no 'mmx' kernels"):
            loaded("mmx")
    finally:
        cpu.extension().use_instruction_set(cpu.extension().instruction_sets()[0])


def test_processors_without_tiles_or_dot_products_of_bfloat16_are_not_asked_for_them() -> None:
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    if "amx_bf16" not in flags:
        assert "amx" not in cpu.extension().instruction_sets()
    assert ("avx512-bf16" in cpu.extension().instruction_sets()) <= ("avx512_bf16" in flags)


@pytest.mark.parametrize("threads", [0, -1, 2000])
def test_a_senseless_number_of_threads_is_refused(threads: int) -> None:
    with pytest.raises(ValueError, match="between 1 and 1024"):
        cpu.extension().set_threads(threads)


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    x, weight = torch.randn(40, 96), torch.rand(96)
    alone, together = torch.empty_like(x), torch.empty_like(x)
    cpu.set_threads(1)
    cpu.rms_norm(x, weight, 1e-5, alone)
    cpu.set_threads(3)
    cpu.rms_norm(x, weight, 1e-5, together)
    cpu.set_threads(None)
    assert torch.equal(alone, together)
