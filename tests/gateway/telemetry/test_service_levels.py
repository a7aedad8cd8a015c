"""Service levels of tiers: figures of a sliding window, states by thresholds, constant memory."""

import csv
import gc
import io
import math
import random
import tracemalloc
from bisect import bisect_left
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from gateway.base.inference_request import slo_class
from gateway.inference.answer import Stamps
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.overview import tiers_now
from gateway.telemetry.request_metrics import RequestMetrics
from gateway.telemetry.scraped import SloCollector
from gateway.telemetry.service_levels import LevelsByTier, ServiceLevels, Sketch, TierServiceLevels, merged
from gateway.telemetry.slo import SECONDS, SPEED, SPREAD, TTFT, bucket_quantile, slo_report, tier_level
from quality.records.record import Attempt, Record, Timings
from tests.gateway.chats import chat
from tests.gateway.inference.api.test_disconnects import only_record
from tests.quality.store.records import make_record
from tests.support.app import RunningGateway
from tiers.tier import Usage

MODELS = {1: "small", 2: "large"}


def served(
    ttft: float = 0.1, gap: float = 0.02, tokens: int = 11, *, tier: int = 1, **changes: Any
) -> tuple[Any, Record]:
    """A finished answer of a tier with that objective: its first token after `ttft` seconds, one token every `gap`."""
    last = ttft + gap * (tokens - 1)
    stamps = Stamps(arrival=0.0, routed=0.001, began=0.001, finished=last + 0.001)
    for place in range(tokens):
        stamps.take(ttft + gap * place, 1)
    objective = changes.pop("objective", 0.0)
    ask = chat(slo=changes.pop("slo", None), priority=changes.pop("priority", 1))
    phases = stamps.phases
    assert phases is not None
    timings = Timings(
        route_ms=changes.pop("route_ms", 1.0),
        ttft_ms=ttft * 1e3,
        e2e_ms=(last + 0.001) * 1e3,
        overhead_ms=3.0,
        prefill_ms=phases.prefill * 1e3,
        decode_ms=phases.decode * 1e3,
    )
    record = make_record(tier=tier, timings=timings, **{"attempts": []} | changes)
    slo = ask.options.slo
    limit = slo_class(slo, ask.generation.priority).ttft_limit(objective, asked=slo is not None)
    return SimpleNamespace(request=ask, stamps=stamps, ttft_limit=limit), record


def observed(levels: ServiceLevels) -> Callable[[Any, Record], None]:
    """What counts finished answers in `levels`, as the gateway does."""
    return RequestMetrics(CollectorRegistry(), CollectorRegistry(), levels).observe


def levels_of(*answers: tuple[Any, Record]) -> ServiceLevels:
    levels = ServiceLevels(clock=lambda: 0.0)
    observe = observed(levels)
    for answer, record in answers:
        observe(answer, record)
    return levels


def test_eleven_tokens_one_second_after_the_first_are_ten_a_second() -> None:
    answer, _ = served(ttft=4.0, gap=0.1, tokens=11)
    assert answer.stamps.tokens_per_second == pytest.approx(10)


def test_choices_that_are_drawn_together_have_gaps_and_a_speed_of_their_own() -> None:
    stamps = Stamps(arrival=0.0, routed=0.0, began=0.0)
    for place in range(11):
        for choice in range(4):
            stamps.take(4 + 0.1 * place, 1, choice)
    assert [gap for gap, _ in stamps.gaps] == pytest.approx([0.1] * 40)
    assert stamps.tokens_per_second == pytest.approx(10)


def test_a_delta_without_tokens_shortens_no_gap_and_held_text_brings_all_its_tokens() -> None:
    stamps = Stamps(arrival=0.0, routed=0.0, began=0.0)
    for now, tokens in ((4.0, 1), (4.9, 0), (5.0, 10), (7.0, 0)):
        stamps.take(now, tokens)
    assert stamps.gaps == [(1.0, 10)]
    assert (stamps.tokens_per_second, stamps.decode_seconds) == (10, 3)


@pytest.mark.parametrize("seed", range(3))
def test_quantiles_are_within_one_percent_of_the_exact_ones(seed: int) -> None:
    values = np.random.default_rng(seed).lognormal(-2, 1.5, 20_000)
    sketch = Sketch()
    for value in values:
        sketch.add([value])
    for share in (0.5, 0.95, 0.99, 0.999):
        exact = float(np.quantile(values, share, method="lower"))
        found = sketch.quantile(share)
        assert found is not None
        assert abs(found / exact - 1) < 0.0101
    assert sketch.mean == pytest.approx(values.mean())


