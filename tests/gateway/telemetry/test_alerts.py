"""The gateway's own alerts: a receiver hears of one once, again after a failure, and once when the alert is over."""

import asyncio
from functools import partial
from typing import Any

import msgspec
import pytest

from gateway.base.settings import Settings, SettingsError
from gateway.telemetry.alert_channels import AlertNotSentError, Channel, Message, check_channels
from gateway.telemetry.alert_rules import RULES, AlertRule, alert_figures
from gateway.telemetry.alerts import Alerts, keep_looking
from tests.gateway.telemetry.alert_desk import alert_url
from tests.gateway.telemetry.test_service_levels import levels_of, served
from tests.support.app import running_gateway
from tests.support.upstream import Call, LoopbackServer

QUEUE = AlertRule(name="Q", severity="critical", figure="waiting", above=500, for_seconds=30, summary="a queue")


class Desk(Channel):
    """A receiver that hears of every beginning and end, and the clock."""

    def __init__(self, *rules: AlertRule) -> None:
        super().__init__("pagerduty 1", "PagerDuty", "here", "pagerduty://")
        self.events: list[Message] = []
        self.deaf = False
        self.now = 0.0
        self.alerts = Alerts([self], rules or (QUEUE,), "here", clock=lambda: self.now)

    async def send(self, message: Message) -> None:
        if self.deaf:
            raise AlertNotSentError("no connection")
        self.events.append(message)

    async def at(self, seconds: float, waiting: float | None) -> list[str]:
        """Return the events sent at a time, with this many waiting."""
        self.now, before = seconds, len(self.events)
        await self.alerts.look({"waiting": waiting})
        return [message.action for message in self.events[before:]]


async def test_an_alert_is_sent_once_after_its_time_and_once_when_resolved() -> None:
    desk = Desk()
    events = [
        await desk.at(*look) for look in [(0, 501), (29, 501), (30, 501), (60, 900), (61, 500), (62, 0), (63, 501)]
    ]
    assert events == [[], [], ["trigger"], [], ["resolve"], [], []]
    trigger, resolve = desk.events
    assert trigger.cause.id == resolve.cause.id == "here/Q"
    assert (trigger.title, trigger.text) == ("Q (critical)", "a queue (501)")
    assert (resolve.title, resolve.text) == ("Q (over)", "a queue (501)")


async def test_a_short_peak_and_an_unknown_figure_are_no_alert() -> None:
    desk = Desk()
    assert [await desk.at(*look) for look in [(0, 501), (20, 100), (31, 501), (60, None)]] == [[], [], [], []]
    assert await desk.at(61, 501) == ["trigger"]
    assert await desk.at(62, None) == []
    assert await desk.at(63, 0) == ["resolve"]


async def test_what_was_not_heard_is_said_again_and_never_twice() -> None:
    desk = Desk()
    desk.deaf = True
    await desk.at(0, 501)
    assert await desk.at(30, 501) == []
    desk.deaf = False
    assert await desk.at(45, 501) == ["trigger"]
    desk.deaf = True
    assert await desk.at(60, 0) == []
    desk.deaf = False
    assert await desk.at(75, 0) == ["resolve"]
    assert await desk.at(90, 0) == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
async def test_every_rule_fires_above_its_threshold_and_not_on_it(rule: AlertRule) -> None:
    desk = Desk(rule)
    for value, expected in ((rule.above, 0), (rule.above * 1.001 + 1e-9, 1)):
        for seconds in (0.0, rule.for_seconds):
            desk.now = seconds
            await desk.alerts.look({rule.figure: value})
        assert len(desk.events) == expected


def test_figures_are_those_of_the_window() -> None:
    answers = [served(ttft=0.2, cost_usd=0.01, prompt_tokens=90, completion_tokens=10) for _ in range(99)]
    failed = served(status="error", http_status=503, cost_usd=0.0, prompt_tokens=0, completion_tokens=0)
    figures = alert_figures(levels_of(*answers, failed).figures(), {}, [], [])
    assert figures["ttft_p95_of_limit"] == pytest.approx(0.2 / 0.5, rel=0.011)
    assert figures["error_share"] == 0.01
    assert figures["cost_per_1k_tokens_usd"] == pytest.approx(0.1)
    quiet = alert_figures(levels_of(*[failed] * 19).figures(), {}, [], [])
    assert quiet["error_share"] == 0.0


@pytest.mark.parametrize(
    ("ttft", "slo", "objective", "fires"),
    [
        (0.079, "chat", 5.0, []),
        (0.081, "chat", 5.0, ["AioTtftHigh"]),  # the sources' 80 and 100 ms
        (0.102, "chat", 5.0, ["AioTtftHigh", "AioTtftVeryHigh"]),
        (0.102, "interactive", 0.0, []),
        (0.51, None, 0.0, ["AioTtftHigh", "AioTtftVeryHigh"]),
        (1.1, None, 1.5, []),  # a laptop's tier, whose objective is a second and a half
        (1.6, None, 1.5, ["AioTtftHigh", "AioTtftVeryHigh"]),
    ],
)
async def test_first_tokens_are_late_by_the_limit_of_their_class_or_of_a_slower_tier(
    ttft: float, slo: str | None, objective: float, fires: list[str]
) -> None:
    desk = Desk(*RULES)
    timely = [served(ttft=0.01, slo="search") for _ in range(1000)]
    late = [served(ttft=ttft, slo=slo, objective=objective) for _ in range(20)]
    figures = alert_figures(levels_of(*timely, *late).figures(), {}, [], [])
    for desk.now in (0.0, 60.0):
        await desk.alerts.look({name: value for name, value in figures.items() if name == "ttft_p95_of_limit"})
    assert [message.cause.name for message in desk.events] == fires


@pytest.mark.usefixtures("ready_alert_sender")
async def test_a_gateway_tells_its_channels(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    rule = msgspec.structs.replace(next(r for r in RULES if r.figure == "error_share"), for_seconds=0.0)
    monkeypatch.setattr("gateway.telemetry.alerts.keep_looking", partial(keep_looking, rules=[rule]))
    heard = asyncio.Queue[dict[str, Any]]()

    async def hear(call: Call) -> None:
        await call.reply(202, {"status": "success"})
        heard.put_nowait(call.body)

    async with LoopbackServer(hear) as desk:
        telling = msgspec.structs.replace(settings, alert_urls=alert_url(desk), alert_poll_seconds=0.02)
        async with running_gateway(telling) as gateway:
            for tier in gateway.tiers:
                tier.fail_at = 0
            body = {"model": "tier-4", "messages": [{"role": "user", "content": "hello"}]}
            for _ in range(20):
                assert (await gateway.http.post("/v1/chat/completions", json=body)).status_code >= 500
            event = await asyncio.wait_for(heard.get(), 120)
    assert (event["title"], event["type"]) == ("AIO: AioErrors (warning)", "warning")


@pytest.mark.usefixtures("ready_alert_sender")
@pytest.mark.parametrize("url", ["ftp://host/x", "http://", "file:///etc/passwd"])
def test_an_address_of_no_service_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match="address 1 of AIO_ALERT_URLS: Apprise knows no such address"):
        check_channels(Settings(alert_urls=url))
