"""A step's copies between the arena and host memory, timed where they happen."""

import time
from collections.abc import Callable
from typing import Any

import torch

from inference_core.execution.host_blocks import HostBlocks
from inference_core.kv_cache.swap_cost import SwapTimes
from inference_core.step_plan import StepPlan


class DeviceSwaps:
    """On the current stream of `device`: in order with the kernels that write and read the blocks.

    The copy engines would allow more: but offloads must be through before the step writes, and restores before it
    reads, so that only other sequences' work could run beside them.
    """

    def __init__(self, host: HostBlocks, device: torch.device) -> None:
        self._on_cuda = device.type == "cuda"
        self._host = host

    def begin(self, plan: StepPlan) -> Callable[[], SwapTimes | None]:
        """Copy what `plan` offloads and restores. The result is called once the device has done with the step."""
        out, back = len(plan.offloads), len(plan.restores)
        if not out and not back:
            return lambda: None
        began = self._instant()
        self._host.offload(plan.offloads)
        between = self._instant()
        self._host.restore(plan.restores)
        ended = self._instant()
        return lambda: SwapTimes(out, self._seconds(began, between), back, self._seconds(between, ended))

    def _instant(self) -> Any:
        if not self._on_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _seconds(self, begin: Any, end: Any) -> float:
        return float(begin.elapsed_time(end)) / 1e3 if self._on_cuda else float(end - begin)
