"""Which models of a core are not loaded yet: it serves others while it packs the weights of these, once."""

import asyncio

from inference_core.protocol import CoreStats
from inference_core.transport.client import CoreClient

_POLL_SECONDS = 0.05


def not_loaded(stats: CoreStats) -> list[str]:
    """Return the names of the models whose requests wait for their weights."""
    return [model.name for model in stats.models if not model.is_loaded]


async def until_loaded(core: CoreClient) -> None:
    """Return once all models of a started core are loaded. Raises `CoreGoneError`."""
    while not_loaded(await core.stats()):  # noqa: ASYNC110 - a core tells when it is asked
        await asyncio.sleep(_POLL_SECONDS)
