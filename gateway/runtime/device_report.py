"""What `aio bench device` saw of a catalogue's cards, in a file next to the catalogue."""

from pathlib import Path

import msgspec

from gateway.base.settings import Settings
from tiers.catalog.catalog import Catalog
from tiers.catalog.load import shipped_catalogs


class StreamSpeed(msgspec.Struct, frozen=True, kw_only=True):
    """Generated tokens per second of `streams` answers at once."""

    streams: int
    tokens_per_second: float
    roofline: float | None = None
    """The most that the cards could do."""


class ModelSpeed(msgspec.Struct, frozen=True, kw_only=True):
    """A model of a group."""

    model: str
    weight_bytes: int
    prefill_tokens_per_second: float
    prefill_roofline: float | None = None
    decode: list[StreamSpeed]
    graph_gain: float | None = None
    """One answer's speed over its speed without captured steps; None on the host, where none are captured."""


class GroupSpeed(msgspec.Struct, frozen=True, kw_only=True):
    """A group's cards."""

    group: str
    device: str
    cards: int
    card: str
    card_bytes: int
    bandwidth: float
    """Bytes per second that one of them reads and writes."""
    bandwidth_roofline: float | None = None
    models: list[ModelSpeed]
    notes: list[str]
    """What is far from its roofline, or why none is known."""


class DeviceReport(msgspec.Struct, frozen=True, kw_only=True):
    """The measured speed of the machine's devices."""

    measured_at: str
    """ISO 8601, UTC."""
    catalog: str
    versions: dict[str, str]
    """Versions of the driver, CUDA and packages, as far as they are there."""
    groups: list[GroupSpeed]


def report_path(settings: Settings) -> Path:
    """Return the report's file: next to the catalogue's, or in the data folder for a catalogue that ships."""
    if settings.catalog in shipped_catalogs():
        return settings.data_path / f"{settings.catalog}.device.json"
    return Path(settings.catalog).with_suffix(".device.json")


def unmeasured_groups(catalog: Catalog, settings: Settings) -> list[str]:
    """Return the groups with cards that tiers use and no report has."""
    groups = [group.name for group in catalog.served_groups if group.device == "cuda"]
    try:
        report = msgspec.json.decode(report_path(settings).read_bytes(), type=DeviceReport)
    except (OSError, msgspec.DecodeError):
        return groups
    measured = {group.group for group in report.groups}
    return [name for name in groups if name not in measured]
