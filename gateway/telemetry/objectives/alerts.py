"""Alerts without Prometheus: figures are checked every few seconds, and a webhook is called when an alert starts and
when it ends.

Events have the form of PagerDuty's Events API v2, which incident tools understand.
"""

import asyncio
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

import httpx
import msgspec

from gateway.base.settings import Settings
from gateway.telemetry.objectives.alert_rules import RULES, AlertInputs, AlertRule, Figure
from gateway.telemetry.telemetry_url import telemetry_url
from tiers.remote.http_exchange import bounded_answer
from tiers.remote.http_transport import transport_to

log = logging.getLogger(__name__)

Send = Callable[[dict[str, Any]], Awaitable[None]]
Why = Callable[[Figure], str | None]

WEBHOOK_SECONDS, MOST_WEBHOOK_BYTES = 10.0, 2**20


class _Standing(msgspec.Struct):
    """State of one rule: since when its figure has been too high, and whether the webhook has been notified."""

    above_since: float | None = None
    notified: bool = False


class Alerts:
    """Call `look` with figures periodically. A failed event is retried at the next call; each alert has one
    `dedup_key`, so that a duplicate counts once. An unknown figure changes nothing. `why` adds to an event what is
    known about its figure."""

    def __init__(
        self,
        send: Send,
        routing_key: str = "",
        rules: Sequence[AlertRule] = RULES,
        source: str = "",
        clock: Callable[[], float] = time.monotonic,
        why: Why = lambda figure: None,
    ) -> None:
        self._send, self._routing_key, self._rules, self._clock = send, routing_key, rules, clock
        self._source, self._why = source or socket.gethostname(), why
        self._standing = {rule.name: _Standing() for rule in rules}

    async def look(self, figures: AlertInputs) -> None:
        """Send events for alerts that started or ended."""
        for rule in self._rules:
            value = figures.get(rule.figure)
            if value is not None:
                await self._judge(rule, self._standing[rule.name], value)

    async def _judge(self, rule: AlertRule, standing: _Standing, value: float) -> None:
        now = self._clock()
        if value <= rule.above:
            standing.above_since = None
            if standing.notified and await self._tell(rule, "resolve", value):
                standing.notified = False
            return
        standing.above_since = now if standing.above_since is None else standing.above_since
        if not standing.notified and now - standing.above_since >= rule.for_seconds:
            standing.notified = await self._tell(rule, "trigger", value)

    async def _tell(self, rule: AlertRule, action: Literal["trigger", "resolve"], value: float) -> bool:
        why = self._why(rule.figure)
        event = {
            "routing_key": self._routing_key,
            "event_action": action,
            "dedup_key": f"aio/{self._source}/{rule.name}",
            "client": "aio",
            "payload": {
                "summary": f"{rule.name}: {rule.summary} ({value:.4g})" + (f"; {why}" if why else ""),
                "source": self._source,
                "severity": rule.severity,
                "timestamp": datetime.now(UTC).isoformat(),
                "component": "gateway",
                "custom_details": {"figure": rule.figure, "value": value, "above": rule.above},
            },
        }
        try:
            await self._send(event)
        except (httpx.HTTPError, OSError) as error:
            log.warning(
                "alert %s (%s) could not be sent and will be again: %s", rule.name, action, type(error).__name__
            )
            return False
        log.warning("alert %s: %s (%.4g)", rule.name, action, value)
        return True


async def keep_looking(
    settings: Settings,
    figures: Callable[[], Awaitable[AlertInputs]],
    rules: Sequence[AlertRule] = RULES,
    why: Why = lambda figure: None,
) -> None:
    """Check every `alert_poll_seconds` and notify `alert_webhook`. Raises `SettingsError` for an invalid URL."""
    url = webhook_url(settings)
    transport = transport_to(url)
    async with httpx.AsyncClient(transport=transport, timeout=WEBHOOK_SECONDS, follow_redirects=False) as client:

        async def send(event: dict[str, Any]) -> None:
            request = client.build_request("POST", url, json=event)
            answer, _ = await bounded_answer(client, request, MOST_WEBHOOK_BYTES, WEBHOOK_SECONDS)
            answer.raise_for_status()

        alerts = Alerts(send, settings.alert_routing_key, rules, why=why)
        while True:
            try:
                await alerts.look(await figures())
            except Exception:
                # A failed read is retried at the next check.
                log.exception("alerts were not evaluated")
            await asyncio.sleep(settings.alert_poll_seconds)


def webhook_url(settings: Settings) -> httpx.URL:
    """Return the URL for events. Raises `SettingsError` as `telemetry_url` does."""
    return telemetry_url("AIO_ALERT_WEBHOOK", settings.alert_webhook)
