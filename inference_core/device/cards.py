"""Counts the CUDA devices that this process can use."""

import torch


def visible_cards() -> int:
    """Devices that torch can use (those of `CUDA_VISIBLE_DEVICES`); 0 without a driver or with a CPU build of torch."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0