def test_sketches_merge_without_loss_and_odd_values_break_nothing() -> None:
    draw = random.Random(1)
    values = [draw.expovariate(3.0) for _ in range(1000)] + [0.0, -1.0, 1e300, math.inf]
    one, two, whole = Sketch(), Sketch(), Sketch()
    for place, value in enumerate(values):
        (one if place % 2 else two).add([value])
        whole.add([value])
    one.merge(two)
    shares = [0.01, 0.5, 0.99]
    # Values are counted when they are asked for.
    assert one.quantiles(shares) == whole.quantiles(shares)
    assert (one.counts, one.total) == (whole.counts, 1004)
    assert Sketch().quantile(0.5) is None


def test_quantiles_by_buckets_are_those_of_prometheus() -> None:
    # 90 gaps up to 10 ms and 10 between 20 and 40 ms: the 99th percentile lies at nine tenths of the last bucket.
    place = SECONDS.index(0.04)
    assert bucket_quantile({3: 90, place: 10}, 0.99) == pytest.approx(0.02 + 0.02 * 0.9)
    assert bucket_quantile({len(SECONDS): 1}, 0.5) == SECONDS[-1]
    assert bucket_quantile({}, 0.99) is None


@pytest.mark.parametrize(
    ("objective", "green", "amber", "red"),
    [(TTFT, 1.0, 1.01, 2.01), (SPEED, 30.0, 29.9, 14.9), (SPREAD, 5.0, 5.01, 10.01)],
)
def test_each_objective_has_its_two_sides(objective: Any, green: float, amber: float, red: float) -> None:
    assert [objective.state(v) for v in (green, amber, red, None)] == ["green", "amber", "red", "unknown"]


def test_a_tier_is_as_good_as_its_worst_objective_and_unknown_of_few_requests() -> None:
    good = [served() for _ in range(30)]
    assert tier_level(levels_of(*good).figures()[1], 1, "small").state == "green"
    assert tier_level(levels_of(*good[:19]).figures()[1], 1, "small").state == "unknown"
    slow = [served(gap=0.05) for _ in range(30)]  # 20 tokens a second
    assert tier_level(levels_of(*slow).figures()[1], 1, "small").state == "amber"
    late = [served(ttft=1.2) for _ in range(30)]  # more than twice the half second of an interactive request
    level = tier_level(levels_of(*late).figures()[1], 1, "small")
    assert (level.state, level.checks[0].state, level.checks[1].state) == ("red", "red", "green")
    # One late first token in ten is among the slowest twentieth, and two long answers in a hundred are the slowest one.
    assert tier_level(levels_of(*good[3:], *late[:3]).figures()[1], 1, "small").state == "red"
    long = [served(gap=0.2) for _ in range(2)]
    level = tier_level(levels_of(*(served() for _ in range(98)), *long).figures()[1], 1, "small")
    assert [check.state for check in level.checks] == ["green", "green", "amber"]


def test_the_class_of_a_request_says_by_when_its_first_token_is_wanted() -> None:
    answers = [
        served(ttft=0.15, slo="chat"),
        served(ttft=0.15, slo="search"),
        served(ttft=1.5),
        served(ttft=1.5, priority=2),  # batch, by its priority
    ]
    level = tier_level(levels_of(*answers).figures()[1], 1, "small")
    found = {one.name: (one.ttft_seconds, one.requests, one.kept) for one in level.classes}
    assert found == {"chat": (0.1, 1, 0), "search": (0.2, 1, 1), "interactive": (0.5, 1, 0), "batch": (2.0, 1, 1)}


def test_failures_of_ours_count_and_kept_answers_do_not() -> None:
    levels = levels_of(
        served(status="error", http_status=503),
        served(status="error", http_status=400),
        served(status="aborted", http_status=499),
        served(cache="hit"),
        served(cache="miss"),
    )
    figures = levels.figures()[1]
    assert (figures.requests, figures.failed, figures.ttft.total) == (4, 1, 1)


