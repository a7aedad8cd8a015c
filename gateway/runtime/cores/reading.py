"""Reads the statistics of all cores of a gateway at once, and says why some do not answer."""

import asyncio
from collections.abc import Mapping

from gateway.base.errors import ApiError
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


async def read_answering(cores: Mapping[str, CoreClient]) -> dict[str, CoreStats]:
    """Return the statistics of every core that answers, by name. Raises `ApiError` 503 if none does."""
    require_cores(cores)
    there, away = await read_cores(cores)
    if not there:
        raise core_gone(next(iter(away.values())))
    return there


def require_cores(cores: Mapping[str, CoreClient]) -> None:
    """Raises `ApiError` 503 if there is no core."""
    if not cores:
        raise ApiError(503, "This server has no core: all its tiers are remote.", code="no_core")


def core_gone(error: Exception) -> ApiError:
    """The error of a request for a core that has failed with `error`."""
    return ApiError(503, f"The core is unavailable: {error}.", code="core_unavailable")


async def _read(core: CoreClient) -> CoreStats | CoreError:
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await core.stats()
    except CoreError as error:
        return error
    except TimeoutError:
        return CoreGoneError(core.stuck or f"it did not answer within {PATIENCE_SECONDS:g} s")
