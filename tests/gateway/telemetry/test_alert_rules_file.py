"""Every alert of deploy/prometheus/alerts.yaml fires on one side of its threshold and not on the other (OB-09)."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.telemetry.alert_rules import RULES
from tests.gateway.telemetry.promql import Series, evaluate, fires, seconds_of

FILE = Path(__file__).parents[3] / "deploy" / "prometheus" / "alerts.yaml"
ALERTS: dict[str, dict[str, Any]] = {
    rule["alert"]: rule for group in yaml.safe_load(FILE.read_text())["groups"] for rule in group["rules"]
}
NOW = 10_000.0


def grown(name: str, per_second: float, **labels: str) -> Series:
    return Series(name, lambda at: per_second * at, **labels)


def ttft(of_limit: float) -> list[Series]:
    """Ten first tokens a second of the class `chat`, 6% of them late enough that the 95th percentile is at that share
    of the limit in its bucket; and a hundred in time of another class."""
    bounds = (0.6, 0.8, 1.0, 1.5)
    low, high = max(b for b in bounds if b < of_limit), min(b for b in bounds if b >= of_limit)
    share = (of_limit - low) / (high - low)
    below = 0.95 - 0.05 * share
    counts = {low: below, high: below + 0.05 if share else 0.95, 1.5: 1.0, float("inf"): 1.0}
    name, shown = "aio_ttft_limit_ratio_bucket", {bound: str(bound) for bound in bounds} | {float("inf"): "+Inf"}
    late = [grown(name, 10 * count, slo_class="chat", le=shown[bound]) for bound, count in counts.items()]
    return late + [grown(name, 100, slo_class="batch", le=le) for le in shown.values()]


def gauge(name: str, **labels: str) -> Callable[[float], list[Series]]:
    return lambda value: [Series(name, value, **labels)]


def waiting(count: float) -> list[Series]:
    return [Series("vllm:num_requests_waiting", count / 2, model_name=model) for model in ("a", "b")]


def errors(share: float) -> list[Series]:
    return [grown("aio_failed_requests_total", 20 * share, tier="1"), grown("aio_requests_total", 20, tier="1")]


def refused(count: float) -> list[Series]:
    """Of five minutes, with refusals that are their senders' own."""
    name = "aio_refused_requests_total"
    return [grown(name, count / 300, status="503"), grown(name, 9, status="401")]


def disputed(share: float) -> list[Series]:
    lies = grown("aio_disputed_usage_total", 20 * share, tier="1")
    return [
        lies,
        *(grown("aio_attempts_total", count, tier=tier, status="ok") for tier, count in (("1", 20), ("2", 99))),
    ]


def below_target(share: float) -> list[Series]:
    fallen = grown("aio_below_target_answers_total", 20 * share, tier="1")
    return [fallen, grown("aio_requests_total", 15, tier="1"), grown("aio_requests_total", 5, tier="2")]


def cost(per_thousand: float) -> list[Series]:
    tokens = [grown("aio_prompt_tokens_total", 600, tier="1"), grown("aio_completion_tokens_total", 400, tier="2")]
    return [grown("aio_cost_usd_total", per_thousand, tier="1"), *tokens]


def key_cost(of_week: float) -> list[Series]:
    """A request a second, which has cost `of_week` times the week's mean for a little longer than an hour."""
    week, since = 7 * 86_400, 4_000
    dear = of_week * (week - since) / (week - since * of_week)
    spent = Series("aio_key_cost_usd_total", lambda at: at + max(at - NOW + since, 0) * (dear - 1), key="ada")
    return [spent, grown("aio_key_requests_total", 1, key="ada"), *(grown(name, 1, key="bob") for name in _OF_KEYS)]


_OF_KEYS = ("aio_key_cost_usd_total", "aio_key_requests_total")


def memory(share: float) -> list[Series]:
    used, free = 100_000 * share, 100_000 * (1 - share)
    return [Series("DCGM_FI_DEV_FB_USED", used, gpu="0"), Series("DCGM_FI_DEV_FB_FREE", free, gpu="0")]


def memory_errors(count: float) -> list[Series]:
    return [Series("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", lambda at: count if at > NOW - 60 else 0.0, gpu="0")]


# The metrics behind the figure, and a value on each side.
SIDES: dict[str, tuple[Callable[[float], list[Series]], float, float]] = {
    "AioTtftHigh": (ttft, 0.79, 0.81),
    "AioTtftVeryHigh": (ttft, 0.99, 1.01),
    "AioQueueLong": (waiting, 500, 502),
    "AioQueueVeryLong": (waiting, 1000, 1002),
    "AioErrors": (errors, 0.0099, 0.0101),
    "AioRefusing": (refused, 20, 21),
    "AioUsageDisputed": (disputed, 0.049, 0.051),
    "AioCostHigh": (cost, 0.119, 0.121),
    "AioKeyCostJump": (key_cost, 2.99, 3.01),
    "AioGpuBusy": (gauge("DCGM_FI_DEV_GPU_UTIL", gpu="0"), 95, 96),
    "AioGpuMemoryFull": (memory, 0.979, 0.981),
    "AioGpuThrottled": (gauge("aio_gpu_throttled", gpu="0", reason="hw_thermal"), 0, 1),
    "AioGpuMemoryErrors": (memory_errors, 0, 1),
    "AioServiceLevelRed": (gauge("aio_slo_state", tier="1"), 1, 2),
    "AioClassLate": (gauge("aio_slo_class_kept_ratio", slo_class="chat"), 0.95, 0.94),
    "AioCoreDown": (gauge("aio_core_up", core="cpu"), 1, 0),
    "AioTierDown": (gauge("aio_tier_healthy", tier="1"), 1, 0),
    "AioBelowTarget": (below_target, 0.049, 0.051),
    "AioLedgerBehind": (gauge("aio_ledger_lag_records"), 10_000, 10_001),
    "AioJournalStalled": (gauge("aio_journal_lag_seconds"), 5.0, 5.1),
    "AioRetrainingOverdue": (gauge("aio_retraining_age_days"), 14, 14.1),
    "AioQualityLow": (gauge("aio_upgrade_rate", tier="1"), 0.15, 0.16),
}