def test_the_window_forgets_what_is_older_than_it() -> None:
    now = [0.0]
    levels = ServiceLevels(slices=3, slice_seconds=10.0, clock=lambda: now[0])
    observe = observed(levels)
    for seconds in (0.0, 15.0, 29.0):
        now[0] = seconds
        observe(*served())
    assert (levels.window_seconds, levels.figures()[1].requests) == (30.0, 3)
    now[0] = 35.0
    assert levels.figures()[1].requests == 2
    now[0] = 3500.0
    assert levels.figures() == {}


def test_a_report_has_all_tiers_together_and_each_and_survives_the_wire() -> None:
    levels = levels_of(*(served(ttft=0.1) for _ in range(25)), *(served(ttft=0.3, tier=2) for _ in range(25)))
    figures = levels.figures()
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(figures), type=LevelsByTier)
    both = slo_report(merged([figures, again]), 300.0, MODELS | {3: "idle"})
    assert (both.overall.requests, both.requests_by_tier) == (100, {1: 50, 2: 50, 3: 0})
    assert [tier.state for tier in both.tiers] == ["green", "green", "unknown"]
    assert both.overall.ttft_seconds.p50 == pytest.approx(0.1, rel=0.011)
    assert both.overall.ttft_seconds.p99 == pytest.approx(0.3, rel=0.011)
    assert both.overall.tokens_per_second.mean == pytest.approx(50)
    stages = {one.stage: (one.budget_ms, one.milliseconds.p50) for one in both.overall.stages}
    assert {name: budget for name, (budget, _) in stages.items()} == {
        "route": 2, "schedule": 3, "prefill": 25, "decode": 65, "stream": 5,
    }  # fmt: skip
    assert stages["route"][1] == pytest.approx(1.0, rel=0.011)
    assert stages["prefill"][1] == pytest.approx(99.0, rel=0.011)
    assert stages["decode"][1] == pytest.approx(200.0, rel=0.011)
    assert stages["stream"][1] == pytest.approx(2.0, rel=0.011)


def test_the_slowest_thousandth_is_a_figure_of_its_own_in_report_metrics_and_overview() -> None:
    """OB-03: of 2,000 answers the quantiles lie on four steps that are far apart."""
    steps = ((0.1, 1880), (0.2, 90), (0.4, 26), (0.8, 4))
    levels = levels_of(*(served(ttft=one, gap=one, route_ms=one * 10) for one, count in steps for _ in range(count)))
    figures = levels.figures()
    report = slo_report(figures, levels.window_seconds, MODELS)
    shown = report.overall.ttft_seconds
    expected = pytest.approx((0.1, 0.2, 0.4, 0.8), rel=0.011)
    assert (shown.p50, shown.p95, shown.p99, shown.p999) == expected
    routed = next(one.milliseconds for one in report.overall.stages if one.stage == "route")
    assert (routed.p50, routed.p95, routed.p99, routed.p999) == pytest.approx((1, 2, 4, 8), rel=0.011)

    window = next(one for one in SloCollector(lambda: report).collect() if one.name == "aio_window_seconds")
    scraped = {
        sample.labels["quantile"]: sample.value
        for sample in window.samples
        if (sample.labels["tier"], sample.labels["what"]) == ("all", "ttft")
    }
    assert tuple(scraped[quantile] for quantile in ("0.5", "0.95", "0.99", "0.999")) == expected

    now, _ = tiers_now(figures, levels.window_seconds, [], {})
    assert (now.ttft_seconds.p99, now.ttft_seconds.p999) == pytest.approx((0.4, 0.8), rel=0.011)
    gaps = [now.itl_seconds.p50, now.itl_seconds.p95, now.itl_seconds.p99, now.itl_seconds.p999]
    for found, (step, _) in zip(gaps, steps, strict=True):
        place = bisect_left(SECONDS, step)
        assert found is not None
        assert SECONDS[place - 1] <= found <= SECONDS[place]


def test_the_gaps_between_tokens_are_a_histogram_in_seconds_and_their_99th_percentile_a_tiers_figure() -> None:
    """OB-04: of a hundred gaps two are of 39 ms, the others of 9; another tier's are of 70."""
    metrics = Metrics()
    fast, slow = served(gap=0.009, tokens=99), served(gap=0.039, tokens=3)
    other = served(gap=0.07, tier=2, model="large")
    for answer, record in (fast, slow, other):
        metrics.requests.observe(answer, record)
    figures = metrics.levels.figures()
    first, second = (tier_level(figures[tier], tier, None).itl_p99_seconds for tier in (1, 2))
    assert first == pytest.approx(0.02 + 0.02 / 2), "the first of two gaps in a bucket from 20 to 40 ms"
    assert second == pytest.approx(0.06 + 0.02 * 0.99)

    text = metrics.own_exposition([], private=False).decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    gaps = [one for one in samples if one.name.startswith("vllm:inter_token_latency_seconds")]
    small = {one.labels.get("le", one.name.rpartition("_")[2]): one.value for one in gaps
             if one.labels["model_name"] != "large"}  # fmt: skip
    assert [small[most] for most in ("0.005", "0.01", "0.02", "0.04", "+Inf")] == [0, 98, 98, 100, 100]
    assert small["sum"] == pytest.approx(98 * 0.009 + 2 * 0.039)


