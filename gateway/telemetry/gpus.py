"""The GPUs of this machine under the names of NVIDIA's exporter (DCGM_FI_*), read through NVML if there are any."""

import importlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

log = logging.getLogger(__name__)

_MIB = 1024 * 1024
_LABELS = ["gpu", "UUID", "modelName"]
# nvml.h, nvmlClocksEventReasons: those that throttle a GPU.
THROTTLE_REASONS = {
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sw_thermal": 0x20,
    "hw_thermal": 0x40,
    "hw_power_brake": 0x80,
}


class GpuReading(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU at one moment; None is unknown. Utilisation in percent, memory in bytes, clocks in MHz, ECC errors since
    the driver was loaded.
    """

    gpu: int
    uuid: str
    name: str
    utilisation: float | None = None
    memory_utilisation: float | None = None
    memory_used: int | None = None
    memory_free: int | None = None
    temperature: float | None = None
    power_watts: float | None = None
    sm_clock: float | None = None
    throttle_reasons: int | None = None
    """NVML's bit mask."""
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    compute_capability: float | None = None

    @property
    def memory_bytes(self) -> int | None:
        return None if self.memory_used is None or self.memory_free is None else self.memory_used + self.memory_free

    @property
    def memory_share(self) -> float | None:
        """Share of its memory in use."""
        if self.memory_used is None or self.memory_free is None:
            return None
        return self.memory_used / (self.memory_used + self.memory_free)

    @property
    def throttled_by(self) -> list[str]:
        """Return the reasons that throttle it now."""
        mask = self.throttle_reasons or 0
        return [name for name, bit in THROTTLE_REASONS.items() if mask & bit]


class Gpus:
    """Reads the GPUs; `nvml` is the module, by default pynvml if installed. Without it or a driver there are none."""

    def __init__(self, nvml: Any = None) -> None:
        self._nvml = nvml
        self._begun = False
        self._away = False

    def read(self) -> list[GpuReading]:
        """Read all GPUs. Takes some milliseconds, so call it in a thread. Never raises."""
        if not self._begun:
            self._begun = True
            self._away = not self._begin()
        if self._away:
            return []
        try:
            count = self._nvml.nvmlDeviceGetCount()
            return [self._reading(number) for number in range(count)]
        except self._nvml.NVMLError as error:
            log.warning("the GPUs could not be read: %s", error)
            return []

    def _begin(self) -> bool:
        try:
            self._nvml = self._nvml or importlib.import_module("pynvml")
            self._nvml.nvmlInit()
        except ImportError:
            log.debug("nvidia-ml-py is not installed: GPUs are not monitored")
            return False
        except self._nvml.NVMLError as error:
            log.debug("no GPU is monitored: %s", error)
            return False
        return True

    def _reading(self, number: int) -> GpuReading:
        nvml = self._nvml
        handle = nvml.nvmlDeviceGetHandleByIndex(number)
        rates = self._queried(lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
        memory = self._queried(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
        power = self._queried(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        capability = self._queried(lambda: nvml.nvmlDeviceGetCudaComputeCapability(handle))
        return GpuReading(
            gpu=number,
            uuid=nvml.nvmlDeviceGetUUID(handle),
            name=nvml.nvmlDeviceGetName(handle),
            utilisation=None if rates is None else rates.gpu,
            memory_utilisation=None if rates is None else rates.memory,
            memory_used=None if memory is None else memory.used,
            memory_free=None if memory is None else memory.free,
            temperature=self._queried(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
            power_watts=None if power is None else power / 1e3,
            sm_clock=self._queried(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
            throttle_reasons=self._queried(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),
            ecc_corrected=self._queried(lambda: self._ecc_errors(handle, nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED)),
            ecc_uncorrected=self._queried(lambda: self._ecc_errors(handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED)),
            compute_capability=None if capability is None else float("{}.{}".format(*capability)),
        )

    def _ecc_errors(self, handle: Any, kind: int) -> Any:
        return self._nvml.nvmlDeviceGetTotalEccErrors(handle, kind, self._nvml.NVML_VOLATILE_ECC)

    def _queried(self, ask: Callable[[], Any]) -> Any:
        """Return a GPU's answer, None if it does not support the query."""
        try:
            return ask()
        except self._nvml.NVMLError:
            return None


class GpuCollector(Collector):
    """Families of the last `readings`."""

    def __init__(self) -> None:
        self.readings: list[GpuReading] = []

    def collect(self) -> Iterator[Metric]:
        """Yield nothing without a GPU."""
        if not self.readings:
            return
        yield self._gauge("DCGM_FI_DEV_GPU_UTIL", "GPU utilisation, percent.", lambda g: g.utilisation)
        yield self._gauge("DCGM_FI_DEV_MEM_COPY_UTIL", "Memory utilisation, percent.", lambda g: g.memory_utilisation)
        yield self._gauge("DCGM_FI_DEV_FB_USED", "Memory in use, MiB.", lambda g: _mib(g.memory_used))
        yield self._gauge("DCGM_FI_DEV_FB_FREE", "Memory free, MiB.", lambda g: _mib(g.memory_free))
        yield self._gauge("DCGM_FI_DEV_GPU_TEMP", "Temperature, degrees Celsius.", lambda g: g.temperature)
        yield self._gauge("DCGM_FI_DEV_POWER_USAGE", "Power, watts.", lambda g: g.power_watts)
        yield self._gauge("DCGM_FI_DEV_SM_CLOCK", "Clock of the processors, MHz.", lambda g: g.sm_clock)
        yield self._gauge(
            "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "NVML's bit mask of reasons.", lambda g: g.throttle_reasons
        )
        yield self._gauge("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "Corrected memory errors.", lambda g: g.ecc_corrected)
        yield self._gauge("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "Uncorrected memory errors.", lambda g: g.ecc_uncorrected)
        throttled = GaugeMetricFamily(
            "aio_gpu_throttled", "1 for each reason that throttles a GPU.", labels=[*_LABELS, "reason"]
        )
        for reading in self.readings:
            for name in THROTTLE_REASONS:
                throttled.add_metric([*_labels(reading), name], name in reading.throttled_by)
        yield throttled

    def _gauge(self, name: str, documentation: str, value: Callable[[GpuReading], float | None]) -> GaugeMetricFamily:
        family = GaugeMetricFamily(name, documentation, labels=_LABELS)
        for reading in self.readings:
            if (number := value(reading)) is not None:
                family.add_metric(_labels(reading), number)
        return family


def _labels(reading: GpuReading) -> list[str]:
    return [str(reading.gpu), reading.uuid, reading.name]


def _mib(size: int | None) -> float | None:
    return None if size is None else size / _MIB
