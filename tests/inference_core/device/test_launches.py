"""Norms, residual sums, rotation, cache writes and activations are fused: a layer is nine launches (SPEC AT-05)."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from test_precision import MOVES, run_model
from torch.utils._python_dispatch import TorchDispatchMode

from inference_core.device.batch import DeviceBatch
from inference_core.device.device_decoder import DeviceDecoder


class LaunchCounter(TorchDispatchMode):  # type: ignore[misc]  # torch has no types for it
    """Counts the operations that a device would run a kernel for."""

    def __init__(self) -> None:
        super().__init__()
        self.launches: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        if name.removeprefix("aten::") not in MOVES:
            self.launches[name] += 1
        return func(*args, **(kwargs or {}))


def counted_launches(
    monkeypatch: pytest.MonkeyPatch, folder: Path, family: str | None = None
) -> tuple[Counter[str], int, int]:
    """Launches of a model's layers, their number, and that of the steps."""
    counter, compute, layers = LaunchCounter(), DeviceDecoder.compute, set[int]()

    def counted(self: DeviceDecoder, hidden: torch.Tensor, batch: DeviceBatch) -> torch.Tensor:
        layers.add(len(self.layers))
        with counter:
            return compute(self, hidden, batch)

    monkeypatch.setattr(DeviceDecoder, "compute", counted)
    run_model(folder, family)
    (depth,) = layers
    return counter.launches, depth, counter.launches["aio::paged_attention"] // depth


def test_a_layer_takes_four_products_and_five_fused_operations(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    launches, depth, steps = counted_launches(monkeypatch, tmp_path)
    # The first layer's norm has nothing to add, and the last sum of all is not followed by a layer.
    assert launches == {
        "aten::mm": 4 * depth * steps,
        "aio::rope_and_write": depth * steps,
        "aio::paged_attention": depth * steps,
        "aio::swiglu": depth * steps,
        "aio::add_rms_norm": (2 * depth - 1) * steps,
        "aio::rms_norm": steps,
        "aten::add_": steps,
    }


def test_a_network_of_experts_takes_seven_launches_for_any_number_of_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    launches, depth, steps = counted_launches(monkeypatch, tmp_path, "qwen3-moe")
    each = depth * steps
    # Products of attention and routers; two of all experts together.
    assert launches["aten::mm"] == 3 * each
    experts = {
        name: count for name, count in launches.items() if "expert" in name or name.endswith(("group_rows", "glu"))
    }
    assert experts == {
        "aio::route_experts": each,
        "aio::group_rows": each,
        "aio::dense_experts": 2 * each,
        "aio::swiglu": each,
        "aio::add_experts": each,
    }
