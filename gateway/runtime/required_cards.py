"""What a catalogue's GPU groups need of this machine, and what serves in their place where it fails them."""

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from inference_core.errors import CoreError, DeviceFailedError, DevicesMissingError, MemoryPlanError, MeshError
from tiers.catalog.catalog import Catalog
from tiers.catalog.hardware_check import instead_of, require_servable


def require_cards(catalog: Catalog, groups: Collection[str]) -> None:
    """Raise DevicesMissingError, with the cause where it is known, if this machine lacks cards that `groups` need."""
    from inference_core.device.cards import visible_cards, why_no_more_cards

    try:
        require_servable(catalog, visible_cards(), groups)
    except DevicesMissingError as error:
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        causes = [f"CUDA_VISIBLE_DEVICES={hidden} leaves out others"] * (hidden is not None)
        causes += [why] if (why := why_no_more_cards()) else []
        raise DevicesMissingError(f"{error}. Why: {'; '.join(causes)}" if causes else str(error)) from None


@contextmanager
def naming_what_serves_instead(catalog: Catalog, group: str) -> Iterator[None]:
    """Add to an error that keeps `group` from loading which tiers that concerns and what serves them instead."""
    try:
        yield
    except (DeviceFailedError, MemoryPlanError, MeshError) as error:
        explained: CoreError = type(error)(f"{error}\n{instead_of(catalog, group)}")
        raise explained from error