def test_every_alert_has_a_test_a_severity_and_a_summary() -> None:
    assert ALERTS.keys() == SIDES.keys()
    for alert in ALERTS.values():
        assert alert["labels"]["severity"] in ("warning", "critical")
        assert alert["annotations"]["summary"]


@pytest.mark.parametrize("name", SIDES)
def test_an_alert_fires_above_its_threshold_and_not_below(name: str) -> None:
    make, below, above = SIDES[name]
    rule = ALERTS[name]
    wait = seconds_of(rule["for"]) if "for" in rule else 0.0
    assert not fires(rule["expr"], wait, make(below), NOW, step=15)
    assert fires(rule["expr"], wait, make(above), NOW, step=15)


@pytest.mark.parametrize(
    "name", [name for name, rule in ALERTS.items() if "for" in rule and "rate(" not in rule["expr"]]
)
def test_an_alert_waits_as_long_as_it_says(name: str) -> None:
    make, below, above = SIDES[name]
    wait = seconds_of(ALERTS[name]["for"])

    def since(seconds: float) -> list[Series]:
        """As if the figure had been on the wrong side for this long."""
        turn = NOW - seconds
        return [
            Series(bad.name, lambda at, good=good, bad=bad: (bad if at >= turn else good).at(at), **dict(bad.labels))
            for good, bad in zip(make(below), make(above), strict=True)
        ]

    assert fires(ALERTS[name]["expr"], wait, since(wait + 1), NOW)
    assert not fires(ALERTS[name]["expr"], wait, since(wait - 1), NOW)


def test_the_gateways_own_alerts_have_the_same_names_thresholds_and_patience() -> None:
    percent = {"gpu_busy": 100}
    for rule in RULES:
        alert = ALERTS[rule.name]
        assert alert["labels"]["severity"] == rule.severity
        assert alert["annotations"]["summary"] == rule.summary
        assert seconds_of(alert["for"]) == rule.for_seconds
        threshold = float(alert["expr"].rpartition("> ")[2])
        assert threshold == pytest.approx(rule.above * percent.get(rule.figure, 1))


@pytest.mark.parametrize(("name", "limit"), [("AioQueueLong", 500), ("AioQueueVeryLong", 1000)])
def test_a_queue_at_a_server_elsewhere_fires_too_and_processes_that_see_the_same_one_do_not_add_up(
    name: str, limit: int
) -> None:
    def seen(count: int) -> list[Series]:
        return [Series("aio_remote_waiting", count, worker=worker) for worker in ("0", "1")]

    assert not fires(ALERTS[name]["expr"], 30, seen(limit), NOW)
    assert fires(ALERTS[name]["expr"], 30, seen(limit + 1), NOW)


@pytest.mark.parametrize(("name", "limit"), [("AioQueueLong", 500), ("AioQueueVeryLong", 1000)])
def test_queues_of_cores_and_of_servers_elsewhere_add_up_as_in_the_gateways_own_alert(name: str, limit: int) -> None:
    def seen(here: int, elsewhere: int) -> list[Series]:
        return [*waiting(here), Series("aio_remote_waiting", elsewhere, worker="0")]

    assert not fires(ALERTS[name]["expr"], 30, seen(limit - 100, 100), NOW)
    assert fires(ALERTS[name]["expr"], 30, seen(limit - 100, 102), NOW)


def test_the_evaluator_knows_what_it_is_used_for() -> None:
    series = [Series("a", 6.0, x="1"), Series("a", 2.0, x="2"), Series("b", 2.0, x="1"), grown("c_total", 3.0)]
    assert evaluate("a / b", series, 0) == {(("x", "1"),): 3.0}
    assert evaluate("sum(a)", series, 0) == {(): 8.0}
    assert evaluate('max by (x) (a{x!="2"}) * 2 - 1', series, 0) == {(("x", "1"),): 11.0}
    assert evaluate("sum(rate(c_total[1m]))", series, 100) == {(): 3.0}
    assert evaluate("increase(c_total[1m])", series, 100) == {(): 180.0}
    assert evaluate("a > 5", series, 0) == {(("x", "1"),): 6.0}
    assert evaluate("a > 5 or b > 1", series, 0) == {(("x", "1"),): 6.0}
    assert evaluate("a > 7 or b > 1", series, 0) == {(("x", "1"),): 2.0}
    with pytest.raises(AssertionError):
        evaluate("a ? b", series, 0)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_accepts_the_file() -> None:
    assert subprocess.run(["promtool", "check", "rules", str(FILE)], check=False).returncode == 0
