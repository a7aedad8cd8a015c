"""Every op takes on CUDA what its kernel takes: names of modules and functions are looked up when an op is called."""

import inspect
from importlib import import_module
from typing import Any

import pytest
import torch

from inference_core.triton_kernels import ops

pytest.importorskip("triton")

TENSOR = torch.zeros(1, 1, dtype=torch.uint8)
# What is given for an argument, by its type in the op's schema.
GIVEN: dict[str, Any] = {
    "Tensor": TENSOR,
    "Optional[Tensor]": TENSOR,
    "int": 16,
    "float": 0.5,
    "bool": True,
    "str": "float16",
    "List[int]": [],
}


# `eight_bit_linear` quantises first; the interpreter runs it in test_quantized_rows.
@pytest.mark.parametrize("name", sorted(ops.ON_CUDA.keys() - {"eight_bit_linear"}))
def test_the_kernel_of_an_op_exists_and_takes_the_arguments_of_the_op(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = []

    class Module:
        def __init__(self, path: str) -> None:
            self._module = import_module(path)

        def __getattr__(self, function: str) -> Any:
            def run(*args: Any, **options: Any) -> None:
                inspect.signature(getattr(self._module, function)).bind(*args, **options)
                called.append(function)

            return run

    monkeypatch.setattr(ops, "import_module", Module)
    schema = getattr(torch.ops.aio, name).default._schema

    ops.ON_CUDA[name](*(GIVEN[str(one.type)] for one in schema.arguments))

    assert called == [name]
