"""What a core of the CPU leaves out of torch: it is not loaded until it is asked for."""

import subprocess
import sys
from pathlib import Path

import pytest

IMPORTED = """
import sys
from gateway.base.footprint import import_eager_torch
import_eager_torch()
import torch
print(torch.kernels, "torch._meta_registrations" in sys.modules, hasattr(torch, "_meta_registrations"))
import torch._meta_registrations
print(torch._meta_registrations.KERNELS)
"""


def run(torch: Path, code: str, program: str = IMPORTED) -> list[str]:
    """Lines of a program for which `code` is the package torch."""
    (torch / "torch").mkdir()
    (torch / "torch/__init__.py").write_text(code)
    (torch / "torch/_meta_registrations.py").write_text("KERNELS = 2\n")
    environment = {"PYTHONPATH": f"{torch}:{Path(__file__).parents[3]}"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_kernels_of_the_meta_device_are_left_out_until_they_are_imported(tmp_path: Path) -> None:
    found = run(tmp_path, "import sys\nfrom torch import _meta_registrations\nkernels = 1\n")
    assert found == ["1 False False", "2"]


@pytest.mark.parametrize(
    "asked",
    [
        "from torch._meta_registrations import KERNELS as kernels",
        "import torch._meta_registrations as m\nkernels = m.KERNELS",
    ],
)
def test_a_torch_that_uses_them_while_it_is_imported_has_them(tmp_path: Path, asked: str) -> None:
    assert run(tmp_path, asked)[0].startswith("2 True")


def test_a_torch_without_that_module_is_imported_as_it_is(tmp_path: Path) -> None:
    assert run(tmp_path, "kernels = 3\n") == ["3 False False", "2"]


def test_one_that_was_imported_before_is_left_alone(tmp_path: Path) -> None:
    code = "from torch import _meta_registrations\nkernels = _meta_registrations.KERNELS\n"
    assert run(tmp_path, code, "import torch\n" + IMPORTED) == ["2 True True", "2"]
