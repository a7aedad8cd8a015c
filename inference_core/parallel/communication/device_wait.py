"""Waiting for a device that computes with others: a lost rank hangs its collectives, so the wait looks around."""

import time
from collections.abc import Callable

import torch

from inference_core.errors import RankLostError

_POLL_SECONDS = 0.05
_PAUSE_SECONDS = 20e-6


def wait_for_device(device: torch.device, check_ranks: Callable[[], None], seconds: float) -> None:
    """Wait until `device` has done what it was given so far; on the CPU it has already.

    `check_ranks` is called now and then, to raise. Raises RankLostError after `seconds`.
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
    """Ask `done` until it is; see `wait_for_device`."""
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