def test_memory_is_flat_while_records_pass_through_the_window() -> None:
    """OB-06: 21,000 records through the whole, and 200,000 figures through one sketch."""
    draw = random.Random(5)
    figures = TierServiceLevels()
    answers = [served(ttft=draw.expovariate(5.0), gap=draw.expovariate(40.0), tokens=3) for _ in range(500)]
    now = [0.0]
    levels = ServiceLevels(clock=lambda: now[0])
    observe = observed(levels)

    def run(count: int) -> int:
        for number in range(count):
            now[0] += 0.05
            observe(*answers[number % 500])
        levels.figures()  # so that none waits to be counted
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = run(7_000)  # longer than the window
        after = run(14_000)
    finally:
        tracemalloc.stop()
    # The grid of a sketch bounds its size, whatever the figures are.
    for _ in range(200_000):
        figures.e2e.add([draw.expovariate(1.0) * 10 ** draw.randint(-9, 9)])
    assert after < before * 1.05
    assert len(figures.e2e.counts) <= 1_400


@pytest.mark.slow
def test_a_million_records_take_no_more_memory_than_fifty_thousand() -> None:
    """OB-06: the whole process' memory, which no count of objects can miss."""
    draw = random.Random(5)
    answers = [served(ttft=draw.expovariate(5.0), gap=draw.expovariate(40.0), tokens=3) for _ in range(500)]
    now = [0.0]
    levels = ServiceLevels(clock=lambda: now[0])
    observe = observed(levels)

    def run(count: int) -> int:
        for number in range(count):
            now[0] += 0.05
            observe(*answers[number % 500])
        levels.figures()
        gc.collect()
        status = Path("/proc/self/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0])

    before = run(50_000)
    after = run(950_000)

    assert after - before < 1024, f"{after - before} KiB more"


@pytest.mark.asyncio(loop_scope="module")
async def test_operators_see_states_and_prometheus_does_too(gateway: RunningGateway) -> None:
    body = {"model": "tier-2", "messages": [{"role": "user", "content": "hello"}]}
    for _ in range(20):
        assert (await gateway.http.post("/v1/chat/completions", json=body)).status_code == 200
    report = (await gateway.http.get("/admin/api/slo")).json()
    tier = report["tiers"][1]
    assert (tier["tier"], tier["requests"], tier["model"]) == (2, 20, "smollm2-bf16")
    assert tier["state"] in ("green", "amber", "red")
    sheet = csv.DictReader(io.StringIO((await gateway.http.get("/admin/api/slo?format=csv")).text))
    assert {row["requests"] for row in sheet if row["tier"] == "2"} == {"20"}
    text = (await gateway.http.get("/metrics")).text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    states = {sample.labels["tier"]: sample.value for sample in families["aio_slo_state"].samples}
    assert states["1"] == -1
    assert states["2"] in (0, 1, 2)
    assert {s.labels["quantile"] for s in families["aio_window_seconds"].samples if s.labels["what"] == "e2e"} == {
        "0.5", "0.95", "0.99", "0.999",
    }  # fmt: skip
    for name in ("time_to_first_token", "time_per_output_token", "request_duration"):
        assert families[f"gen_ai_server_{name}_seconds"].samples
    kinds = {sample.labels["gen_ai_token_type"] for sample in families["gen_ai_client_token_usage"].samples}
    assert kinds == {"input", "output"}


@pytest.mark.asyncio(loop_scope="module")
async def test_only_opentelemetrys_names_distinguish_operations(gateway: RunningGateway) -> None:
    async def counts(name: str, label: str) -> dict[str, float]:
        text = (await gateway.http.get("/metrics")).text
        samples = (s for family in text_string_to_metric_families(text) for s in family.samples)
        found = [s for s in samples if s.name == f"{name}_count" and "smollm2-int4" in s.labels.values()]
        return {s.labels.get(label, ""): s.value for s in found}

    ours = "gen_ai_server_request_duration_seconds", "gen_ai_operation_name"
    theirs = "vllm:e2e_request_latency_seconds", "gen_ai_operation_name"
    before, whole = await counts(*ours), sum((await counts(*theirs)).values())
    body = {"model": "tier-1", "messages": [{"role": "user", "content": "hello"}]}
    assert (await gateway.http.post("/v1/chat/completions", json=body)).status_code == 200
    for _ in range(2):
        done = await gateway.http.post("/v1/completions", json={"model": "tier-1", "prompt": "hello"})
        assert done.status_code == 200
    after = await counts(*ours)
    assert {name: after[name] - before.get(name, 0) for name in after} == {"chat": 1, "text_completion": 2}
    assert await counts(*theirs) == {"": whole + 3}


@pytest.mark.asyncio(loop_scope="module")
async def test_a_class_sets_deadline_and_priority_where_the_caller_says_neither(gateway: RunningGateway) -> None:
    async def asked(**headers: str) -> Any:
        body = {"model": "tier-1", "messages": [{"role": "user", "content": "hello"}]}
        answer = await gateway.http.post("/v1/chat/completions", json=body, headers=headers)
        assert answer.status_code == 200
        return gateway.tier(1).requests[-1]

    chat = await asked(**{"x-aio-slo": "chat"})
    assert (chat.priority, round(chat.deadline - chat.arrival, 6), chat.strict_deadline) == (0, 0.1, False)
    batch = await asked(**{"x-aio-slo": "batch"})
    assert (batch.priority, round(batch.deadline - batch.arrival, 6)) == (2, 2.0)
    own = await asked(**{"x-aio-slo": "batch", "x-aio-deadline-ms": "700"})
    assert (round(own.deadline - own.arrival, 6), own.strict_deadline) == (0.7, True)
    usual = await asked()
    assert (usual.priority, round(usual.deadline - usual.arrival, 6)) == (1, 1.0)
    body = {"model": "tier-1", "messages": [{"role": "user", "content": "hello"}]}
    wrong = await gateway.http.post("/v1/chat/completions", json=body, headers={"x-aio-slo": "soon"})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "x-aio-slo")


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("name", "seconds"), [("chat", 0.1), ("batch", 2.0), (None, 1.0)])
async def test_an_answer_is_held_to_the_limit_of_the_class_that_was_asked_for(
    gateway: RunningGateway, name: str | None, seconds: float
) -> None:
    """Without a class, to the objective of its tier where that is longer than the usual half second."""
    label = name or "interactive"

    async def shares() -> float:
        text = (await gateway.http.get("/metrics")).text
        samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
        found = (s for s in samples if s.name == "aio_ttft_limit_ratio_sum")
        return sum(s.value for s in found if s.labels["slo_class"] == label)

    before = await shares()
    body = {"model": "tier-1", "messages": [{"role": "user", "content": "hello"}]}
    headers = {"x-aio-cache": "off"} | ({} if name is None else {"x-aio-slo": name})
    answer = await gateway.http.post("/v1/chat/completions", json=body, headers=headers)
    record = await only_record(gateway, answer.json()["id"])
    assert record.timings.ttft_ms is not None
    assert await shares() - before == pytest.approx(record.timings.ttft_ms / 1e3 / seconds, rel=0.01)


