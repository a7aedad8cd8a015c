"""How fast weights have to move for a start within the sources' half a second (SPEC TI-12)."""

from inference_core.kv_cache.memory_plan import format_bytes
from inference_core.placement.hardware import Device

START_SECONDS = 0.5


def cold_start_line(weight_bytes: int, device: Device | None = None) -> str:
    """Return the bytes per second that `weight_bytes` need to reach one device in `START_SECONDS`, and whether its link
    moves as much, where that is the one to the host; nothing else of a start is counted, so it is a lower bound."""
    needed = weight_bytes / START_SECONDS
    line = (
        f"start within {START_SECONDS * 1e3:.0f} ms: {format_bytes(weight_bytes)} of weights / {START_SECONDS:g} s = "
        f"{needed / 1e9:.3g} GB/s"
    )
    if device is None or not device.link.startswith("pcie"):
        return line
    verdict = "enough" if needed <= device.link_bandwidth else f"at best {weight_bytes / device.link_bandwidth:.2g} s"
    return f"{line}; {device.link} moves {device.link_bandwidth / 1e9:g} GB/s one way into each device: {verdict}"
