"""Waits for a device that runs collectives. A lost rank hangs them, so the wait checks the ranks and has a timeout."""

import time
from collections.abc import Callable

import torch

from inference_core.errors import RankLostError

_POLL_SECONDS = 0.05
_PAUSE_SECONDS = 20e-6


def wait_for_device(device: torch.device, check_ranks: Callable[[], None], seconds: float) -> None:
    """Wait until `device` has finished all work launched so far. A no-op on the CPU.

    `check_ranks` is called about every 0.05 s and may raise. Raises RankLostError after `seconds`.
    """
    if device.type == "cuda":
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(device))
        wait_until(event.query, check_ranks, seconds)


def wait_until(
    done: Callable[[], bool],
    check_ranks: Callable[[], None],
    seconds: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Poll `done` until it returns true; see `wait_for_device`."""
    began = looked = clock()
    while not done():
        now = clock()
        if now - began > seconds:
            raise RankLostError(
                f"the device did not finish within {seconds:g} seconds; a rank may hang, see their logs"
            )
        if now - looked > _POLL_SECONDS:
            looked = now
            check_ranks()
        pause(_PAUSE_SECONDS)
