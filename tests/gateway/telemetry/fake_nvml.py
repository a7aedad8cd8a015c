"""An NVML with chosen readings: the part of pynvml that is used, for tests without a GPU."""

from types import SimpleNamespace
from typing import Any

# Units and magnitudes of that GPU under load.
H200: dict[str, Any] = {
    "uuid": "GPU-5e1d8a3c-0000-0000-0000-000000000001",
    "name": "NVIDIA H200",
    "utilization": SimpleNamespace(gpu=97, memory=41),
    "memory": SimpleNamespace(total=150_754_820_096, used=145_000_000_000, free=5_754_820_096),
    "temperature": 61,
    "power": 642_350,
    "clock": 1_980,
    "reasons": 0x0,
    "ecc": (3, 0),
    "capability": (9, 0),
}


class FakeNvml:
    """GPUs by their readings; a missing reading raises `NVMLError`, as an unsupported query does."""

    NVML_TEMPERATURE_GPU = 0
    NVML_CLOCK_SM = 1
    NVML_MEMORY_ERROR_TYPE_CORRECTED = 0
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0

    class NVMLError(Exception):
        """As pynvml's."""

    def __init__(self, *gpus: dict[str, Any], broken: bool = False) -> None:
        self.gpus, self.broken = list(gpus), broken

    def nvmlInit(self) -> None:
        if self.broken:
            raise self.NVMLError("Driver Not Loaded")

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, number: int) -> dict[str, Any]:
        return self.gpus[number]

    def nvmlDeviceGetUUID(self, gpu: dict[str, Any]) -> str:
        return str(gpu["uuid"])

    def nvmlDeviceGetName(self, gpu: dict[str, Any]) -> str:
        return str(gpu["name"])

    def nvmlDeviceGetUtilizationRates(self, gpu: dict[str, Any]) -> Any:
        return self._of(gpu, "utilization")

    def nvmlDeviceGetMemoryInfo(self, gpu: dict[str, Any]) -> Any:
        return self._of(gpu, "memory")

    def nvmlDeviceGetTemperature(self, gpu: dict[str, Any], kind: int) -> Any:
        return self._of(gpu, "temperature")

    def nvmlDeviceGetPowerUsage(self, gpu: dict[str, Any]) -> Any:
        return self._of(gpu, "power")

    def nvmlDeviceGetClockInfo(self, gpu: dict[str, Any], kind: int) -> Any:
        return self._of(gpu, "clock")

    def nvmlDeviceGetCudaComputeCapability(self, gpu: dict[str, Any]) -> Any:
        return self._of(gpu, "capability")

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, gpu: dict[str, Any]) -> Any:
        return self._of(gpu, "reasons")

    def nvmlDeviceGetTotalEccErrors(self, gpu: dict[str, Any], kind: int, counter: int) -> Any:
        return self._of(gpu, "ecc")[kind]

    def _of(self, gpu: dict[str, Any], name: str) -> Any:
        if name not in gpu:
            raise self.NVMLError("Not Supported")
        return gpu[name]
