"""Checks that this machine has the cards of a catalogue's GPU groups: before a download, and before a start."""

from collections.abc import Collection

from tiers.catalog.catalog import Catalog
from tiers.catalog.hardware_check import require_servable


def require_cards(catalog: Catalog, groups: Collection[str]) -> None:
    """Raise DevicesMissingError if this machine lacks cards that `groups` need."""
    from inference_core.device.cards import visible_cards

    require_servable(catalog, visible_cards(), groups)
