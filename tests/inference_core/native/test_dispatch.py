"""The extension picks its kernels at run time and refuses what it cannot do."""

import pytest
import torch

from inference_core.native import cpu

pytestmark = pytest.mark.skipif(not cpu.AVAILABLE, reason="the native kernels were not built (no C++ compiler)")


def test_portable_kernels_exist_on_every_machine() -> None:
    assert cpu.extension().instruction_sets()[-1] == "portable"


def test_an_unknown_instruction_set_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="'mmx'"):
        cpu.extension().use_instruction_set("mmx")


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
