"""Counts the CUDA devices that this process can use, and says why there are no more."""

import torch

from inference_core.device.failures import failure_cause


def visible_cards() -> int:
    """Devices that torch can use (those of `CUDA_VISIBLE_DEVICES`); 0 without a driver or with a CPU build of torch."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def why_no_more_cards() -> str:
    """Return why torch sees no more cards than it does; "" if nothing is known."""
    if torch.version.hip is not None:
        return "torch is a build for AMD cards, which are not supported in process"
    if torch.version.cuda is None:
        return "torch is a build without CUDA"
    try:
        torch.cuda.init()
    except Exception as error:
        return f"CUDA does not start: {failure_cause(error) or error}"
    return ""
