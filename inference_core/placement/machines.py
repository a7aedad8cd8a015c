"""What a placement is planned for: machines with devices, and the sequences that are to fit."""

from typing import Annotated

import msgspec
from msgspec import Meta

from inference_core.errors import MeshError
from inference_core.kv_cache.layout import KVDtype
from inference_core.placement.hardware import Device

Count = Annotated[int, Meta(ge=1)]


class Machines(msgspec.Struct, frozen=True, kw_only=True):
    """`nodes` equal machines of `devices_per_node`. `island`: devices that the device's link joins at full speed, where
    that is not the whole machine (two pairs of NVLink, say); other islands are reached over slower links.
    """

    device: Device
    devices_per_node: Count = 1
    nodes: Count = 1
    island: Count | None = None

    def __post_init__(self) -> None:
        if self.devices_per_node % self.island_size:
            raise MeshError(
                f"islands of {self.island_size} devices do not make up a machine of {self.devices_per_node}"
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
    """`batch` sequences of `length` tokens at the same time are to fit; `usable_share` of a device is planned with.

    `max_watts` bounds a device's power, as at the edge. `host_bytes` of memory may take weights that do not fit.
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