@pytest.mark.asyncio(loop_scope="module")
async def test_metrics_of_costs_are_those_of_the_records(gateway: RunningGateway) -> None:
    body = {"model": "tier-3", "messages": [{"role": "user", "content": "hello"}]}
    answer = await gateway.http.post("/v1/chat/completions", json=body)
    record = await only_record(gateway, answer.json()["id"])
    text = (await gateway.http.get("/metrics")).text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    per_thousand = {s.labels["tier"]: s.value for s in families["aio_cost_per_1k_tokens_usd"].samples}
    tokens = record.prompt_tokens + record.completion_tokens
    assert per_thousand["3"] == pytest.approx(record.cost_usd / tokens * 1e3)
    keys = {s.labels["key"]: s.value for s in families["aio_key_cost_usd"].samples if s.name.endswith("_total")}
    assert set(keys) == {"none"}


def test_keys_beyond_the_hundredth_share_one_series() -> None:
    metrics = Metrics()
    for number in range(150):
        answer, record = served(key_id=f"key-{number}", cost_usd=0.5)
        metrics.requests.observe(answer, record)
    families = {f.name: f for f in text_string_to_metric_families(metrics.own_exposition([], private=True).decode())}
    keys = {s.labels["key"]: s.value for s in families["aio_key_cost_usd"].samples if s.name.endswith("_total")}
    assert (len(keys), keys["other"], keys["key-7"]) == (101, 25.0, 0.5)


