"""Reads the statistics of all cores of a gateway at once, and why some do not answer."""

import asyncio
from collections.abc import Mapping

from inference_core.errors import CoreError, CoreGoneError
from inference_core.protocol import CoreStats
from inference_core.transport.client import CoreClient

PATIENCE_SECONDS = 5.0
"""A core that is loading or stuck is not waited for: the others' statistics are needed now."""


async def read_cores(cores: Mapping[str, CoreClient]) -> tuple[dict[str, CoreStats], dict[str, CoreError]]:
    """Return the statistics of each core by name, or its error."""
    readings = await asyncio.gather(*(_read(core) for core in cores.values()))
    by_name = dict(zip(cores, readings, strict=True))
    return (
        {name: reading for name, reading in by_name.items() if isinstance(reading, CoreStats)},
        {name: reading for name, reading in by_name.items() if isinstance(reading, CoreError)},
    )


async def _read(core: CoreClient) -> CoreStats | CoreError:
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await core.stats()
    except CoreError as error:
        return error
    except TimeoutError:
        return CoreGoneError(core.stuck or f"it did not answer within {PATIENCE_SECONDS:g} s")
