"""The inputs of a placement: machines with devices, and the sequences that must fit.

`cold_start_line` says how fast weights have to move for a start within the sources' half a second (SPEC TI-12).
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from inference_core.errors import MeshError
from inference_core.kv_cache.layout import KVDtype
from inference_core.kv_cache.memory_plan import format_bytes
from inference_core.placement.hardware import Device

Count = Annotated[int, Meta(ge=1)]


class Machines(msgspec.Struct, frozen=True, kw_only=True):
    """`nodes` equal machines of `devices_per_node`. `island`: number of devices connected by the device's link at full
    speed, if not the whole machine (two NVLink pairs, for example); islands are connected by slower links.
    """

    device: Device
    devices_per_node: Count = 1
    nodes: Count = 1
    island: Count | None = None

    def __post_init__(self) -> None:
        if self.devices_per_node % self.island_size:
            raise MeshError(
                f"a machine of {self.devices_per_node} devices cannot be divided into islands of {self.island_size}"
            )

    @property
    def island_size(self) -> int:
        return self.island or self.devices_per_node

    @property
    def islands(self) -> int:
        return self.nodes * self.devices_per_node // self.island_size

    @property
    def devices(self) -> int:
        return self.nodes * self.devices_per_node


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """`batch` concurrent sequences of `length` tokens must fit in `usable_share` of the devices.

    `max_watts` bounds a device's power, as at the edge. `host_bytes`: host memory for weights that do not fit.
    `uneven_splits` as for `parallel.topology.splits.divide`.
    """

    length: Count = 8192
    batch: Count = 1
    kv_dtype: KVDtype = "float16"
    usable_share: Annotated[float, Meta(gt=0, le=1)] = 0.90
    max_watts: float | None = None
    host_bytes: int = 0
    uneven_splits: bool = False

    @property
    def tokens(self) -> int:
        return self.length * self.batch


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
