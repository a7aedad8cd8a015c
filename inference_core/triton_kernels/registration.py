"""Registers a kernel as a torch custom op: its reference on the CPU, its Triton launcher on CUDA (SPEC AT-07)."""

from collections.abc import Callable

import torch

_LIBRARY = torch.library.Library("aio", "FRAGMENT")


def register(schema: str, *, cpu: Callable[..., object], cuda: Callable[..., object]) -> None:
    """Define `aio::<schema>` for an op that only writes to its arguments, as in `name(Tensor(a!) out, Tensor x) -> ()`.

    `cuda` imports triton when called, since the op must be registered without triton too.
    """
    name = schema.split("(", 1)[0]
    _LIBRARY.define(schema)
    _LIBRARY.impl(name, cpu, "CPU")
    _LIBRARY.impl(name, cuda, "CUDA")
    torch.library.register_fake(f"aio::{name}", lambda *_, **__: None, lib=_LIBRARY)
