"""`aio plan`: from options to a plan, as text and as JSON; the page shows what the command prints."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway.cli.planning.plan import plan
from gateway.planning.capacity import capacity, replica_profile
from gateway.planning.capacity.workload import Workload
from inference_core.loaders.decoder_tensors import shape
from inference_core.placement.hardware import device
from inference_core.placement.weight_formats import model_weights
from tests.gateway.planning.source_loads import TIERS, daily

DOCS = Path(__file__).parents[3] / "docs"
PAGE, MEASUREMENTS = DOCS / "results" / "capacity.md", DOCS / "measurements"
SEVENTY = "llama-3.3-70b/fp8/8xh100"


def run(*arguments: str) -> str:
    result = CliRunner().invoke(plan, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_a_plan_in_json_has_load_objectives_and_figures():
    found = json.loads(run("--rate", "100", "--ttft-ms", "500", "--replica", "llama-3.1-8b/awq-int4/l4", "--json"))
    assert found["load"]["rate"] == 100
    assert found["objectives"]["ttft_s"] == 0.5
    assert found["plan"]["replicas"] > 0
    assert found["plan"]["each"]["ttft_s"] <= 0.5


def test_a_days_requests_at_a_peak_are_planned_by_the_second():
    found = json.loads(run("--per-day", "86400", "--peak", "3", "--json"))
    assert found["load"]["rate"] == 3


def test_a_trace_of_ones_own_is_planned(tmp_path):
    trace = tmp_path / "mine.csv"
    trace.write_text("timestamp,prompt_tokens,output_tokens\n" + "".join(f"{s},100,20\n" for s in range(60)))
    assert json.loads(run("--trace", str(trace), "--json"))["load"]["output_tokens"] == 20


def test_a_price_of_ones_own_is_taken():
    one, two = (json.loads(run("--rate", "1", "--usd-per-hour", usd, "--json"))["plan"] for usd in ("1", "2"))
    assert two["usd_per_month"] == 2 * one["usd_per_month"]


def test_one_rate_and_one_only_is_wanted():
    for arguments in ((), ("--rate", "1", "--per-day", "1")):
        result = CliRunner().invoke(plan, arguments)
        assert result.exit_code == 2
        assert "one of --rate" in result.output


def test_a_simulation_is_of_one_replica_at_its_share_of_the_rate_and_said_to_be_no_measurement():
    options = ("--rate", "100", "--replica", "llama-3.3-70b/fp8/8xh100", "--ttft-ms", "800", "--simulate", "100")
    found = json.loads(run(*options, "--json"))
    simulation = found["simulation"]
    assert simulation["rate"] == 100 / found["plan"]["replicas"]
    assert 0 < simulation["ttft_p50_s"] <= simulation["ttft_p99_s"]
    text = run(*options)
    assert "simulated, not measured: 100 requests" in text
    assert f"TTFT p50 {simulation['ttft_p50_s'] * 1e3:,.0f} ms" in text


@pytest.mark.parametrize("objective", ["800", "200"])
def test_the_page_shows_the_simulation_of_the_70b_tier(objective):
    options = ("--rate", "10000", "--output-tokens", "50", "--replica", "llama-3.3-70b/fp8/8xh100")
    shown = run(*options, "--ttft-ms", objective, "--simulate", "2000")
    assert shown.strip() in PAGE.read_text(encoding="utf-8")


def _share_of_the_card() -> float:
    """Return the share of an H200's bandwidth that one answer of an 8B in FP8 had: a step reads each layer's weights in
    a byte each, and the head in two."""
    rows = [json.loads(line) for line in (MEASUREMENTS / "gpu-h200.jsonl").read_text(encoding="utf-8").splitlines()]
    step_ms = next(row["itl_mean_ms"] for row in rows if row.get("stage") == "8b-fp8-one-stream")
    config = shape("llama-3.1-8b")
    read_bytes = model_weights(config).linear + 2 * config.vocab_size * config.hidden_size
    bandwidth = device("h200").bandwidth
    assert bandwidth is not None
    return read_bytes / (step_ms / 1000) / bandwidth


def test_the_page_shows_the_70b_at_the_assumed_bandwidth_and_at_the_cards_own(monkeypatch):
    page = PAGE.read_text(encoding="utf-8")
    assert f"{_share_of_the_card():.1%} of the bandwidth" in page
    found = {}
    for share in (0.7, _share_of_the_card()):
        monkeypatch.setattr(replica_profile, "BANDWIDTH_SHARE", share)
        seventy = replica_profile.replica_profile(SEVENTY)
        tenth = Workload(rate=10_000, prompt_tokens=500, output_tokens=50)
        fleets = [capacity.plan(seventy, tenth, capacity.Objectives(ttft_s=seconds)) for seconds in (0.8, 0.2)]
        for name, wanted in capacity.KNOB_OBJECTIVES.items():
            fleets.append(capacity.plan(capacity.with_knobs(seventy, name), tenth, wanted))
        daily_loads = [*(tier for tier in TIERS if tier[0] == SEVENTY), (SEVENTY, 200, 1.0)]
        found[share] = [each.replicas for each in fleets] + [daily(*load).replicas for load in daily_loads]
    shown = re.findall(r"^\| 00[24][:,].*\| (\d+) \| (\d+) \|$", page, re.MULTILINE)
    assert [tuple(map(int, pair)) for pair in shown] == list(zip(*found.values(), strict=True))
