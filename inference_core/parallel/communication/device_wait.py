"""Waiting for a device that computes with others: a lost rank hangs its collectives, so the wait looks around."""

import time
from collections.abc import Callable

import torch

from inference_core.errors import RankLostError

_LOOK_SECONDS = 0.05
_PAUSE_SECONDS = 20e-6


def settle(device: torch.device, look: Callable[[], None], seconds: float) -> None:
    """Wait until `device` has done what it was given so far; on the CPU it has already.

    `look` is called now and then, to raise. Raises RankLostError after `seconds`.
    """
    if device.type == "cuda":
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(device))
        wait_until(event.query, look, seconds)


def wait_until(
    done: Callable[[], bool],
    look: Callable[[], None],
    seconds: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Ask `done` until it is; see `settle`."""
    began = looked = clock()
    while not done():
        now = clock()
        if now - began > seconds:
            raise RankLostError(
                f"the device did not finish within {seconds:g} seconds; a rank may hang, see their logs"
            )
        if now - looked > _LOOK_SECONDS:
            looked = now
            look()
        pause(_PAUSE_SECONDS)
