"""The inputs of a placement: the catalogue of devices (SPEC TI-08), machines of them, and the sequences that must fit.

`cold_start_line` says how fast weights have to move for a start within the sources' half a second (SPEC TI-12).
"""

import tomllib
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from inference_core.errors import MeshError
from inference_core.io.files import read_text_file
from inference_core.kv_cache.layout import KVDtype
from inference_core.kv_cache.memory_plan import format_bytes

DeviceKind = Literal["gpu", "cpu", "tpu", "asic", "fpga", "edge"]
Positive = Annotated[float, Meta(gt=0)]
# The kernels are compiled for this generation and later ones.
MIN_COMPUTE_CAPABILITY = 8.0
FP8_COMPUTE_CAPABILITY = 8.9


class Device(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of device, in bytes, bytes per second, dense 16-bit FLOP/s and watts."""

    name: str
    kind: DeviceKind
    memory_bytes: Annotated[int, Meta(gt=0)]
    bandwidth: Positive | None = None
    flops: Positive | None = None
    watts: Positive | None = None
    compute_capability: float | None = None
    tensor_cores: bool = True
    """Whether it has units for matrix products of 16 bits and less, under any vendor name."""
    link: str = "pcie4"
    """What connects the devices of one machine, or of an island within it."""
    link_bandwidth: Annotated[float, Meta(ge=0)] = 32e9
    """In one direction."""
    reported_as: list[str] = []
    """What its driver calls it."""

    @property
    def executable(self) -> bool:
        """Whether AIO runs models on this device, rather than only planning for it."""
        if self.kind == "cpu":
            return True
        return self.kind == "gpu" and (self.compute_capability or 0) >= MIN_COMPUTE_CAPABILITY

    @property
    def has_fp8(self) -> bool:
        return (self.compute_capability or 0) >= FP8_COMPUTE_CAPABILITY


class _Catalogue(msgspec.Struct, forbid_unknown_fields=True):
    devices: list[Device]


@cache
def devices() -> dict[str, Device]:
    """The shipped catalogue, by name."""
    return parse_devices(resources.files(__package__).joinpath("hardware.toml").read_text(encoding="utf-8"), "shipped")


def read_devices(path: Path) -> dict[str, Device]:
    """Read a custom catalogue of the same form. Raises MeshError."""
    try:
        return parse_devices(read_text_file(path), str(path))
    except OSError as error:
        raise MeshError(f"the hardware catalogue {path} cannot be read: {error}") from error


def parse_devices(text: str, origin: str) -> dict[str, Device]:
    """Parse a TOML document to devices by name. Raises MeshError."""
    try:
        listed = msgspec.convert(tomllib.loads(text), _Catalogue).devices
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise MeshError(f"the hardware catalogue {origin} is not understood: {error}") from error
    by_name = {device.name: device for device in listed}
    if len(by_name) != len(listed):
        raise MeshError(f"the hardware catalogue {origin} names a device twice")
    return by_name


def reported_device(name: str) -> Device | None:
    """Return the device that its driver calls `name`; None if the catalogue does not have it."""
    return next((candidate for candidate in devices().values() if name in candidate.reported_as), None)


def device(name: str) -> Device:
    """The device `name`. Raises MeshError with the known names."""
    by_name = devices()
    if name not in by_name:
        raise MeshError(f"no device '{name}' in the hardware catalogue; known are {', '.join(by_name)}")
    return by_name[name]


Count = Annotated[int, Meta(ge=1)]


class Machines(msgspec.Struct, frozen=True, kw_only=True):
    """Equal machines."""

    device: Device
    devices_per_node: Count = 1
    """Devices of a machine."""
    nodes: Count = 1
    """Number of machines."""
    island: Count | None = None
    """Number of devices connected by the device's link at full speed, if not the whole machine (two NVLink pairs, for
    example); islands are connected by slower links.
    """

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
    """What a placement has to serve."""

    length: Count = 8192
    batch: Count = 1
    """Concurrent sequences of `length` tokens, which must fit in `usable_share` of the devices."""
    kv_dtype: KVDtype = "float16"
    usable_share: Annotated[float, Meta(gt=0, le=1)] = 0.90
    max_watts: float | None = None
    """Most power of a device, as at the edge."""
    host_bytes: int = 0
    """Host memory for weights that do not fit."""
    uneven_splits: bool = False
    """See `parallel.topology.splits.divide`."""

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
