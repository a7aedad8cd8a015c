"""Where alerts go and what was sent: a page behind the system page, with a button that sends a test to all channels."""

import time
from typing import Any

import msgspec
from litestar import get, post
from litestar.response import Response

from gateway.admin.resource import Admin
from gateway.base.errors import ApiError
from gateway.base.stores.database import reached
from gateway.edge.asgi import HttpRequest
from gateway.inference.service import Serving
from gateway.operations.dashboard.html.rendering import back_to, page
from gateway.telemetry.alert_channels import Tested, channels_of, send_test
from gateway.telemetry.alerts import AlertMessages
from gateway.tenancy.admin_guard import OPERATOR
from quality.store.queries import record_audit

PATH = "/admin/system/alerts"
MOST_SHOWN = 100


class ChannelShown(msgspec.Struct, frozen=True, kw_only=True):
    """A channel that is set; `title` and `where` have no secret."""

    channel: str
    title: str
    """The receiver's host or kind."""
    where: str


class AlertSent(msgspec.Struct, frozen=True, kw_only=True):
    """The last message about a cause in a channel."""

    channel: str
    cause: str
    state: str
    """"on" or "over"."""
    severity: str
    summary: str
    sent_at: float
    """Epoch seconds."""


class AlertsShown(msgspec.Struct, frozen=True, kw_only=True):
    """Where alerts go, and the newest messages first."""

    channels: list[ChannelShown]
    sent: list[AlertSent]


class AlertsTested(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the test message in each channel."""

    channels: list[Tested]


async def alerts_shown(serving: Serving) -> AlertsShown:
    """Return channels and messages. Raises `ApiError` 503."""
    rows = await reached(AlertMessages(serving.database).newest(MOST_SHOWN))
    names = AlertSent.__struct_fields__
    sent = [AlertSent(**{name: getattr(row, name) for name in names}) for row in rows]
    channels = [
        ChannelShown(channel=channel.name, title=channel.title, where=channel.where)
        for channel in channels_of(serving.settings)
    ]
    return AlertsShown(channels=channels, sent=sent)


async def order_test(serving: Serving, actor: str) -> AlertsTested:
    """Send a test message to every channel, and note who did. Raises `ApiError`: 409 where none is set."""
    if not serving.settings.alerts_somewhere:
        raise ApiError(409, "No channel is set: see AIO_ALERT_… of `aio settings`.", code="no_alert_channel")
    now = time.time()
    tested = await send_test(serving.settings, now)
    details = {test.channel: test.problem or "accepted" for test in tested}
    await reached(
        record_audit(serving.database, at=now, actor=actor, action="alerts.tested", subject="alerts", details=details)
    )
    return AlertsTested(channels=tested)


@get("/alerts", summary="Show where alerts go and what was sent")
async def show_alerts(admin: Admin) -> AlertsShown:
    """The channels that are set, and the last message about each cause in each of them."""
    return await alerts_shown(admin.serving)


@post("/alerts/test", opt=OPERATOR, status_code=200, summary="Send a test message to every channel of alerts")
async def test_alerts(admin: Admin) -> AlertsTested:
    """Answers once every receiver has accepted or refused it; `problem` says why one did not."""
    return await order_test(admin.serving, admin.actor)


@get("/system/alerts")
async def show_alerts_page(request: HttpRequest, admin: Admin) -> Response[Any]:
    """As `/v1/admin/alerts`, with what stands now."""
    shown = await alerts_shown(admin.serving)
    channels = {one.channel: one for one in shown.channels}
    now = (await admin.operations.live.overview()).alerts
    return page(request, "alerts.html", "Alerts", shown=shown, channels=channels, now=now)


@post("/system/alerts/test", opt=OPERATOR, status_code=200)
async def test_from_page(admin: Admin) -> Response[Any]:
    done = await order_test(admin.serving, admin.actor)
    titles = {channel.name: channel.title for channel in channels_of(admin.serving.settings)}
    said = (f"{titles[tested.channel]} {tested.problem or 'accepted it'}" for tested in done.channels)
    return back_to(PATH, f"Test: {'; '.join(said)}")


ALERT_ENDPOINTS = (show_alerts, test_alerts)
