"""The estimates of quality, and a retraining at once."""

from gateway.base.errors import ApiError
from gateway.base.stores.database import reached
from gateway.operations.running import Operations
from quality.monitor.status import MonitorStatus


async def estimates_shown(operations: Operations) -> MonitorStatus:
    """The estimates. Raises `ApiError` 409 without a monitor, and 503."""
    loop = operations.quality_loop
    if loop is None or loop.monitor is None:
        raise _monitor_off()
    return await reached(loop.monitor.status())


def _monitor_off() -> ApiError:
    """This server has no quality loop."""
    return ApiError(409, "The quality monitor does not run in this server.", code="monitor_off")


async def order_retraining(operations: Operations, actor: str, reason: str) -> bool:
    """Start a retraining; False if one was running in this process. Raises `ApiError` 409 and 503."""
    loop = operations.quality_loop
    if loop is None:
        raise _monitor_off()
    return await reached(loop.retrain_now(actor, reason))
