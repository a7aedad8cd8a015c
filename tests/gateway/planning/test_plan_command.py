"""`aio plan`: from options to a plan, as text and as JSON; the page shows what the command prints."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway.cli.planning.plan import plan

PAGE = Path(__file__).parents[3] / "docs" / "results" / "capacity.md"


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