def attempt(**changes: Any) -> Attempt:
    given: dict[str, Any] = {"tier": 1, "model": "tiny", "status": "ok", "prompt_tokens": 3, "completion_tokens": 4}
    return Attempt(**given | {"cost_usd": 0.25} | changes)


def test_a_tiers_price_of_a_thousand_tokens_is_that_of_its_own_answers() -> None:
    """A tier that is asked for comparison cost fifty times as much, by the few answers of its own."""
    metrics = Metrics()
    tokens = {"prompt_tokens": 600, "completion_tokens": 400}
    metrics.requests.observe(*served(cost_usd=0.25, attempts=[attempt()], **tokens))
    compared = [attempt(status="escalated"), attempt(tier=2, cost_usd=0.5)]
    for _ in range(3):
        metrics.requests.observe(*served(tier=2, cost_usd=0.75, attempts=compared, **tokens))
    text = metrics.own_exposition([], private=True).decode()
    assert 'aio_cost_per_1k_tokens_usd{tier="1"} 0.25' in text
    assert 'aio_cost_per_1k_tokens_usd{tier="2"} 0.75' in text
    assert 'aio_cost_usd_total{tier="1"} 1.0' in text


def test_requests_that_are_counted_together_count_as_each_alone_would() -> None:
    """Of two gateways one is scraped after each request and the other at the end."""
    usual = {"cost_usd": 0.25, "baseline_cost_usd": 0.5}
    kinds: list[dict[str, Any]] = [
        {"attempts": [attempt()]},
        {"attempts": [attempt()], "tokens": 1, "finish_reason": "length"},
        {"attempts": [attempt()], "key_id": "alice", "slo": "chat"},
        {"attempts": [attempt(claimed=Usage(prompt_tokens=9))]},
        {"attempts": [attempt(stage="whole")]},
        {"attempts": [attempt(status="escalated", stage="opening"), attempt(tier=2)], "tier": 2},
        {"attempts": [attempt(status="error")], "status": "error", "http_status": 503},
        {"attempts": [], "status": "error", "http_status": 400},
        {"attempts": [], "cache": "hit"},
        {"attempts": [attempt(tier=2)], "tier": 2, "api": "completion"},
    ]
    each, together = Metrics(), Metrics()
    for number in range(300):
        answer, record = served(ttft=0.01 + number / 64, **usual | kinds[number * 7 % len(kinds)])
        for metrics in (each, together):
            metrics.requests.observe(answer, record)
        each.requests.settle()
    found, expected = (
        {
            (sample.name, *sorted(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(metrics.own_exposition([], private=True).decode())
            for sample in family.samples
            if "window" not in sample.name and not sample.name.endswith("_created")
        }
        for metrics in (together, each)
    )
    assert found == pytest.approx(expected, rel=1e-12)
    assert sum(value for (name, *_), value in found.items() if name == "aio_requests_total") == 300
    assert together.levels.figures()[2].requests == each.levels.figures()[2].requests == 60
    assert together.levels.figures()[1].disputed == each.levels.figures()[1].disputed == 30
    assert together.requests.prefix_use[1].prompt_tokens == each.requests.prefix_use[1].prompt_tokens > 0


def test_a_figure_that_is_read_has_all_requests_before_it() -> None:
    metrics = Metrics()
    for number in range(1, 4):
        metrics.requests.observe(*served(cost_usd=0.25, baseline_cost_usd=1.0))
        assert metrics.levels.figures()[1].requests == 2 * number - 1
        metrics.requests.observe(*served(cost_usd=0.25, baseline_cost_usd=1.0))
        assert (metrics.requests.saving, metrics.requests._requests.value(("1", "ok"))) == (0.75, 3 * number - 1)
        metrics.requests.observe(*served(cache="hit", baseline_cost_usd=0.0, cost_usd=0.0))
        text = metrics.own_exposition([], private=False).decode()
        assert f'aio_cache_requests_total{{result="hit"}} {float(number)}' in text
