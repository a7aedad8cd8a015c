"""The GPUs of this machine that models can run on, read through NVML, or why there are none."""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from gateway.telemetry.gpus import GpuReading, Gpus
from inference_core.extras import install_command, is_installed
from inference_core.placement.hardware import MIN_COMPUTE_CAPABILITY


class Cards(msgspec.Struct, frozen=True, kw_only=True):
    """`count` cards, each planned with `bytes_each`, the memory of the smallest. `note`: what a reader should know of
    them, in one sentence, "" if nothing."""

    name: str = ""
    count: int = 0
    bytes_each: int = 0
    compute_capability: float = MIN_COMPUTE_CAPABILITY
    note: str = ""


def read_cards(environ: Mapping[str, str], gpus: Gpus | None = None, root: Path = Path("/")) -> Cards:
    """Return the cards that CUDA would show this process (`CUDA_VISIBLE_DEVICES`). `root`: where /dev is."""
    readings = _visible((gpus or Gpus()).read(), environ.get("CUDA_VISIBLE_DEVICES"))
    sizes = [reading.memory_bytes for reading in readings]
    known = [size for size in sizes if size is not None]
    if not readings or len(known) < len(readings):
        return Cards(note=_why_none(root))
    capability = min(reading.compute_capability or 0.0 for reading in readings)
    names = ", ".join(dict.fromkeys(reading.name for reading in readings))
    if capability < MIN_COMPUTE_CAPABILITY:
        return Cards(
            note=f"no model is proposed for {names}: the kernels need compute capability {MIN_COMPUTE_CAPABILITY:g}, "
            f"and a card has {capability:g}; CUDA_VISIBLE_DEVICES leaves cards out"
        )
    smallest = min(known)
    return Cards(
        name=names,
        count=len(readings),
        bytes_each=smallest,
        compute_capability=capability,
        note=f"the cards are not equal ({names}): all are planned with the {smallest / 1e9:.1f} GB of the smallest"
        if len(set(known)) > 1
        else "",
    )


def _visible(readings: list[GpuReading], named: str | None) -> list[GpuReading]:
    """CUDA stops at the first name that it does not know."""
    if named is None:
        return readings
    visible: list[GpuReading] = []
    for part in map(str.strip, named.split(",")):
        match = next((one for one in readings if part and (part == str(one.gpu) or one.uuid.startswith(part))), None)
        if match is None or match in visible:
            break
        visible.append(match)
    return visible


def _why_none(root: Path) -> str:
    if (root / "dev/nvidia0").exists():
        if is_installed("pynvml"):
            return "a card of NVIDIA is here, but NVML does not show it: does `nvidia-smi`?"
        return f"a card of NVIDIA is here, but nvidia-ml-py, which reads it, is not: {install_command('gpu')}"
    if (root / "dev/kfd").exists():
        return 'AMD cards are not supported in process; an installed program serves them (engine = "vllm")'
    return ""
