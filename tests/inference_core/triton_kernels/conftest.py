"""Where the kernels' tests run: in Triton's interpreter (`make test-kernels`) or on a CUDA device (`make test-gpu`).

Triton decides when it is first imported, so a process does one or the other: with TRITON_INTERPRET=1 every test that
takes `device` is marked `kernels` and gets the CPU, without it `gpu`. Tests of the same name are the same tests.
"""

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

HERE = Path(__file__).parent
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE) and "device" in getattr(item, "fixturenames", ()):
            item.add_marker("kernels" if INTERPRETED else "gpu")


@pytest.fixture
def device() -> torch.device:
    """Where tensors given to kernels must be."""
    if INTERPRETED:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device, or TRITON_INTERPRET=1 for the interpreter (make test-kernels)")
    return torch.device("cuda")


@pytest.fixture(scope="session")
def compiled() -> Callable[[str], dict[str, Any]]:
    """What `aot` says of a test module's cases, as {case: {capability: [usage of each kernel]}}.

    Compiled in another process: one that interprets cannot compile.
    """

    @functools.cache
    def of(module: str) -> dict[str, Any]:
        package = "tests.inference_core.triton_kernels"
        environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
        done = subprocess.run(
            [sys.executable, "-m", f"{package}.aot", f"{package}.{module}"],
            env=environment,
            cwd=HERE.parents[2],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))

    return of
