"""GPUs of other machines, by the pages that NVIDIA's exporter (dcgm-exporter) serves for Prometheus (SPEC OB-10).

Imported only where `gpu_exporters` is set.
"""

import asyncio
import logging
import math
from collections.abc import Mapping

import httpx
from prometheus_client.parser import text_string_to_metric_families

from gateway.base.settings import SettingsError
from gateway.telemetry.gpus import GpuReading
from gateway.telemetry.telemetry_url import telemetry_url
from tiers.remote.http_exchange import bounded_answer
from tiers.remote.http_transport import transport_to

log = logging.getLogger(__name__)

SETTING = "AIO_GPU_EXPORTERS"
SECONDS = 5.0
# A page of 16 GPUs with every field has some 100 KB.
MOST_BYTES = 4 * 1024 * 1024
_MIB = 1024 * 1024
# Fields of a reading by the exporter's names, and what one of its units is. Newer versions call the reasons for slower
# clocks events.
_FIELDS = {
    "DCGM_FI_DEV_GPU_UTIL": ("utilisation", 1),
    "DCGM_FI_DEV_MEM_COPY_UTIL": ("memory_utilisation", 1),
    "DCGM_FI_DEV_FB_USED": ("memory_used", _MIB),
    "DCGM_FI_DEV_FB_FREE": ("memory_free", _MIB),
    "DCGM_FI_DEV_GPU_TEMP": ("temperature", 1),
    "DCGM_FI_DEV_POWER_USAGE": ("power_watts", 1),
    "DCGM_FI_DEV_SM_CLOCK": ("sm_clock", 1),
    "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": ("throttle_reasons", 1),
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": ("throttle_reasons", 1),
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": ("ecc_corrected", 1),
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": ("ecc_uncorrected", 1),
}
_WHOLE = {"memory_used", "memory_free", "throttle_reasons", "ecc_corrected", "ecc_uncorrected"}


class GpuExporters:
    """The exporters whose pages are at `urls`, separated by commas. Raises `SettingsError` for no web address."""

    def __init__(self, urls: str) -> None:
        addresses = [address.strip() for address in urls.split(",") if address.strip()]
        if not addresses:
            raise SettingsError(f"{SETTING} names no URL; give some, separated by commas")
        self._clients = {
            url: httpx.AsyncClient(transport=transport_to(url), follow_redirects=False)
            for url in (telemetry_url(SETTING, address) for address in addresses)
        }

    async def read(self) -> list[GpuReading]:
        """Return the GPUs of all pages; exporters that do not answer with a page are left out with a warning."""
        pages = await asyncio.gather(*(self._page(url, client) for url, client in self._clients.items()))
        return [reading for page in pages for reading in page]

    async def aclose(self) -> None:
        for client in self._clients.values():
            await client.aclose()

    async def _page(self, url: httpx.URL, client: httpx.AsyncClient) -> list[GpuReading]:
        try:
            answer, body = await bounded_answer(client, client.build_request("GET", url), MOST_BYTES, SECONDS)
            answer.raise_for_status()
            return readings_of(body.decode())
        except (httpx.HTTPError, OSError, ValueError) as error:
            log.warning("the GPU exporter at %s could not be read: %s", url.host, error)
            return []


def readings_of(page: str) -> list[GpuReading]:
    """Return the GPUs of an exporter's page in its order; a part of a GPU (MIG) is one of its own. Raises ValueError
    for a page that is not in Prometheus' format, or whose values are not those of the fields."""
    values_by_gpu: dict[tuple[str, str], dict[str, float]] = {}
    labels: dict[tuple[str, str], Mapping[str, str]] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name in _FIELDS and math.isfinite(sample.value):
                key = sample.labels.get("UUID", ""), sample.labels.get("GPU_I_ID", "")
                name, unit = _FIELDS[sample.name]
                values_by_gpu.setdefault(key, {})[name] = sample.value * unit
                labels[key] = sample.labels
    return [_reading(labels[key], key, values) for key, values in values_by_gpu.items()]


def _reading(labels: Mapping[str, str], key: tuple[str, str], values: Mapping[str, float]) -> GpuReading:
    uuid, part = key
    fields = {name: int(value) if name in _WHOLE else value for name, value in values.items()}
    return GpuReading(
        gpu=int(labels.get("gpu", "0")),
        uuid=f"{uuid}/{part}" if part else uuid,
        name=labels.get("modelName", ""),
        **fields,  # type: ignore[arg-type]
    )
